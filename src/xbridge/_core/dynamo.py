"""Say to whoever traces a program which functions are pure.

A compiler that meets xbridge inside a traced program follows it line by line. Where it cannot follow (a
lock, an import, a new string type), it may call a marked function once and keep the answer.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    F = TypeVar("F", bound=Callable[..., object])


def constant(fn: F) -> F:
    """Mark a function whose answer depends on nothing but its arguments."""
    vars(fn)["_dynamo_marked_constant"] = True
    return fn
