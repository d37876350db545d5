"""Decorators that say how a compiler, which traces programs line by line, has to treat a function.

A compiler follows the calls of xbridge, and needs help with functions of three kinds:

- It cannot follow a lock, an import or a new string type. `constant_in_traces` marks a function that it calls
  once while it traces, and whose result it keeps.
- It compiles a program again as soon as anything changes that the program read. The cache of calls changes
  with each first call of a kind, anywhere in the process. So `traced_as` replaces a function that reads such
  a table by one that does not.
- Traced code has no frames. `outside_traces` marks a function that looks at them: the compiler interrupts the
  program for it.

The marks are attributes of the function that `torch.compile` reads. They are named here and not in
`backends/torch`, because the first call of xbridge may be a traced one, before that is imported.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    F = TypeVar("F", bound=Callable[..., object])


def constant_in_traces(fn: F) -> F:
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


def none_in_traces(fn: F) -> F:
    """Mark a function that returns None in traced code, as a look-up in the cache of calls does on a miss."""
    return traced_as(_return_none)(fn)


def _return_none(*_: object, **__: object) -> None:
    pass


def outside_traces(fn: F) -> F:
    """Mark a function without arrays, for which a compiler interrupts the traced program."""
    vars(fn)["_torchdynamo_disable"] = True
    return fn


@traced_as(lambda: True)
def is_traced() -> bool:
    """Return True in traced code, where the compiler replaces this function by one that returns True."""
    return False


symbolic_numbers: dict[type, str] = {}
"""The types by which a compiler represents unknown numbers, each with the kind, ``int`` or ``float``."""
