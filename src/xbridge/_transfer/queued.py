"""Transfers of small arrays without a thread: the copy is queued on the device, and awaited by the handle."""

from __future__ import annotations

from os import getpid
from typing import TYPE_CHECKING, Any

from xbridge._core.locks import lock
from xbridge._engine.batch import find_packings
from xbridge._plan.options import read_options
from xbridge.errors import XBridgeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array, ArrayFn, Backend, Pending
    from xbridge._plan.options import CallOptions
    from xbridge.tree.batch import TreeArrays

_FAILURES = (RuntimeError, XBridgeError)
"""What `Pending` raises if the device fails, or has no memory left. Other errors are bugs of a backend."""


class Queued:
    """A batch that a device is copying, with the methods of a future that `Transfer` calls.

    Parameters
    ----------
    pending : Pending
        The arrays of the batch.
    restore : callable
        Returns the batch with other arrays.
    again : callable
        Converts the batch in the calling thread, if the device fails, so that the error names the array.
    """

    def __init__(
        self, pending: Pending, restore: Callable[[list[Array]], Any], again: Callable[[], Any]
    ) -> None:
        self._process, self._lock = getpid(), lock()
        self._work: tuple[Pending, Callable[[list[Array]], Any], Callable[[], Any]] | None
        self._work = pending, restore, again
        self._made: Any = None

    def done(self) -> bool:
        """Return True if `result` would return at once. A forked child cannot ask the device."""
        work = self._work
        return work is None or (self._process == getpid() and work[0].done())

    def exception(self) -> None:
        """Return None, because errors are raised by `result` only."""

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the batch and return it, the same object in each call."""
        work = self._work
        if work:
            pending, restore, again = work
            arrived = _has_arrived(pending, timeout)
            if arrived is False:
                raise TimeoutError
            with self._lock:
                if self._work:
                    taken = _take_batch(pending, restore) if arrived else None
                    self._made = again() if taken is None else taken[0]
                    self._work = None  # the handle does not keep the arrays that were given
        return self._made


def _has_arrived(pending: Pending, timeout: float | None) -> bool | None:
    """Wait. Return False if the time is over, and None if the device failed."""
    try:
        return pending.wait(timeout)
    except _FAILURES:
        return None


def _take_batch(pending: Pending, restore: Callable[[list[Array]], Any]) -> list[Any] | None:
    """Return the batch in a list, or None if the device failed."""
    try:
        return [restore(pending.result())]
    except _FAILURES:
        return None


def begin_queued(
    batch: TreeArrays, target: Backend, place: Device, options: CallOptions, convert: ArrayFn
) -> Queued | None:
    """Begin the transfer of a batch of small arrays of one type; return None if a thread has to do it."""
    ways = find_packings(target, batch.kinds, read_options((target,), options), place)
    if len(ways) != 1 or batch.kinds != {ways[0].kind}:
        return None
    arrays: list[Array] = []

    def note(xs: list[Array]) -> list[Array]:
        arrays.extend(xs)
        return xs

    batch.map(note)
    pending = ways[0].begin(arrays)
    if pending is None:
        return None
    return Queued(pending, lambda made: batch.map(lambda _: made), lambda: batch.map(convert))
