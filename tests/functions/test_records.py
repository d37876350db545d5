"""One run of a function gives the value and what its gradient needs, which lives as long as that."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np
import pytest
from crossed import X, aligned, same, slope, total, value, wide
from versions import needs_newer_jax

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

from xbridge.functions.torch import rules  # noqa: E402 -- only where the library is

if TYPE_CHECKING:
    from collections.abc import Callable

jnp = jax.numpy
wide64 = pytest.fixture(autouse=True)(wide)


class Counted:
    """A function of torch that counts its runs, and shows which of its tensors live."""

    def __init__(self) -> None:
        self.runs = 0
        self.made: list[ref[Any]] = []

    def __call__(self, x: Any) -> Any:
        self.runs += 1
        kept = torch.sin(x)
        self.made.append(ref(kept))
        return x * kept

    @property
    def living(self) -> int:
        gc.collect()
        return sum(x() is not None for x in self.made)


@pytest.fixture
def counted() -> tuple[Counted, Any]:
    fn = Counted()
    f = aligned(backend="torch")(fn)
    jax.grad(lambda x: f(x).sum())(jnp.asarray(X))
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
    "grad(cond)": (1, lambda f: jax.grad(lambda x: jax.lax.cond(x[0] > 0, f, jnp.sin, x).sum())),
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
        program = jax.jit(transform(total(f))).lower(jnp.asarray(X)).as_text()
        assert program.count("custom_call") == times


@needs_newer_jax
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_record__runs_the_function_once(counted: tuple[Counted, Any], way: str) -> None:
    """Reverse mode runs a function of torch once, also in batches. Forward mode runs it again."""
    fn, f = counted
    times, transform = WAYS[way]
    run, pure = transform(f), transform(lambda x: x * jnp.sin(x))
    run(jnp.asarray(X))
    fn.runs = 0
    for _ in range(2):
        same(run(jnp.asarray(X)), pure(jnp.asarray(X)))
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
    _, pull = jax.vjp(transform(f), jnp.asarray(X))
    fn.runs = 0
    for factor in (1, 2, 3):
        same(pull(jnp.full(4, float(factor)))[0], factor * slope(X))
    assert fn.runs == again
    del pull
    assert fn.living == 0


@needs_newer_jax
@pytest.mark.slow
def test_record__keeps_nothing_for_a_derivative_that_no_one_asks_for(counted: tuple[Counted, Any]) -> None:
    """A compiled program without the derivative keeps no graph, and a pullback keeps one while it lives."""
    fn, f = counted
    x = jnp.asarray(X)
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
    y, pull = jax.vjp(f, jnp.asarray(X))
    same(y, np.sin(X))
    with pytest.raises(Exception, match="Tensor that requires grad"):
        jax.block_until_ready(pull(y))
