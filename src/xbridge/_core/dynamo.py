"""Decorators that tell torch's compiler (dynamo) how to treat a function in a program that it traces.

The compiler follows the calls of xbridge line by line, and three kinds of functions need help:

- It cannot follow a lock, an import or a new string type. `trace_time` marks a function that it calls once
  while it traces, and whose result it keeps.
- It compiles a program again as soon as anything changes that the program read. The cache of calls changes
  with each first call of a kind, anywhere in the process. So `traced_as` replaces a function that reads such
  a table by one that does not.
- Traced code has no frames. `not_traced` marks a function that looks at them: the compiler interrupts the
  program for it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    F = TypeVar("F", bound=Callable[..., object])


def trace_time(fn: F) -> F:
    """Mark a function that runs while a program is traced. Its result must depend on its arguments alone."""
    vars(fn)["_dynamo_marked_constant"] = True
    return fn


def traced_as(other: Callable[..., object]) -> Callable[[F], F]:
    """Mark a function for which a compiler traces another one, with the same meaning but without tables.

    Do not mark public functions: `functools.wraps` would copy the mark to a user's own function around them.
    """

    def mark(fn: F) -> F:
        vars(fn)["_torchdynamo_inline"] = other
        return fn

    return mark


def no_result(*_: object, **__: object) -> None:
    """Return None, as a look-up in the cache of calls does on a miss. For `traced_as`."""


def not_traced(fn: F) -> F:
    """Mark a function without arrays, for which a compiler interrupts the traced program."""
    vars(fn)["_torchdynamo_disable"] = True
    return fn


@traced_as(lambda: True)
def is_compiling() -> bool:
    """Return True in traced code, where the compiler replaces this function by one that returns True."""
    return False


symbols: dict[type, str] = {}
"""The types by which a compiler represents unknown numbers, each with the kind, ``int`` or ``float``."""
