"""Records of runs, by number: what a run of a function has left for its derivative.

A library such as JAX passes nothing but arrays from a call to its derivative, so it passes the number of the
record in an array. A compiler may copy that array, drop it or use it twice. So no number is given twice, and
if a record is gone, the function runs again.
"""

from __future__ import annotations

from itertools import count
from random import getrandbits
from typing import Generic, TypeVar

from xbridge.extend import locks

T = TypeVar("T")

_BASE = 2**31
"""A number is passed in two halves, because a library may have integers of 32 bits only."""

_lock = locks.lock()
_numbers = count(1 + getrandbits(60))  # random, so that numbers of another process are unknown here

_MAX_UNUSED = 32
"""The most records of one function that are kept for a single use."""

NO_RECORD = (0, 0)
"""The number that means no record."""

NO_VALUE = -1
"""The version in the mark of a derivative whose value nobody uses, so that nothing can contradict it."""


class SavedGraphs(Generic[T]):
    """The records of a function, which are dropped with it."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], T] = {}
        self._once: dict[tuple[int, int], T] = {}

    def keep(self, record: T, *, once: bool) -> tuple[int, int]:
        """Store a record and return its number.

        With `once`, its first use drops it, because a compiled program does not tell when it drops the
        number. If too many of these were never used, the oldest is dropped.
        """
        number = divmod(next(_numbers), _BASE)
        with _lock:
            (self._once if once else self._kept)[number] = record
            if len(self._once) > _MAX_UNUSED:
                self.drop(next(iter(self._once)))
        return number

    def find(self, number: tuple[int, int]) -> T | None:
        """Return the record of a number, or None if it is gone."""
        with _lock:
            found = self._once.pop(number, None)
        return self._kept.get(number) if found is None else found

    def drop(self, number: tuple[int, int]) -> None:
        """Drop a record, if it is still there."""
        self._kept.pop(number, None)
        self._once.pop(number, None)
