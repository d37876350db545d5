"""Locks that survive a fork of the process, and counts for each thread.

A child process has one thread, and the locks of its parent in their state at the fork. A lock that another
thread held would never be released in the child. So the child resets all locks of the package except those
that its own thread holds. The data that they guard is valid after every single step of a change, or is
rebuilt in the child.
"""

from __future__ import annotations

import os
from _thread import RLock, _local
from _weakref import ref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")

_known: set[ref[Any]] = set()
"""The locks, conditions and events to reset in a child, by weak references, which remove themselves."""


def lock() -> RLock:
    """Make a reentrant lock, because garbage collection may run code that acquires it in the same thread."""
    return reset_in_child(RLock())


def reset_in_child(thing: T) -> T:
    """Have a lock, a condition or an event reset in every child of a fork, and return it."""
    _known.add(ref(thing, _known.discard))
    return thing


def in_child(hint: Callable[[], object]) -> None:
    """Have a function called in every child of a fork, after all locks are reset."""
    getattr(os, "register_at_fork", dict)(after_in_child=hint)  # Windows has no `fork`: `dict` does nothing


class Nesting(_local):
    """Counts, for each thread, the blocks that it is in. As a generator, it would take five times as long."""

    depth: int = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


def _free() -> None:
    """Reset all locks except those that this thread holds and will release itself."""
    for each in _known.copy():  # a garbage collection during the loop would change the set
        thing = each()
        if thing is not None and not getattr(thing, "_is_owned", bool)():
            thing._at_fork_reinit()  # noqa: SLF001 -- the standard library does so too


in_child(_free)
