"""Subclasses of `torch.Tensor`, as other libraries write them."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch


class Plain(torch.Tensor):
    """Adds nothing."""


class Endless(torch.Tensor):
    """Dispatches to itself."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # torch's stub has no cls
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


class Refuses(torch.Tensor):
    """Will not be asked anything."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        message = "no"
        raise RuntimeError(message)


class Wrapper(torch.Tensor):
    """Wraps another tensor, and has no memory of its own."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.wrapped = inner

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # torch's stub has no cls
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*(arg.wrapped if isinstance(arg, cls) else arg for arg in args), **(kwargs or {}))
