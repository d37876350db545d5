"""Every function's library with every caller's: eager, transformed and compiled, against NumPy's numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from crossed import FUNCTIONS, PAIRS, X, curve, in_library, same, slope, total, value, wide

import xbridge

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")
"""By torch itself, in `linearize`."""

wide64 = pytest.fixture(autouse=True)(wide)

BATCH = np.stack([X, X + 1, X + 2])


def of_torch(*, arrays: bool = True) -> dict[str, tuple[Callable[..., Any], Any]]:
    """What torch does with a function -> what comes of it."""
    import torch

    given: tuple[Any, Any] = (torch.from_numpy(X), torch.from_numpy(BATCH)) if arrays else (X, BATCH)
    x, batch = given
    func = torch.func

    def backward(f: Callable[..., Any]) -> Any:
        leaf = x.clone().requires_grad_()
        total(f)(leaf).backward()
        return leaf.grad

    def twice(f: Callable[..., Any]) -> Any:
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(total(f)(leaf), leaf, create_graph=True)
        return torch.autograd.grad(first.sum(), leaf)[0]

    return {
        "plain": (lambda f: f(x), value(X)),
        "nothing recorded": (torch.no_grad()(lambda f: f(x.clone().requires_grad_())), value(X)),
        "inference": (torch.inference_mode()(lambda f: f(x.clone())), value(X)),
        "backward": (backward, slope(X)),
        "twice": (twice, curve(X)),
        "grad": (lambda f: func.grad(total(f))(x), slope(X)),
        "grad of grad": (lambda f: func.grad(total(func.grad(total(f))))(x), curve(X)),
        "jvp": (lambda f: func.jvp(f, (x,), (x,))[1], X * slope(X)),
        "vjp": (lambda f: func.vjp(f, x)[1](x)[0], X * slope(X)),
        "jacrev": (lambda f: func.jacrev(f)(x), np.diag(slope(X))),
        "jacfwd": (lambda f: func.jacfwd(f)(x), np.diag(slope(X))),
        "hessian": (lambda f: func.hessian(total(f))(x), np.diag(curve(X))),
        "vmap": (lambda f: torch.vmap(f, in_dims=1)(batch), value(BATCH.T)),
        "vmap of vmap": (lambda f: torch.vmap(torch.vmap(f), in_dims=1)(batch), value(BATCH.T)),
        "vmap of nothing": (lambda f: torch.vmap(f)(batch[:0]), BATCH[:0]),
        "vmap of grad": (lambda f: torch.vmap(func.grad(total(f)))(batch), slope(BATCH)),
        "grad of vmap": (lambda f: func.grad(total(torch.vmap(f, in_dims=1)))(batch), slope(BATCH)),
        "linearize": (lambda f: func.linearize(f, x)[1](x), X * slope(X)),
        "meta": (lambda f: torch.zeros(f(x.to("meta")).shape), np.zeros(X.shape)),
    }


def of_jax(*, arrays: bool = True) -> dict[str, tuple[Callable[..., Any], Any]]:
    """What JAX does with a function -> what comes of it."""
    import jax
    import jax.numpy as jnp

    given: tuple[Any, Any] = (jnp.asarray(X), jnp.asarray(BATCH)) if arrays else (X, BATCH)
    x, batch = given

    def scanned(f: Callable[..., Any]) -> Any:
        return jax.jit(jax.grad(lambda x: jax.lax.scan(lambda c, v: (c, f(v)), 0, x)[1].sum()))(x)

    return {
        "plain": (lambda f: f(x), value(X)),
        "jit": (lambda f: jax.jit(f)(x), value(X)),
        "grad": (lambda f: jax.grad(total(f))(x), slope(X)),
        "jit of grad": (lambda f: jax.jit(jax.grad(total(f)))(x), slope(X)),
        "grad of jit": (lambda f: jax.grad(total(jax.jit(f)))(x), slope(X)),
        "grad of grad": (lambda f: jax.grad(total(jax.grad(total(f))))(x), curve(X)),
        "hessian": (lambda f: jax.jit(jax.hessian(total(f)))(x), np.diag(curve(X))),
        "jvp of jvp": (
            lambda f: jax.jvp(lambda v: jax.jvp(f, (v,), (x,))[1], (x,), (x,))[1],
            X * X * curve(X),
        ),
        "jvp": (lambda f: jax.jvp(f, (x,), (x,))[1], X * slope(X)),
        "jit of jvp": (lambda f: jax.jit(lambda v: jax.jvp(f, (v,), (x,))[1])(x), X * slope(X)),
        "vjp": (lambda f: jax.vjp(f, x)[1](x)[0], X * slope(X)),
        "jacrev": (lambda f: jax.jacrev(f)(x), np.diag(slope(X))),
        "jacfwd": (lambda f: jax.jit(jax.jacfwd(f))(x), np.diag(slope(X))),
        "vmap": (lambda f: jax.vmap(f, in_axes=1)(batch), value(BATCH.T)),
        "vmap of vmap": (lambda f: jax.vmap(jax.vmap(f), in_axes=1)(batch), value(BATCH.T)),
        "jit of vmap of grad": (lambda f: jax.jit(jax.vmap(jax.grad(total(f))))(batch), slope(BATCH)),
        "grad of vmap": (lambda f: jax.grad(total(jax.vmap(f, in_axes=1)))(batch), slope(BATCH)),
        "scan": (scanned, slope(X)),
        "cond": (lambda f: jax.jit(lambda v: jax.lax.cond(v[0] > 0, f, lambda w: w, v))(x), value(X)),
        "checkpoint": (lambda f: jax.jit(jax.grad(total(jax.checkpoint(f))))(x), slope(X)),
        "linearize": (lambda f: jax.linearize(f, x)[1](x), X * slope(X)),
        "transpose": (lambda f: jax.linear_transpose(jax.linearize(f, x)[1], x)(x)[0], X * slope(X)),
        "shapes": (lambda f: np.zeros(jax.eval_shape(f, x).shape), np.zeros(X.shape)),
    }


TRANSFORMS = {"torch": of_torch, "jax": of_jax}
WAYS = [
    pytest.param(function, caller, way, id=f"{function} in {caller}: {way}")
    for function, caller in PAIRS
    for way in TRANSFORMS[caller](arrays=False)  # an array would start JAX while the tests are collected
]


@pytest.mark.parametrize(("function", "caller", "way"), WAYS)
def test_aligned__transform_of_a_function_of_another_library_gives_numpys_numbers(
    function: str, caller: str, way: str
) -> None:
    """A transform of a function of another library gives NumPy's numbers."""
    do, expected = TRANSFORMS[caller]()[way]
    result = do(in_library(function))
    assert xbridge.backend_of(result) in (caller, "numpy")
    same(result, expected)


@pytest.mark.parametrize("caller", [caller for function, caller in PAIRS if function == "numpy"])
def test_aligned__function_without_a_signature_is_called_for_each_example(caller: str) -> None:
    """A function without a signature is called for each example."""
    f = in_library("numpy", signature=None, result=np.empty_like)
    for way in ("vmap", "grad of vmap", "vmap of vmap"):
        do, expected = TRANSFORMS[caller]()[way]
        same(do(f), expected)


@pytest.mark.parametrize("caller", [name for name in ("numpy", "dask") if xbridge.is_available(name)])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_aligned__library_without_transforms_calls_a_function_of_another(function: str, caller: str) -> None:
    """A library without transforms calls a function of another."""
    x = xbridge.asarray(X, backend=caller)
    for f in (in_library(function), in_library(function, signature="()->()")):
        made = f(x)
        assert xbridge.backend_of(made) == caller
        same(made.compute(scheduler="sync") if caller == "dask" else made, value(X))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["eager", "aot_eager"])
@pytest.mark.parametrize("function", [function for function, caller in PAIRS if caller == "torch"])
def test_aligned__torch_compiles_a_call_into_one_graph(function: str, mode: str) -> None:
    """torch compiles a call into one graph."""
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    f = in_library(function)
    compiled = torch.compile(lambda x: f(x * 2).cos() + 1, fullgraph=True, backend=mode)
    for a in (X, BATCH):  # another shape
        x = torch.from_numpy(a).requires_grad_()
        same(compiled(x), np.cos(value(2 * a)) + 1)
        (found,) = torch.autograd.grad(compiled(x).sum(), x)
        same(found, -np.sin(value(2 * a)) * slope(2 * a) * 2)
