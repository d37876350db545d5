"""One function in every library, and what NumPy says of it: `f(x) = x sin(x)`."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from inside import get_backend

import xbridge
from xbridge.functions.libraries import function_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

aligned: Any = xbridge.aligned

X = np.linspace(0.5, 2, 4)


def value(x: Any) -> Any:
    return x * np.sin(x)


def slope(x: Any) -> Any:
    return np.sin(x) + x * np.cos(x)


def curve(x: Any) -> Any:
    return 2 * np.cos(x) - x * np.sin(x)


@dataclass
class Model:
    """A class with fields, which is a tree."""

    w: Any
    name: Any = "linear"


FUNCTIONS = [
    name
    for name in xbridge.known_backends()
    if xbridge.is_available(name) and function_of(get_backend(name), "rule") is not None
]
"""The libraries whose functions have derivatives."""

CALLERS = [
    name
    for name in xbridge.known_backends()
    if xbridge.is_available(name) and get_backend(name).follows is not None
]
"""The libraries with transforms."""

PAIRS = [(function, caller) for caller in CALLERS for function in FUNCTIONS if function != caller]


def in_library(name: str, **more: Any) -> Callable[[Any], Any]:
    """The function, written for a library."""
    if name == "numpy":
        return by_hand(**more)

    def f(x: Any) -> Any:
        return x * get_backend(name).namespace(x).sin(x)

    made: Callable[[Any], Any] = aligned(backend=name, **more)(f)
    return made


def by_hand(**more: Any) -> Callable[[Any], Any]:
    """The function for NumPy, with derivatives up to the second."""
    again = aligned(
        backend="numpy",
        vjp=lambda c, o, g, y, x: (c * slope(x), np.zeros_like(y), c * g * curve(x)),
        jvp=lambda t, o, g, y, x: _or_zero(t[0]) * slope(x) + g * curve(x) * _or_zero(t[2]),
    )(lambda g, y, x: g * slope(x))
    forwards = aligned(
        backend="numpy",
        vjp=lambda c, o, t, y, x: ((c * slope(x),), np.zeros_like(y), c * t[0] * curve(x)),
        jvp=lambda u, o, t, y, x: _or_zero(u[0][0]) * slope(x) + t[0] * curve(x) * _or_zero(u[2]),
    )(lambda t, y, x: t[0] * slope(x))
    keywords = {"backend": "numpy", "signature": "()->()", "vjp": again, "jvp": forwards, **more}
    made: Callable[[Any], Any] = aligned(**keywords)(value)
    return made


def _or_zero(tangent: Any) -> Any:
    """A tangent, or zero for an argument that does not move."""
    return 0.0 if tangent is None else tangent


in_torch: Callable[[Callable[..., Any]], Callable[..., Any]] = aligned(backend="torch")

transforms = pytest.mark.parametrize(
    "transform", [lambda f: f, lambda f: import_module("jax").jit(f)], ids=["eager", "jit"]
)


def leaf(x: Any = X) -> Any:
    """A tensor that requires grad."""
    return import_module("torch").from_numpy(x.copy()).requires_grad_()


def array(x: Any = X) -> Any:
    """An array of JAX."""
    return import_module("jax.numpy").asarray(x)


def double(module: Any) -> Any:
    """A module of torch in double precision."""
    return module.double()


def autograd_function(fn: Any, backward: Any, **attributes: Any) -> Any:
    """An autograd function of torch that keeps its argument for `backward(ctx, g)`."""
    methods = {
        "forward": fn,
        "setup_context": lambda ctx, inputs, _: ctx.save_for_backward(*inputs),
        "backward": backward,
    }
    body = {name: staticmethod(method) for name, method in methods.items()}
    return type("Custom", (import_module("torch").autograd.Function,), {**body, **attributes}).apply  # type: ignore[attr-defined] # torch is Any here


def total(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function with the sum of the results of another."""
    return lambda x: f(x).sum()


IN_JAX: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "grad": lambda f: import_module("jax").grad(total(f)),
    "jit(grad)": lambda f: import_module("jax").jit(import_module("jax").grad(total(f))),
    "jvp": lambda f: lambda x: import_module("jax").jvp(f, (x,), (x,))[1],
    "vmap(grad)": lambda f: (
        lambda x: import_module("jax").vmap(import_module("jax").grad(total(f)))(x[None])[0]
    ),
}
"""Derivatives of a function of an array that JAX takes in one of its transforms."""


def wide() -> Iterator[None]:
    """Let JAX have 64 bits, if it is there."""
    with ExitStack() as stack:
        if xbridge.is_available("jax"):
            import jax

            stack.enter_context(jax.enable_x64(True))
        yield


def host(x: Any) -> Any:
    """The numbers of an array, read by its own library."""
    if hasattr(x, "detach"):
        return x.detach().resolve_conj().resolve_neg().numpy()
    return np.asarray(x)


def same(x: Any, expected: Any, tolerance: float = 1e-9) -> None:
    """Assert that an array has the shape and the numbers of another."""
    assert host(x).shape == host(expected).shape
    np.testing.assert_allclose(host(x), host(expected), rtol=tolerance, atol=tolerance)


def refused(kind: type[Exception], do: Callable[[], object], *words: str) -> str:
    """Assert that a call raises an error of ours, or one of a library around it, and return all messages."""
    jax: Any = pytest.importorskip("jax")
    with pytest.raises(Exception) as caught:
        jax.block_until_ready(do())
    error: BaseException | None = caught.value
    text = ""
    while error is not None:
        text += f"{type(error).__name__}: {error}\n"
        error = error.__cause__ or error.__context__
    assert re.search(rf"\b{kind.__name__}[:(]", text)
    for word in words:
        assert word in text
    return text
