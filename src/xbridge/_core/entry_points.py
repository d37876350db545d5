"""Marks of the functions that users call to convert, so that the calling line can be found."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

codes: dict[int, CodeType] = {}
"""The code objects of the marked functions, by id: a compiler makes code objects that have no hash."""


def entry_point(fn: F) -> F:
    """Mark a function, and return it unchanged."""
    codes[id(fn.__code__)] = fn.__code__
    return fn
