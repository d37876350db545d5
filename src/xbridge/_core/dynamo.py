"""Marks of functions, for compilers that trace a program.

A compiler follows the calls of xbridge in a traced program line by line. It cannot follow a lock, an import
or a new string type. It calls a function that is marked as constant once, and keeps the result.

A compiler also notes all that the program read, and compiles it again as soon as that changes. The tables of
repeated calls and of types change with each first call of a kind, anywhere in the process. So a compiler
traces another function in place of one that reads a table.

A compiler has no frames, so it leaves the program for a function that is not traced.
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


def traced_as(other: Callable[..., object]) -> Callable[[F], F]:
    """Mark a function for which a compiler traces another one, which has the same meaning without tables.

    `functools.wraps` copies the mark to a user's wrapper, so functions that users call are not marked.
    """

    def mark(fn: F) -> F:
        vars(fn)["_torchdynamo_inline"] = other
        return fn

    return mark


def no_result(*_: object, **__: object) -> None:
    """Return None, as a function that looks for a repeated call does if there was none."""


def not_traced(fn: F) -> F:
    """Mark a function without arrays that a compiler calls as it is, between two traced programs."""
    vars(fn)["_torchdynamo_disable"] = True
    return fn


@traced_as(lambda: True)
def is_compiling() -> bool:
    """Return True in code that a compiler follows."""
    return False


symbols: dict[type, str] = {}
"""The types of a compiler's symbols for numbers, and the kind of the number: ``int`` or ``float``."""
