"""Every lock of the package, made in one place, because each has to survive a fork.

A child process has one thread, and the locks of its parent as they were. A lock that another thread held
would never be released there. So each child gets all locks free but those that its own thread holds.
What a lock guards is changed in steps after each of which it is consistent, or is derived anew in the child.
"""

from __future__ import annotations

import os
from _thread import RLock
from _weakref import ref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")

_known: set[ref[Any]] = set()
"""What is to be free in a child, for as long as it is used."""


def lock() -> RLock:
    """Make a lock. Its holder may take it again, as code does that a garbage collection runs."""
    return freed(RLock())


def freed(thing: T) -> T:
    """Have a lock, a condition or an event free in every child of a fork."""
    _known.add(ref(thing, _known.discard))
    return thing


def in_child(hint: Callable[[], object]) -> None:
    """Call a function in every child of a fork, once all locks are free. Without `fork` there is no child."""
    getattr(os, "register_at_fork", dict)(after_in_child=hint)


def _free() -> None:
    """Free all locks but those of this thread, which will release them itself."""
    for each in _known.copy():  # before which, not in which, a garbage collection may take some away
        thing = each()
        if thing is not None and not getattr(thing, "_is_owned", bool)():
            thing._at_fork_reinit()  # noqa: SLF001 -- what the standard library calls on its own locks


in_child(_free)
