"""Streams: work waits in its queue until somebody waits for it.

A real device does its work at some time between the call and the moment when somebody has waited for it,
and code that forgets to wait is right by luck. Here everything is done as late as that allows: nothing runs
before somebody waits, so what nobody waited for has not been done, every time and without a clock. `delay`
adds somebody in the background who waits for every copy, so many seconds after it was asked for.

Nobody holds a turn while he waits for another stream, and a stream waits only for what was asked before:
threads that wait for streams that wait for each other do not lock up.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING

import torch

from xbridge._core.locks import freed, lock

if TYPE_CHECKING:
    from _thread import RLock
    from collections.abc import Callable, Iterator
    from typing import Self, TypeAlias

    Asked: TypeAlias = SimpleQueue[tuple[float, "Event"] | None]

_KIND = int(torch._C._autograd.DeviceType.PrivateUse1)  # type: ignore[call-overload] # an enum of pybind
_streams: list[Stream] = []
_delays: list[tuple[float, Asked]] = []
_local = threading.local()


class _Work:
    """Something to do, and what has to be done first."""

    __slots__ = ("after", "done", "run")

    def __init__(self, run: Callable[[], object], after: Event | None = None) -> None:
        self.run, self.after, self.done = run, after, False


class Event:
    """A place in the work of a stream: `torch.emu.Event`, with the methods of `torch.cuda.Event`.

    Parameters
    ----------
    enable_timing, blocking, interprocess
        Taken as `torch.cuda.Event` takes them, and of no consequence: there is no clock here.
    """

    def __init__(
        self, enable_timing: object = None, blocking: object = None, interprocess: object = None
    ) -> None:
        self._stream: Stream | None = None
        self._last: _Work | None = None
        self._asked = False

    def record(self, stream: Stream | None = None) -> None:
        """Mean, from now on, all that was asked of the stream so far."""
        self._stream = stream or current_stream()
        self._last, self._asked = self._stream._under_way(-1), False

    def query(self) -> bool:
        """Whether all of it is done. To ask once is not to wait; whoever asks again finds it done."""
        if self._asked:
            self.synchronize()
        self._asked = True
        return self._last is None or self._last.done

    def synchronize(self) -> None:
        """Wait on the host until all of it is done."""
        stream, last = self._stream, self._last
        while stream and last and not last.done and (work := stream._under_way(0)):
            stream._finish(work)

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to another: none, without a clock."""
        return 0.0

    def wait(self, stream: Stream | None = None) -> None:
        """Have a stream wait until all of it is done; the host goes on."""
        (stream or current_stream()).wait_event(self)


class Stream(torch.Stream):
    """Work that is done in order: `torch.emu.Stream`, with the methods of `torch.cuda.Stream`.

    In a `with` block it is the thread's current stream.

    Parameters
    ----------
    device, priority
        Taken as `torch.cuda.Stream` takes them, and of no consequence: there is one device.
    """

    _queue: deque[_Work]
    _turn: RLock
    _asked: Event

    def __new__(cls, device: object = None, priority: int = 0) -> Self:
        place = {"stream_id": len(_streams), "device_index": 0, "device_type": _KIND}
        new = super().__new__(cls, **place)
        new._queue, new._turn, new._asked = deque(), lock(), Event()
        _streams.append(new)  # for good: work under way needs no owner
        return new

    def __init__(self, device: object = None, priority: int = 0) -> None:
        """Take what `__new__` takes."""

    def __enter__(self) -> Self:
        _entered().append(self)
        return self

    def __exit__(self, *raised: object) -> None:
        _entered().pop()

    def query(self) -> bool:
        """Whether all work is done. To ask once is not to wait; whoever asks until it is gets there."""
        self._asked.synchronize()
        self._asked = self.record_event()
        return self._asked.query()

    def synchronize(self) -> None:
        """Wait on the host until all work is done."""
        self.record_event().synchronize()

    def record_event(self, event: Event | None = None) -> Event:  # type: ignore[override] # torch's own events are C++
        """An event that means all work so far: the one given, or a new one."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:  # type: ignore[override]
        """Do what comes from now on after what the event means now."""
        meant = Event()
        meant._stream, meant._last = event._stream, event._last
        self._queue.append(_Work(_nothing, meant))

    def wait_stream(self, stream: Stream) -> None:  # type: ignore[override]
        """Do what comes from now on after all work of another stream so far."""
        self.wait_event(stream.record_event())

    def do(self, run: Callable[[], object]) -> None:
        """Have something done after all that was asked before."""
        self._queue.append(_Work(run))

    def copy(self, run: Callable[[], object]) -> None:
        """Have a copy done: like all work, but for the delay."""
        self.do(run)
        if _delays:
            seconds, asked = _delays[-1]
            asked.put((time.monotonic() + seconds, self.record_event()))

    def _under_way(self, index: int) -> _Work | None:
        """The first or the last piece of work that is not done; None when all is."""
        try:
            return self._queue[index]
        except IndexError:
            return None

    def _finish(self, work: _Work) -> None:
        """Do the first piece of work, unless another thread has done it."""
        if work.after:
            work.after.synchronize()
        with self._turn:
            if work.done:
                return
            try:
                with torch._C._DisableTorchDispatch():  # modes of whoever happens to wait are not meant
                    work.run()
            finally:
                work.done = True
                self._queue.popleft()


def current_stream(device: object = None) -> Stream:
    """The stream on which this thread's work is done: of the innermost `with`, or else the default."""
    entered = _entered()
    return entered[-1] if entered else default_stream()


def default_stream(device: object = None) -> Stream:
    """The stream of all threads that have entered no other."""
    return _streams[0]


def stream(stream: Stream) -> Stream:
    """Make a stream the current one inside a `with` block."""
    return stream


def set_stream(stream: Stream) -> None:
    """Make a stream the current one of this thread, until the `with` block is left in which it stands."""
    _entered()[-1:] = [stream]


def synchronize(device: object = None) -> None:
    """Wait on the host until the work of all streams is done."""
    for each in tuple(_streams):
        each.synchronize()


@contextmanager
def delay(seconds: float) -> Iterator[None]:
    """Have copies done by themselves, in the background, so many seconds after they were asked for.

    Without it they are done when somebody waits for them, and never if nobody does. Whoever waits still waits
    for no clock: the delay is the time that is left for mistakes, so a long one costs nothing. With a copy is
    done whatever it comes after on its stream. At the end of the block everything is done.

    Parameters
    ----------
    seconds
        From the call to the copy; 0 starts it at once.

    Examples
    --------
    >>> import torch
    >>> from xbridge.testing import emulated
    >>> emulated.install()
    >>> with emulated.delay(60):
    ...     host = torch.ones(3, device="emu").to("cpu", non_blocking=True)
    ...     host.tolist()  # read too early
    [nan, nan, nan]
    >>> host.tolist()
    [1.0, 1.0, 1.0]
    """
    asked: Asked = SimpleQueue()
    over = freed(threading.Event())
    background = threading.Thread(target=_wait_for_each, args=(asked, over), daemon=True)
    background.start()
    _delays.append((seconds, asked))
    try:
        yield
    finally:
        _delays.pop()
        over.set()
        asked.put(None)
        background.join()
        synchronize()


def _wait_for_each(asked: Asked, over: threading.Event) -> None:
    """Wait for each event when it is due, or as soon as the delay is over."""
    while copy := asked.get():
        due, event = copy
        over.wait(max(0.0, due - time.monotonic()))
        event.synchronize()


def _entered() -> list[Stream]:
    """The streams this thread has entered, the innermost last."""
    if not hasattr(_local, "streams"):
        _local.streams = []
    entered: list[Stream] = _local.streams
    return entered


def _nothing() -> None:
    """The work of waiting."""
