"""Calls within what torch and JAX build around a function: checkpoints, hooks, loops, rules of the user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from crossed import X, aligned, autograd_function, by_hand, curve, in_library, leaf, same, slope, value

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
jnp = jax.numpy

if TYPE_CHECKING:
    from collections.abc import Callable

IN_TORCH = pytest.mark.parametrize("f", [by_hand(), in_library("jax")], ids=["numpy", "jax"])
IN_JAX = pytest.mark.parametrize("f", [by_hand(), in_library("torch")], ids=["numpy", "torch"])


def gradient(f: Callable[[Any], Any], x: Any) -> Any:
    return torch.autograd.grad(f(x).sum(), x)[0]


def test_aligned__function_calls_functions_of_other_libraries_three_deep() -> None:
    """A function calls functions of other libraries three deep."""
    inner = aligned(backend="torch")(lambda x: by_hand()(x) * 2)
    outer = aligned(backend="jax")(lambda x: inner(x) * 3)
    same(gradient(outer, leaf()), 6 * slope(X))
    same(torch.func.grad(lambda x: outer(x).sum())(torch.from_numpy(X)), 6 * slope(X))
    x = leaf()
    (first,) = torch.autograd.grad(outer(x).sum(), x, create_graph=True)
    same(torch.autograd.grad(first.sum(), x)[0], 6 * curve(X))
    same(jax.jit(jax.grad(lambda x: inner(x).sum()))(jnp.asarray(X)), 2 * slope(X))


@IN_TORCH
def test_aligned__torch_keeps_what_a_call_needs_wherever_it_is_asked_to(f: Any, tmp_path: Any) -> None:
    """torch keeps what a call needs wherever it is asked to."""
    from torch.utils.checkpoint import checkpoint

    same(gradient(lambda x: checkpoint(f, x, use_reentrant=False), leaf()), slope(X))
    x = leaf()
    checkpoint(f, x, use_reentrant=True).sum().backward()
    same(x.grad, slope(X))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().numpy().copy(), torch.from_numpy):
        y = f(x)
    same(torch.autograd.grad(y.sum(), x)[0], slope(X))
    with torch.autograd.set_detect_anomaly(True):
        same(gradient(f, leaf()), slope(X))


@IN_JAX
def test_aligned__call_is_part_of_rules_that_the_user_gives_to_jax(f: Any) -> None:
    """A call is part of rules that the user gives to JAX."""

    @jax.custom_vjp  # type: ignore[untyped-decorator] # theirs
    def twice(x: Any) -> Any:
        return f(x) * 2

    twice.defvjp(lambda x: (f(x) * 2, x), lambda x, g: (g * 2 * jax.grad(lambda v: f(v).sum())(x),))

    @jax.custom_jvp  # type: ignore[untyped-decorator] # theirs
    def once(x: Any) -> Any:
        return f(x)

    once.defjvp(lambda xs, ts: (f(*xs), jax.jvp(f, xs, ts)[1]))
    x = jnp.asarray(X)
    same(jax.jit(jax.grad(lambda x: twice(x).sum()))(x), 2 * slope(X))
    same(jax.grad(lambda x: once(x).sum())(x), slope(X))
    same(jax.jvp(once, (x,), (x,))[1], X * slope(X))


@IN_JAX
def test_aligned__jax_compiles_a_call_ahead_of_time(f: Any) -> None:
    """JAX compiles a call ahead of time, with an argument that it may overwrite, and checks it."""
    x = jnp.asarray(X)
    same(jax.jit(f).lower(x).compile()(x), value(X))
    same(jax.jit(f, donate_argnums=0)(x + 0), value(X))
    with jax.disable_jit():
        same(jax.jit(jax.grad(lambda x: f(x).sum()))(x), slope(X))
    with jax.checking_leaks():
        same(jax.jit(jax.grad(lambda x: f(x).sum()))(x), slope(X))


def test_aligned__derivatives_of_the_users_own_are_used() -> None:
    """Derivatives that the user gives are used."""

    # not the derivative, so that it shows
    cube = autograd_function(lambda x: x**3, lambda ctx, g: 5 * ctx.saved_tensors[0] * g)
    cube = aligned(backend="torch")(cube)
    same(jax.jit(jax.grad(lambda x: cube(x).sum()))(jnp.asarray(X)), 5 * X)
    custom = jax.custom_vjp(lambda x: x**3)
    custom.defvjp(lambda x: (x**3, x), lambda x, g: (5 * x * g,))
    same(gradient(aligned(backend="jax")(custom), leaf()), 5 * X)
    inside = aligned(backend="torch")(torch.func.grad(lambda v: (v**4).sum()))
    same(jax.jit(jax.grad(lambda x: inside(x).sum()))(jnp.asarray(X)), 12 * X**2)


@pytest.mark.parametrize("function", ["numpy", "torch", "jax"])
def test_aligned__error_of_a_function_is_the_callers_and_the_next_call_works(function: str) -> None:
    """An error of a function reaches the caller, and the next call works."""
    fail = [True]

    def f(x: Any) -> Any:
        if fail:
            raise KeyError("mine")
        return in_library(function)(x)

    given = {"vjp": lambda g, y, x: g * slope(x)} if function == "numpy" else {}
    call = aligned(backend=function, **given)(f)
    x = leaf() if function != "torch" else jnp.asarray(X)

    def run() -> Any:
        return gradient(call, x) if function != "torch" else jax.grad(lambda x: call(x).sum())(x)

    with pytest.raises(KeyError, match="mine"):
        run()
    fail.clear()
    same(run(), slope(X))
