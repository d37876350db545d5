"""Runs that wait for their derivative: what a run of a function computed, by a number.

A library that follows calls by their arrays keeps a number beside the results. The number is data: a compiler
may copy it, drop it or use it twice. So a record that is gone means that the function runs again, and no
number is used twice.
"""

from __future__ import annotations

from itertools import count
from random import getrandbits
from typing import Generic, NamedTuple, TypeVar

from xbridge._core.locks import lock

T = TypeVar("T")

_BASE = 2**31
"""Numbers have two halves, because a library may have integers of 32 bits only."""

_lock = lock()
_numbers = count(1 + getrandbits(60))  # a number of another process stands for nothing here

_MAX_UNUSED = 32
"""Records that wait for their only use, of one function."""

NO_RECORD = (0, 0)
"""Stands for no record."""


class _Entry(NamedTuple, Generic[T]):
    record: T
    once: bool


class Records(Generic[T]):
    """The records of a function, which live as long as it at most."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, int], _Entry[T]] = {}
        self._once: dict[tuple[int, int], None] = {}

    def keep(self, record: T, *, once: bool) -> tuple[int, int]:
        """Return the number of a record.

        With `once`, it is dropped with its first use: a compiled program does not say when a number dies. The
        oldest of many that were never used goes first.
        """
        number = divmod(next(_numbers), _BASE)
        with _lock:
            self._entries[number] = _Entry(record, once)
            if once:
                self._once[number] = None
                if len(self._once) > _MAX_UNUSED:
                    self.drop(next(iter(self._once)))
        return number

    def find(self, number: tuple[int, int]) -> T | None:
        """Return the record of a number, or None if it is gone."""
        found = self._entries.get(number)
        if found is None:
            return None
        if found.once:
            with _lock:
                self.drop(number)
        return found.record

    def drop(self, number: tuple[int, int]) -> None:
        """Forget a record."""
        self._entries.pop(number, None)
        self._once.pop(number, None)
