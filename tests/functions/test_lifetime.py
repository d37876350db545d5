"""Rules live as long as their function: many functions, threads, forks and the end of a process."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from crossed import X, aligned, in_library, same, slope, value, wide
from fresh import forked

from xbridge.functions.programs import programs
from xbridge.functions.run import functions

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

wide64 = pytest.fixture(autouse=True)(wide)


@pytest.fixture(autouse=True, scope="module")
def freeze() -> Iterator[None]:
    """Leave all that there is out of the collections of these tests, which takes long to look through."""
    gc.freeze()
    yield
    gc.unfreeze()


MAKE: dict[str, Callable[[], Callable[[Any], Any]]] = {
    "numpy": lambda: lambda x: 1 * np.sin(x),
    "jax": lambda: lambda x: 1 * jax.numpy.sin(x),
    "torch": lambda: lambda x: 1 * torch.sin(x),
}
GIVEN: dict[str, Any] = {
    "signature": "()->()",
    "vjp": lambda g, y, x: g * np.cos(x),
    "jvp": lambda t, y, x: t[0] * np.cos(x),
}


def backward(f: Callable[[Any], Any]) -> None:
    f(torch.from_numpy(X.copy()).requires_grad_()).sum().backward()


def compiled(f: Callable[[Any], Any]) -> None:
    torch.compile(f, backend="eager")(torch.from_numpy(X))
    torch._dynamo.reset()


USES: dict[str, dict[str, Callable[[Any], Any]]] = {
    "torch": {
        "plain": lambda f: f(torch.from_numpy(X)),
        "backward": backward,
        "hessian": lambda f: torch.func.jacrev(f)(torch.from_numpy(X)),
        "vmap": lambda f: torch.vmap(f)(torch.from_numpy(X)[None]),
        "compiled": compiled,
    },
    "jax": {
        "plain": lambda f: f(jax.numpy.asarray(X)),
        "grad": lambda f: jax.grad(lambda x: f(x).sum())(jax.numpy.asarray(X)),
        "vmap": lambda f: jax.vmap(f)(jax.numpy.asarray(X)[None]),
    },
}


@pytest.mark.parametrize(
    ("name", "caller", "use"),
    [(name, caller, use) for caller, uses in USES.items() for use in uses for name in MAKE if name != caller],
)
def test_aligned__function_is_dropped_with_its_rules(name: str, caller: str, use: str) -> None:
    """A function is dropped with its rules."""
    fn = MAKE[name]()
    gone = weakref.ref(fn)
    f = aligned(backend=name, **(GIVEN if name == "numpy" else {}))(fn)
    USES[caller][use](f)
    del fn, f
    gc.collect()
    assert gone() is None


@dataclass
class Model:
    """A container of a class."""

    w: Any


def test_aligned__arguments_are_dropped_after_the_call() -> None:
    """A function keeps no array of a container that it was called with, although it knows its structure."""
    f = aligned(backend="jax")(lambda tree: tree.w * 2)
    x = torch.from_numpy(X.copy()).requires_grad_()
    gone = weakref.ref(x)
    f(Model(x)).sum().backward()
    del x
    gc.collect()
    assert gone() is None


def test_aligned__thousand_functions_leave_nothing_behind() -> None:
    """A thousand functions leave nothing behind."""
    x = torch.from_numpy(X.copy()).requires_grad_()
    gc.collect()
    before = len(functions), len(programs)
    for _ in range(1000):
        aligned(backend="numpy", vjp=lambda g, y, x: g)(lambda x: x)(x).sum().backward()
    gc.collect()
    assert (len(functions), len(programs)) == before


def test_aligned__threads_call_one_function_at_a_time_and_each_its_own_graph() -> None:
    """Threads call one function at a time and each its own graph."""
    f, g = in_library("numpy"), in_library("jax")
    h = jax.jit(jax.grad(lambda x: in_library("torch")(x).sum()))
    failed: list[BaseException] = []

    def work(shift: int) -> None:
        try:
            with jax.enable_x64(True):
                for _ in range(10):
                    for call in (f, g):
                        x = torch.from_numpy(X + shift).requires_grad_()
                        same(call(x), value(X + shift))
                        same(torch.autograd.grad(call(x).sum(), x)[0], slope(X + shift))
                    same(h(jax.numpy.asarray(X + shift)), slope(X + shift))
        except BaseException as error:  # noqa: BLE001 -- shown by the test
            failed.append(error)

    threads = [threading.Thread(target=work, args=(shift,)) for shift in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


@pytest.mark.slow
def test_aligned__child_process_calls_functions_of_its_parent() -> None:
    """A child process calls functions of its parent."""
    code = """
    import os, threading, numpy as np, torch
    from xbridge import aligned
    torch.set_num_threads(1)
    f = aligned(backend="numpy", vjp=lambda g, y, x: g * np.cos(x))(lambda x: np.sin(x))
    x = torch.ones(2, requires_grad=True)
    f(x.detach())
    child = os.fork()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 0
    f(x).sum().backward()
    os.write(1, f"{np.allclose(x.grad, np.cos(1))}\\n".encode())
    os._exit(status)
    """
    assert forked(code) == (0, ["True", "True"])


def test_aligned__torch_is_not_imported_for_jax_nor_jax_for_torch_nor_rules_for_a_plain_call() -> None:
    """torch is not imported for JAX nor JAX for torch, nor rules for a plain call."""
    code = """
    import sys, numpy as np, torch, xbridge
    f = xbridge.aligned(backend="numpy")(lambda x: x + 1)
    f(torch.ones(2))
    print("jax" in sys.modules, "xbridge.functions.torch.calls" in sys.modules)
    """
    assert forked(code) == (0, ["False False"])
