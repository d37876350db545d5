"""Rules live as long as their function, in threads and forks too, and what a gradient needs as long as it."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from crossed import Model, X, aligned, in_library, same, slope, total, value
from fresh import forked
from versions import needs_newer_jax

from xbridge.functions.programs import programs
from xbridge.functions.run import functions

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

from xbridge.functions.torch import rules  # noqa: E402 -- only where the library is

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
    """A function is dropped with its rules and its programs, and no table has a place for it any more."""
    gc.collect()
    before = len(functions), len(programs)
    fn = MAKE[name]()
    gone = weakref.ref(fn)
    f = aligned(backend=name, **(GIVEN if name == "numpy" else {}))(fn)
    USES[caller][use](f)
    del fn, f
    gc.collect()
    assert gone() is None
    assert (len(functions), len(programs)) == before


def test_aligned__arguments_are_dropped_after_the_call() -> None:
    """A function keeps no array of a container that it was called with, although it knows its structure."""
    f = aligned(backend="jax")(lambda tree: tree.w * 2)
    x = torch.from_numpy(X.copy()).requires_grad_()
    gone = weakref.ref(x)
    f(Model(x)).sum().backward()
    del x
    gc.collect()
    assert gone() is None


def test_aligned__threads_call_one_function_at_a_time_and_each_its_own_graph() -> None:
    """Threads call one function at a time and each its own graph."""
    f, g = in_library("numpy"), in_library("jax")
    h = jax.jit(jax.grad(lambda x: in_library("torch")(x).sum()))

    def work(shift: int) -> None:
        with jax.enable_x64(True):
            for _ in range(10):
                for call in (f, g):
                    x = torch.from_numpy(X + shift).requires_grad_()
                    same(call(x), value(X + shift))
                    same(torch.autograd.grad(call(x).sum(), x)[0], slope(X + shift))
                same(h(jax.numpy.asarray(X + shift)), slope(X + shift))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


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


# -- one run gives the value and what its gradient needs -----------------------------------------------------
class Counted:
    """A function of torch that counts its runs, and shows which of its tensors live."""

    def __init__(self) -> None:
        self.runs = 0
        self.made: list[weakref.ref[Any]] = []

    def __call__(self, x: Any) -> Any:
        self.runs += 1
        kept = torch.sin(x)
        self.made.append(weakref.ref(kept))
        return x * kept

    @property
    def living(self) -> int:
        gc.collect()
        return sum(x() is not None for x in self.made)


@pytest.fixture
def counted() -> tuple[Counted, Any]:
    fn = Counted()
    f = aligned(backend="torch")(fn)
    jax.grad(lambda x: f(x).sum())(jax.numpy.asarray(X))
    fn.runs = 0
    return fn, f


def looped(f: Any) -> Any:
    return lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, 3)[0].sum()


WAYS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "grad": (1, lambda f: jax.grad(total(f))),
    "value_and_grad": (1, lambda f: lambda x: jax.value_and_grad(total(f))(x)[1]),
    "jit(grad)": (1, lambda f: jax.jit(jax.grad(total(f)))),
    "grad(jit)": (1, lambda f: jax.grad(jax.jit(total(f)))),
    "grad(vmap)": (1, lambda f: lambda x: jax.grad(lambda x: jax.vmap(f)(x).sum())(x[None])[0]),
    "grad(scan)": (3, lambda f: jax.grad(looped(f))),
    "jit(grad(scan))": (3, lambda f: jax.jit(jax.grad(looped(f)))),
    "grad(cond)": (1, lambda f: jax.grad(lambda x: jax.lax.cond(x[0] > 0, f, jax.numpy.sin, x).sum())),
    "vmap(grad)": (1, lambda f: lambda x: jax.vmap(jax.grad(total(f)))(x[None])[0]),
    "grad(checkpoint)": (1, lambda f: jax.grad(jax.checkpoint(total(f)))),
    "jacrev": (1, jax.jacrev),
    "jit(jacrev)": (1, lambda f: jax.jit(jax.jacrev(f))),
    "jvp": (2, lambda f: lambda x: jax.jvp(f, (x,), (x,))[1]),
    "linearize": (2, lambda f: lambda x: jax.linearize(f, x)[1](x)),
}


@needs_newer_jax
def test_record__a_gradient_without_a_value_is_one_callback(counted: tuple[Counted, Any]) -> None:
    """A compiled program that needs only the gradient leaves it once to torch, and else twice."""
    _, f = counted
    for transform, times in ((jax.grad, 1), (jax.value_and_grad, 2)):
        program = jax.jit(transform(total(f))).lower(jax.numpy.asarray(X)).as_text()
        assert program.count("custom_call") == times


@needs_newer_jax
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_record__runs_the_function_once(counted: tuple[Counted, Any], way: str) -> None:
    """Reverse mode runs a function of torch once, also in batches. Forward mode runs it again."""
    fn, f = counted
    times, transform = WAYS[way]
    run, pure = transform(f), transform(lambda x: x * jax.numpy.sin(x))
    run(jax.numpy.asarray(X))
    fn.runs = 0
    for _ in range(2):
        same(run(jax.numpy.asarray(X)), pure(jax.numpy.asarray(X)))
    assert fn.runs == 2 * times
    assert fn.living == 0


def test_record__has_a_number_that_is_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero means that there is no record."""
    monkeypatch.setattr(rules, "_numbers", iter([2**31 - 1, 2**31, 2**32]))
    records = rules.SavedGraphs()
    graphs: list[Any] = [object(), object(), object()]
    numbers = [records.keep(graph) for graph in graphs]
    assert all(0 < number < 2**31 for number in numbers)
    assert list(map(records.find, numbers)) == graphs


@needs_newer_jax
@pytest.mark.slow
@pytest.mark.parametrize(("transform", "again"), [(lambda f: f, 0), (jax.jit, 2)], ids=["eager", "jit"])
def test_record__has_several_derivatives_of_one_value(
    counted: tuple[Counted, Any], transform: Callable[[Any], Any], again: int
) -> None:
    """A pullback may be called several times. What a compiled program kept is used once."""
    fn, f = counted
    _, pull = jax.vjp(transform(f), jax.numpy.asarray(X))
    fn.runs = 0
    for factor in (1, 2, 3):
        same(pull(jax.numpy.full(4, float(factor)))[0], factor * slope(X))
    assert fn.runs == again
    del pull
    assert fn.living == 0


@needs_newer_jax
@pytest.mark.slow
def test_record__keeps_nothing_for_a_derivative_that_no_one_asks_for(counted: tuple[Counted, Any]) -> None:
    """A compiled program without the derivative keeps no graph, and a pullback keeps one while it lives."""
    fn, f = counted
    x = jax.numpy.asarray(X)
    jax.block_until_ready(jax.jit(lambda x: jax.value_and_grad(total(f))(x)[0])(x))
    assert fn.living == 0
    fn.runs = 0
    same(jax.jit(lambda x: (jax.vjp(f, x), 2 * x)[1])(x), 2 * X)
    assert fn.runs == 0
    y, pull = jax.vjp(f, x)
    assert fn.living == 1
    del pull
    assert fn.living == 0
    same(y, value(X))
    run = jax.jit(f)
    for _ in range(40):
        jax.vjp(run, x)
    assert fn.living == rules.MAX_UNUSED  # a program does not say when its results die


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_record__function_that_leaves_torch_has_a_value_and_no_gradient(
    transform: Callable[[Any], Any],
) -> None:
    """A run that cannot be recorded is repeated on arrays without a graph: its gradient may not be needed."""
    f = transform(aligned(backend="torch")(lambda x: torch.from_numpy(np.sin(x.numpy()))))
    y, pull = jax.vjp(f, jax.numpy.asarray(X))
    same(y, np.sin(X))
    with pytest.raises(Exception, match="Tensor that requires grad"):
        jax.block_until_ready(pull(y))
