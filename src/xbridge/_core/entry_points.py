"""Mark the functions that users call to convert, so that the line that called one can be found."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

codes: set[CodeType] = set()
"""The code of every marked function."""


def entry_point(fn: F) -> F:
    """Mark a function, which stays as it is."""
    codes.add(fn.__code__)
    return fn
