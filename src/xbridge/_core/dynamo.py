"""Marks of pure functions, for compilers that trace a program.

A compiler follows the calls of xbridge in a traced program line by line. It cannot follow a lock, an import
or a new string type. It calls a marked function once, and keeps the result.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    F = TypeVar("F", bound=Callable[..., object])


def constant(fn: F) -> F:
    """Mark a function whose result depends only on its arguments."""
    vars(fn)["_dynamo_marked_constant"] = True
    return fn


def is_compiling() -> bool:
    """Return True in code that a compiler follows. The backend of the compiler replaces this function."""
    return False


symbols: dict[type, str] = {}
"""The types of a compiler's symbols for numbers, and the kind of the number: ``int`` or ``float``."""
