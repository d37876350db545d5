"""Every function's library with every caller's, eager and transformed, and random programs of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pytest
from crossed import FUNCTIONS, PAIRS, X, curve, in_library, same, slope, total, value
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from random_programs import cases, check, check_compiled, check_gradients

import xbridge

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")
"""By torch itself, in `linearize`."""

BATCH = np.stack([X, X + 1, X + 2])


Ways: TypeAlias = "dict[str, tuple[Callable[..., Any], Any]]"


def of_both(func: Any, x: Any, batch: Any) -> Ways:
    """What `jax` and `torch.func` do with a function -> what comes of it."""
    return {
        "plain": (lambda f: f(x), value(X)),
        "grad": (lambda f: func.grad(total(f))(x), slope(X)),
        "grad of grad": (lambda f: func.grad(total(func.grad(total(f))))(x), curve(X)),
        "jvp": (lambda f: func.jvp(f, (x,), (x,))[1], X * slope(X)),
        "jvp of jvp": (
            lambda f: func.jvp(lambda v: func.jvp(f, (v,), (x,))[1], (x,), (x,))[1],
            X * X * curve(X),
        ),
        "vjp": (lambda f: func.vjp(f, x)[1](x)[0], X * slope(X)),
        "jacrev": (lambda f: func.jacrev(f)(x), np.diag(slope(X))),
        "jacfwd": (lambda f: func.jacfwd(f)(x), np.diag(slope(X))),
        "hessian": (lambda f: func.hessian(total(f))(x), np.diag(curve(X))),
        "vmap": (lambda f: func.vmap(f, 1)(batch), value(BATCH.T)),
        "vmap of vmap": (lambda f: func.vmap(func.vmap(f), 1)(batch), value(BATCH.T)),
        "vmap of grad": (lambda f: func.vmap(func.grad(total(f)))(batch), slope(BATCH)),
        "grad of vmap": (lambda f: func.grad(total(func.vmap(f, 1)))(batch), slope(BATCH)),
        "linearize": (lambda f: func.linearize(f, x)[1](x), X * slope(X)),
    }


def of_torch(*, arrays: bool = True) -> Ways:
    import torch

    given: tuple[Any, Any] = (torch.from_numpy(X), torch.from_numpy(BATCH)) if arrays else (X, BATCH)
    x, batch = given

    def backward(f: Callable[..., Any]) -> Any:
        leaf = x.clone().requires_grad_()
        total(f)(leaf).backward()
        return leaf.grad

    def twice(f: Callable[..., Any]) -> Any:
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(total(f)(leaf), leaf, create_graph=True)
        return torch.autograd.grad(first.sum(), leaf)[0]

    return {
        **of_both(torch.func, x, batch),
        "nothing recorded": (torch.no_grad()(lambda f: f(x.clone().requires_grad_())), value(X)),
        "inference": (torch.inference_mode()(lambda f: f(x.clone())), value(X)),
        "backward": (backward, slope(X)),
        "twice": (twice, curve(X)),
        "meta": (lambda f: torch.zeros(f(x.to("meta")).shape), np.zeros(X.shape)),
    }


def of_jax(*, arrays: bool = True) -> Ways:
    import jax
    import jax.numpy as jnp

    given: tuple[Any, Any] = (jnp.asarray(X), jnp.asarray(BATCH)) if arrays else (X, BATCH)
    x, batch = given

    def scanned(f: Callable[..., Any]) -> Any:
        return jax.jit(jax.grad(lambda x: jax.lax.scan(lambda c, v: (c, f(v)), 0, x)[1].sum()))(x)

    return {
        **of_both(jax, x, batch),
        "jit": (lambda f: jax.jit(f)(x), value(X)),
        "jit of grad": (lambda f: jax.jit(jax.grad(total(f)))(x), slope(X)),
        "grad of jit": (lambda f: jax.grad(total(jax.jit(f)))(x), slope(X)),
        "jit of hessian": (lambda f: jax.jit(jax.hessian(total(f)))(x), np.diag(curve(X))),
        "jit of jvp": (lambda f: jax.jit(lambda v: jax.jvp(f, (v,), (x,))[1])(x), X * slope(X)),
        "jit of vmap of grad": (lambda f: jax.jit(jax.vmap(jax.grad(total(f))))(batch), slope(BATCH)),
        "scan": (scanned, slope(X)),
        "cond": (lambda f: jax.jit(lambda v: jax.lax.cond(v[0] > 0, f, lambda w: w, v))(x), value(X)),
        "checkpoint": (lambda f: jax.jit(jax.grad(total(jax.checkpoint(f))))(x), slope(X)),
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


# -- random programs; `make hunt` draws others ---------------------------------------------------------------
few = settings(max_examples=settings().max_examples // 5, suppress_health_check=[HealthCheck.too_slow])
callers = pytest.mark.parametrize("caller", [*filter(xbridge.is_available, TRANSFORMS)])


@few
@given(st.data())
@callers
def test_aligned__random_programs_give_what_one_library_gives(caller: str, data: st.DataObject) -> None:
    """Values and derivatives of a program of several libraries are those of the program of one."""
    check(data.draw(cases(caller)))


@pytest.mark.slow  # the checks run a program for each direction, and JAX compiles each
@settings(few, max_examples=50)
@given(st.data())
@callers
def test_aligned__random_functions_pass_the_checks_of_derivatives(caller: str, data: st.DataObject) -> None:
    """`gradcheck` and `gradgradcheck` of torch, and `check_grads` of JAX up to the second order."""
    check_gradients(data.draw(cases(caller)))


@pytest.mark.slow  # it compiles and exports each
@settings(few, phases=[Phase.explicit, Phase.generate])
@given(st.data())
def test_aligned__random_programs_are_compiled(data: st.DataObject) -> None:
    """A compiled program gives the value and the gradient of eager code, for any sizes."""
    pytest.importorskip("torch")
    check_compiled(data.draw(cases("torch")))
