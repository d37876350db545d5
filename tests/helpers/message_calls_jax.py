"""What the calls of `tests/api/messages.txt` name, if they are of functions of NumPy, torch and JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import xbridge

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
da = pytest.importorskip("dask.array")
jnp = jax.numpy
pytest.importorskip("array_api_strict")

if TYPE_CHECKING:
    from collections.abc import Callable

aligned: Any = xbridge.aligned

A = np.arange(3.0, dtype="f4")
F = torch.ones(3)
J = jnp.ones(3)


def sine(x: Any) -> Any:
    return np.sin(x)


def product(x: Any, y: Any) -> Any:
    return x * y


def absolute(x: Any) -> Any:
    return x if x.sum() > 0 else -x


def identity(x: Any) -> Any:
    return x


class Layer:
    """A class, which is not a function."""


def followed() -> Any:
    return torch.ones(3, requires_grad=True)


def gradient(fn: Callable[..., Any], *more: Any) -> object:
    x = followed()
    return torch.autograd.grad(fn(x, *more).sum(), x)


def second(fn: Callable[..., Any]) -> object:
    x = followed()
    (first,) = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
    return torch.autograd.grad(first.sum(), x)


def forward(fn: Callable[..., Any]) -> object:
    return torch.func.jvp(fn, (F,), (F,))


def of_numpy(fn: Callable[..., Any] = sine, **options: Any) -> Callable[..., Any]:
    return aligned(backend="numpy", **options)(fn)  # type: ignore[no-any-return] # as `aligned`


def of_jax(fn: Callable[..., Any] = identity, **options: Any) -> Callable[..., Any]:
    return aligned(backend="jax", **options)(fn)  # type: ignore[no-any-return] # likewise


def of_torch(fn: Callable[..., Any] = identity, **options: Any) -> Callable[..., Any]:
    return aligned(backend="torch", **options)(fn)  # type: ignore[no-any-return] # likewise


def in_callback(fn: Callable[..., Any]) -> object:
    """Call a function as if compiled code of JAX waited for it."""
    from xbridge.functions.jax.rules import callback

    with callback:
        return fn(A)


def in_jit(fn: Callable[..., Any]) -> object:
    return jax.jit(fn)(J)
