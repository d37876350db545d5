"""`torch.emu`: streams, and the other functions of the device, under the names that `torch.cuda` has.

Work stays in the queue of a stream until the program waits for it.

A real device runs its work at some time between the call and the end of a wait, so code without a wait is
right by luck. Here work runs as late as possible: nothing runs before the program waits, every time and
without a clock.

A thread releases the lock of a stream while it waits for another stream, and a stream waits only for earlier
work. So threads that wait for streams that wait for each other do not deadlock.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

_KIND = int(torch._C._autograd.DeviceType.PrivateUse1)  # type: ignore[call-overload] # an enum of pybind
_streams: list[Stream] = []
_local = threading.local()


class _Work:
    """A function to run, and the event that it runs after."""

    __slots__ = ("after", "done", "run")

    def __init__(self, run: Callable[[], object], after: Event | None = None) -> None:
        self.run, self.after, self.done = run, after, False


class Event:
    """A point in the work of a stream: `torch.emu.Event`, with the methods of `torch.cuda.Event`.

    Parameters
    ----------
    enable_timing, blocking, interprocess
        Accepted as by `torch.cuda.Event`, and ignored: there is no clock.
    """

    def __init__(
        self, enable_timing: object = None, blocking: object = None, interprocess: object = None
    ) -> None:
        self._stream: Stream | None = None
        self._last: _Work | None = None
        self._asked = False

    def record(self, stream: Stream | None = None) -> None:
        """Record the event: it now stands for all work of the stream so far."""
        self._stream = stream or current_stream()
        self._last, self._asked = self._stream._pending(-1), False

    def query(self) -> bool:
        """Return True if all recorded work is done. The second query of an event waits for it."""
        if self._asked:
            self.synchronize()
        self._asked = True
        return self._last is None or self._last.done

    def synchronize(self) -> None:
        """Block the host until all recorded work is done."""
        stream, last = self._stream, self._last
        while stream and last and not last.done and (work := stream._pending(0)):
            stream._finish(work)

    def elapsed_time(self, end_event: Event) -> float:
        """Return 0: there is no clock."""
        return 0.0

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait for the recorded work, without blocking the host."""
        (stream or current_stream()).wait_event(self)


class Stream(torch.Stream):
    """A queue of work: `torch.emu.Stream`, with the methods of `torch.cuda.Stream`.

    In a `with` block it is the thread's current stream.

    Parameters
    ----------
    device, priority
        Accepted as by `torch.cuda.Stream`, and ignored: there is one device.
    """

    _queue: deque[_Work]
    _turn: threading.RLock
    _asked: Event

    def __new__(cls, device: object = None, priority: int = 0) -> Self:
        place = {"stream_id": len(_streams), "device_index": 0, "device_type": _KIND}
        new = super().__new__(cls, **place)
        new._queue, new._turn, new._asked = deque(), threading.RLock(), Event()
        _streams.append(new)  # never removed: pending work must run without an owner
        return new

    def __init__(self, device: object = None, priority: int = 0) -> None:
        """Accept the arguments of `__new__`."""

    def __enter__(self) -> Self:
        _entered().append(self)
        return self

    def __exit__(self, *raised: object) -> None:
        _entered().pop()

    def query(self) -> bool:
        """Return True if all work is done. A second query waits for the work before the first."""
        self._asked.synchronize()
        self._asked = self.record_event()
        return self._asked.query()

    def synchronize(self) -> None:
        """Wait on the host until all work is done."""
        self.record_event().synchronize()

    def record_event(self, event: Event | None = None) -> Event:  # type: ignore[override] # torch's own events are C++
        """Record all work so far in the given event, or in a new one."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:  # type: ignore[override]
        """Run later work after the work that the event means now."""
        copied = Event()
        copied._stream, copied._last = event._stream, event._last
        self._queue.append(_Work(bool, copied))  # which only waits

    def wait_stream(self, stream: Stream) -> None:  # type: ignore[override]
        """Run later work after all work of another stream so far."""
        self.wait_event(stream.record_event())

    def do(self, run: Callable[[], object]) -> None:
        """Queue a function after all earlier work."""
        self._queue.append(_Work(run))

    def _pending(self, index: int) -> _Work | None:
        """Return the first or the last pending work; None if all is done."""
        try:
            return self._queue[index]
        except IndexError:
            return None

    def _finish(self, work: _Work) -> None:
        """Run the first pending work, unless another thread has run it."""
        if work.after:
            work.after.synchronize()
        with self._turn:
            if work.done:
                return
            try:
                with torch._C._DisableTorchDispatch():  # modes of the waiting thread do not apply
                    work.run()
            finally:
                work.done = True
                self._queue.popleft()


def current_stream(device: object = None) -> Stream:
    """Return the current stream of this thread: of the innermost `with`, or else the default."""
    entered = _entered()
    return entered[-1] if entered else default_stream()


def default_stream(device: object = None) -> Stream:
    """Return the stream of threads that have not entered another one."""
    return _streams[0]


def stream(stream: Stream) -> Stream:
    """Make a stream the current one inside a `with` block."""
    return stream


def set_stream(stream: Stream) -> None:
    """Make a stream the current one of this thread until the end of the enclosing `with` block."""
    _entered()[-1:] = [stream]


def synchronize(device: object = None) -> None:
    """Wait on the host until the work of all streams is done."""
    for each in tuple(_streams):
        each.synchronize()


def _entered() -> list[Stream]:
    """Return the streams that this thread has entered, the innermost last."""
    if not hasattr(_local, "streams"):
        _local.streams = []
    entered: list[Stream] = _local.streams
    return entered


def _reset_locks() -> None:
    """Release in the child of a fork what other threads of its parent held."""
    for each in _streams:
        each._turn = threading.RLock()


getattr(os, "register_at_fork", dict)(after_in_child=_reset_locks)  # Windows has no `fork`


# -- the only device -----------------------------------------------------------------------------


def device_count() -> int:
    """Return 1: torch's Python hooks support one device."""
    return 1


def current_device() -> int:
    """Return 0, the number of the only device."""
    return 0


@contextmanager
def device(device: object) -> Iterator[None]:
    """Do nothing inside a `with` block: the only device is always current."""
    yield


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes of `torch.autocast`, which torch reads for checkpoints on the host too."""
    return [torch.float16, torch.bfloat16]


def is_available() -> bool:
    """Return True: an installed device is available."""
    return True


def is_initialized() -> bool:
    """Return True: there is nothing to initialize."""
    return True


def manual_seed_all(seed: int) -> None:
    """Do nothing: random numbers come from the generator of the host."""


def set_device(device: object) -> None:
    """Do nothing: the only device is current."""


def _is_in_bad_fork() -> bool:
    """Return False: a forked process has a copy of the device's memory."""
    return False
