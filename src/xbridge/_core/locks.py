"""The locks of the package, made in one place because each has to survive a fork.

A child process has one thread, and the locks of its parent in their state at the fork. A lock that another
thread held would never be released in the child. So each child frees all locks except those that its own
thread holds. Guarded data is consistent after every step that changes it, or is rebuilt in the child.
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
"""The locks, conditions and events to free in a child. A weak reference ends with its object."""


def lock() -> RLock:
    """Make a reentrant lock. A garbage collection can run code that acquires it again in the same thread."""
    return freed(RLock())


def freed(thing: T) -> T:
    """Free a lock, a condition or an event in every child of a fork."""
    _known.add(ref(thing, _known.discard))
    return thing


def in_child(hint: Callable[[], object]) -> None:
    """Call a function in every child of a fork, after all locks are freed. A system may have no `fork`."""
    getattr(os, "register_at_fork", dict)(after_in_child=hint)


def _free() -> None:
    """Free all locks except those of this thread, which releases them itself."""
    for each in _known.copy():  # a garbage collection during the loop would change the set
        thing = each()
        if thing is not None and not getattr(thing, "_is_owned", bool)():
            thing._at_fork_reinit()  # noqa: SLF001 -- the standard library frees its own locks so


in_child(_free)
