"""Rules live as long as their function: many functions, threads, forks and the end of a process."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import make_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from crossed import X, in_library, same, slope, value, wide
from fresh import forked, run

import xbridge
import xbridge.functions.rules
from xbridge.functions.function import functions

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

aligned: Any = xbridge.aligned

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


@pytest.mark.slow
def test_aligned__what_jax_compiled_is_dropped_with_what_jax_holds() -> None:
    """What JAX compiled is dropped with what JAX holds."""

    def made() -> weakref.ref[Any]:
        fn = MAKE["numpy"]()
        f = aligned(backend="numpy", **GIVEN)(fn)
        jax.jit(jax.grad(lambda x: f(x).sum()))(jax.numpy.asarray(X)).block_until_ready()
        return weakref.ref(fn)

    refs = [made() for _ in range(5)]
    jax.clear_caches()
    gc.collect()
    assert [ref() for ref in refs] == [None] * 5


def test_aligned__thousand_functions_leave_nothing_behind() -> None:
    """A thousand functions leave nothing behind."""
    x = torch.from_numpy(X.copy()).requires_grad_()
    gc.collect()
    before = len(functions), len(xbridge.functions.rules.rules)
    for _ in range(1000):
        aligned(backend="numpy", vjp=lambda g, y, x: g)(lambda x: x)(x).sum().backward()
    gc.collect()
    assert (len(functions), len(xbridge.functions.rules.rules)) == before


def test_aligned__rules_of_one_function_are_bounded() -> None:
    """The rules of one function are bounded."""
    f = aligned(backend="numpy", vjp=lambda g, y, x, k: (g * k, None))(lambda x, k: x * k)
    function = vars(f)["__xbridge__"]
    x = torch.from_numpy(X.copy()).requires_grad_()
    y = f(x, 7)
    for k in range(2 * xbridge.functions.rules.MAX_RULES):
        f(x, k)
    assert len(function.rules) == xbridge.functions.rules.MAX_RULES
    same(
        torch.autograd.grad(y.sum(), x)[0], 7 + 0 * X
    )  # its rule was dropped from the table, and not from its graph


REPLACED = """
import torch, xbridge
from types import ModuleType
from xbridge.backends import torch as ours

f, x = xbridge.aligned(backend="numpy")(lambda x: x + 1), torch.ones(2, requires_grad=True)
f(x)
other = ModuleType("other")
vars(other).update({**vars(ours), "__name__": "other", "follows": lambda x: False})
xbridge.register_backend("torch", other, roots=("torch",), replace=True)
assert not f(x).requires_grad
"""


@pytest.mark.slow
def test_aligned__call_of_a_backend_that_was_replaced_is_examined_again() -> None:
    """A call of a backend that was replaced is examined again."""
    assert run(REPLACED) == (0, [])


def test_aligned__function_that_was_called_again_is_collected() -> None:
    """What is kept of a call does not keep its function."""
    fn = aligned(backend="jax")(lambda x: 2 * x)
    kept = weakref.ref(vars(fn)["__xbridge__"])
    for x in (torch.from_numpy(X), torch.from_numpy(X).requires_grad_()) * 2:
        same(fn(x).detach(), 2 * X)
    del fn, x
    gc.collect()
    assert kept() is None


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


@pytest.mark.slow
def test_aligned__process_ends_after_calls_of_every_kind() -> None:
    """A process ends after calls of every kind."""
    code = """
    import warnings
    warnings.simplefilter("ignore")
    import jax, numpy as np, torch
    from xbridge import aligned
    f = aligned(backend="torch")(torch.sin)
    jax.jit(jax.grad(lambda x: f(x).sum()))(jax.numpy.ones(2)).block_until_ready()
    g = aligned(backend="jax")(jax.numpy.sin)
    g(torch.ones(2, requires_grad=True)).sum().backward()
    print("done")
    """
    assert run(code, limit=120) == (0, ["done"])


def test_aligned__torch_is_not_imported_for_jax_nor_jax_for_torch_nor_rules_for_a_plain_call() -> None:
    """torch is not imported for JAX nor JAX for torch, nor rules for a plain call."""
    code = """
    import sys, numpy as np, torch, xbridge
    f = xbridge.aligned(backend="numpy")(lambda x: x + 1)
    f(torch.ones(2))
    print("jax" in sys.modules, "xbridge.functions.torch.calls" in sys.modules)
    """
    assert forked(code) == (0, ["False False"])


def test_aligned__compiled_functions_of_one_name_in_two_processes_are_two_functions() -> None:
    """Compiled functions of one name in two processes are two functions."""
    keys = {vars(aligned(backend="numpy")(np.sin))["__xbridge__"].key for _ in range(2)}
    assert len(keys) == 2


def test_aligned__keeps_few_classes_of_containers_alive() -> None:
    """What is known of a class is forgotten when many other classes have followed."""
    f = aligned(backend="torch")(lambda tree: tree)
    kept = []
    for _ in range(300):
        cls = make_dataclass("Pair", ["x"])
        kept.append(weakref.ref(cls))
        assert type(f(cls(X)).x) is np.ndarray
    del cls
    gc.collect()
    assert sum(ref() is not None for ref in kept) < 200
