"""Transfers of small arrays without a thread: the copy is queued on the device, and awaited by the handle."""

from __future__ import annotations

from os import getpid
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from xbridge._core.locks import lock
from xbridge._engine.batch import find_packings
from xbridge._plan.options import read_options
from xbridge.errors import Chained, DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array, Backend, Pending
    from xbridge._plan.options import CallOptions
    from xbridge.tree.batch import TreeArrays


POLL_SECONDS = 5e-4
"""Seconds between two queries of an event. Torch has no wait for an event with a time limit."""


class Queued:
    """A batch that a device is copying, with the methods of a future that `Transfer` calls.

    Parameters
    ----------
    pending : Pending
        The event of the copy, and the function that returns the arrays of the batch.
    restore : callable
        Returns the batch with other arrays.
    """

    def __init__(self, pending: Pending, restore: Callable[[list[Array]], Any]) -> None:
        self._process, self._lock = getpid(), lock()
        self._work: tuple[Pending, Callable[[list[Array]], Any]] | None = pending, restore
        self._made: Any = None

    def done(self) -> bool:
        """Return True if `result` would return at once. A forked child cannot ask the device."""
        work = self._work
        return work is None or (self._process == getpid() and bool(work[0][0].query()))

    def exception(self) -> None:
        """Return None, because errors are raised by `result` only."""

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the batch and return it, the same object in each call."""
        work = self._work
        if work:
            (event, arrays), restore = work
            with Chained(_device_failure):
                has_arrived = _wait_for(event, timeout)
            if not has_arrived:
                raise TimeoutError
            with self._lock, Chained(_device_failure):
                if self._work:
                    self._made = restore(arrays())
                    self._work = None  # the handle does not keep the arrays that were given
        return self._made


def _wait_for(event: Any, seconds: float | None) -> bool:
    """Wait for an event, at most this long. Return True if it has passed."""
    if seconds is None:
        event.synchronize()
        return True
    end = monotonic() + seconds
    while not event.query():
        if monotonic() >= end:
            return False
        sleep(POLL_SECONDS)
    return True


def _device_failure(error: Exception) -> DeviceError:
    reason = f"the device failed with {error!r}"
    return DeviceError.build("finish a transfer", reason, "xbridge.tree.to_backend")


def begin_queued(batch: TreeArrays, target: Backend, place: Device, options: CallOptions) -> Queued | None:
    """Begin the transfer of a batch of small arrays of one type; return None if a thread has to do it."""
    ways = find_packings(target, batch.kinds, read_options((target,), options), place)
    if len(ways) != 1 or batch.kinds != {ways[0].kind}:
        return None
    pending = ways[0].begin(list({id(x): x for x in batch.leaves}.values()))  # each once, as in `map`
    return None if pending is None else Queued(pending, lambda made: batch.map(lambda _: made))
