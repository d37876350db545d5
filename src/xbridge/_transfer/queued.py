"""Transfers of small arrays without a thread: the copy is queued on the device, and awaited by the handle."""

from __future__ import annotations

from os import getpid
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


class Queued:
    """A batch that a device is copying, with the methods of a future that `Transfer` calls.

    Parameters
    ----------
    pending : Pending
        The arrays of the batch.
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
        return work is None or (self._process == getpid() and work[0].done())

    def exception(self) -> None:
        """Return None, because errors are raised by `result` only."""

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the batch and return it, the same object in each call."""
        work = self._work
        if work:
            pending, restore = work
            with Chained(_device_failure):
                arrived = pending.wait(timeout)
            if not arrived:
                raise TimeoutError
            with self._lock, Chained(_device_failure):
                if self._work:
                    self._made = restore(pending.result())
                    self._work = None  # the handle does not keep the arrays that were given
        return self._made


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
