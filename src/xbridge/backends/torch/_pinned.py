"""Pinned buffers, through which arrays move between the host and a device.

A device reads and writes pinned memory at line rate, and other host memory several times slower. But pinning
memory takes longer than a copy. So a few buffers are pinned when they are first needed, and the caller's
memory is never pinned.

A buffer has one user at a time, who has a loan of it. The next user gets it after its last copy is done, not
after that was queued. So nobody fills a buffer that is still being read, or reads one that is being filled.

Ctrl-C may come between any two instructions. So no counter says how many buffers are lent: a buffer is lent
while its loan is alive.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from operator import attrgetter
from os import getpid
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import torch

from xbridge._core.dtypes import DTYPES
from xbridge._core.locks import lock
from xbridge._core.protocol import HostArray
from xbridge.errors import DeviceError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

SETTING = "XBRIDGE_PINNED_MIB"
"""The environment variable for the memory to pin for each device, in MiB; 0 turns staging off."""

_BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
ITEMS = {dtype: _BYTES[dtype.itemsize] for word in DTYPES if (dtype := getattr(torch, word, None))}
"""For each dtype, one of the same size that NumPy has too, under which the bytes are copied."""

LEAST = 1 << 22
"""The least bytes of a single array for which buffers are tried. Below it, `Tensor.to` is as fast."""

FUSED = 1 << 24
"""The least bytes of an array that is cast or copied on the host piece by piece, as it moves."""

HANDLES = 2
"""How many buffers unfinished transfers may keep at a time. The others are left for calls that wait."""

LONGEST_WAIT = 1.0
"""Seconds after which a wait for a buffer begins anew. Python can miss a Ctrl-C that comes as it begins."""

_is_ready = attrgetter("is_ready")


class Sizes(NamedTuple):
    """Sizes of the pinned buffers, and of the arrays that use them."""

    chunk: int
    """Bytes of a buffer."""
    buffers: int
    """The number of buffers."""
    least: int
    """The least bytes of an array that may use the buffers."""
    fused: int
    """The least bytes of an array that uses the buffers while NumPy casts or copies it."""
    timed: bool = True
    """True if the times of real calls decide between buffers and `Tensor.to`."""


_sizes: Sizes | None = None
"""The result of `sizes`, after the setting was read."""


def sizes() -> Sizes:
    """Return the sizes. The environment variable is read on first use; with 0, no array uses buffers."""
    global _sizes  # noqa: PLW0603 -- one for the process
    if _sizes is None:
        _sizes = _read_setting()
    return _sizes


def _read_setting() -> Sizes:
    setting = os.environ.get(SETTING, "").strip() or "64"
    if not setting.isdecimal():
        reason = "it is a whole number of MiB for each device"
        raise OptionError.build(f"read {SETTING}={setting!r}", reason, f"{SETTING}=64")
    buffers = min(8, os.cpu_count() or 1)
    share = (int(setting) << 20) // buffers
    if not share:
        return Sizes(0, 0, sys.maxsize, sys.maxsize)
    # torch rounds the size of pinned memory up to a power of two
    return Sizes(1 << share.bit_length() - 1, buffers, LEAST, FUSED)


class Half(NamedTuple):
    """A half of a buffer, and the event that tells when its last copy is done."""

    buffer: torch.Tensor
    host: HostArray
    """The same memory as a NumPy array."""
    event: Any


@dataclass(eq=False, slots=True)
class PinnedBuffer:
    """A pinned buffer, and a stream for its copies.

    A user may use the halves in turn, so that the device copies one while the other is filled or emptied. Or
    it uses the whole buffer, with the event of the first half.
    """

    buffer: torch.Tensor
    host: HostArray
    stream: Any
    halves: tuple[Half, Half]
    event: Any
    """The event for copies of the whole buffer, which is that of the first half."""
    used_by: Any
    """The stream with the last copy of the whole buffer."""

    def wait(self) -> None:
        """Wait until no copy uses the buffer, even if Ctrl-C comes meanwhile."""
        try:
            self.stream.synchronize()  # all copies of halves
        finally:
            self.used_by.synchronize()


def queue_copy(goal: torch.Tensor, source: torch.Tensor, pinned: PinnedBuffer, stream: Any) -> None:
    """Queue a copy between a whole buffer and a device on the current stream, and record its event."""
    pinned.used_by = stream  # if Ctrl-C comes before the event is recorded, the next user waits for all of it
    goal.copy_(source, non_blocking=True)
    pinned.event.record(stream)


class _Slot:
    """A place for a pinned buffer, which is made at its first use."""

    def __init__(self) -> None:
        self.pinned: PinnedBuffer | None = None
        self.is_ready: bool = False
        """True if there is a buffer, and its last copy is known to be done."""
        self.holder: ref[set[None]] = ref(set())
        """Refers to an object of the loan, until that ends."""
        self.is_with_handle: bool = False

    def take(self) -> PinnedBuffer | None:
        """Take the buffer out, if there is one, and wait for its last copy. If that has failed, drop it."""
        pinned, is_ready = self.pinned, self.is_ready
        self.pinned, self.is_ready = None, False
        if pinned is not None and not is_ready:
            pinned.wait()
        return pinned


class Loan:
    """A pinned buffer that is lent until `end` is called, or until nothing refers to the loan any more.

    In a `with` block, its copies are done at the end.
    """

    pinned: PinnedBuffer

    def __init__(self, slot: _Slot, notify: Callable[[object], None], *, to_handle: bool = False) -> None:
        self._slot = slot
        self._held: set[None] | None = set()  # of a type that has weak references
        slot.holder, slot.is_with_handle = ref(self._held, notify), to_handle

    def begin(self, make: Callable[[], PinnedBuffer]) -> None:
        """Wait until no copy uses the buffer; make one if there is none. If that fails, the loan ends."""
        pinned = None
        try:
            pinned = self._slot.take() or make()
        finally:
            if pinned is None:  # the traceback has this loan, and may be kept
                self.end()
        self.pinned = self._slot.pinned = pinned

    def end(self, *, passed: bool = False) -> None:
        """Let others use the buffer. They wait for its last copy, unless the caller knows that it is done."""
        self._slot.is_ready = passed
        self._held = None

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, *_: object) -> None:
        """Wait for the copies, and end the loan."""
        if self._held is not None:
            try:
                self.pinned.wait()
            except RuntimeError:  # of a device that has failed; the traceback may be kept
                self.end()
                raise
            self.end(passed=True)


class PinnedBuffers:
    """The pinned buffers of a device, which has an index. Each is lent to one user at a time."""

    def __init__(self, device: torch.device, sizes: Sizes) -> None:
        self.device: torch.device = device
        self.sizes: Sizes = sizes
        self.api: Any = getattr(torch, device.type)
        self.pinned: int = 0
        """How many buffers have been pinned so far."""
        self._slots = [_Slot() for _ in range(sizes.buffers)]
        self._choosing = lock()
        self._ended: SimpleQueue[object] = SimpleQueue()
        """Wakes those who wait for a buffer. When a loan ends, C code alone puts something here."""

    def lend(self) -> Loan:
        """Wait until there is a buffer that no copy uses, and lend it."""
        while True:
            loan = self.lend_at_once()
            if loan is not None:
                return loan
            with suppress(Empty):
                self._ended.get(timeout=LONGEST_WAIT)

    def lend_at_once(self, *, to_handle: bool = False) -> Loan | None:
        """Lend a buffer that no copy uses; return None if all are lent.

        With `to_handle`, it is for an asynchronous transfer, which may keep it for long. Only some of the
        buffers are lent to those.
        """
        with self._choosing:
            free = self._free_slots()
            if to_handle:
                lent = [slot for slot in self._slots if slot.is_with_handle and slot not in free]
                free = free if len(lent) < min(HANDLES, len(self._slots) - 1) else []
            if not free:
                return None
            loan = Loan(max(free, key=_is_ready), self._ended.put, to_handle=to_handle)
            with suppress(Empty):  # there is one for each loan that has ended, and one loan has begun
                self._ended.get_nowait()
        loan.begin(self._make_buffer)
        return loan

    def release(self) -> None:
        """Drop the buffers that nobody uses, all of them even if the device fails, and free their memory."""
        with self._choosing:
            free = self._free_slots()
            loans = [Loan(slot, self._ended.put) for slot in free]  # nobody else gets these buffers
        try:
            with ExitStack() as stack:
                stack.callback(getattr(torch._C, "_host_emptyCache", int))
                for slot in free:
                    stack.callback(slot.take)
        except RuntimeError as error:
            reason = f"the device failed with {type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise DeviceError.build(f"free all buffers of {self.device}", reason, "a new process") from error
        finally:
            loans.clear()

    def _free_slots(self) -> list[_Slot]:
        return [slot for slot in self._slots if slot.holder() is None]

    def _make_buffer(self) -> PinnedBuffer:
        chunk, buffers = self.sizes.chunk, self.sizes.buffers
        self.pinned += 1
        try:
            with torch.inference_mode(mode=False):
                buffer = torch.empty(chunk, dtype=torch.uint8, device="cpu", pin_memory=True)
        except (RuntimeError, TypeError, ValueError) as error:
            action = f"pin {buffers} buffers of {chunk >> 20} MiB for {self.device}"
            hint = f"a smaller {SETTING}, or {SETTING}=0"
            raise DeviceError.build(action, str(error).partition("\n")[0], hint) from error
        host, middle = buffer.numpy(), chunk // 2
        first = Half(buffer[:middle], host[:middle], self.api.Event())
        second = Half(buffer[middle:], host[middle:], self.api.Event())
        stream = self.api.Stream(self.device)
        return PinnedBuffer(buffer, host, stream, (first, second), first.event, stream)


_buffers_by_device: dict[tuple[int, torch.device], PinnedBuffers] = {}
"""The buffers by process and device.

A forked child has buffers of its own: those that were lent in the parent would never be given back, and the
driver does not let a child use or free memory that the parent has pinned. So the parent's entries stay.
"""
_buffers_lock = lock()


def buffers_of(place: torch.device) -> PinnedBuffers:
    """Return the buffers of a device, which are pinned when they are first lent."""
    key = getpid(), place
    with _buffers_lock:
        if key not in _buffers_by_device:
            _buffers_by_device[key] = PinnedBuffers(place, sizes())
        return _buffers_by_device[key]


def release_buffers() -> None:
    """Return the memory of all buffers that are not in use to the system. See `Backend.release_buffers`."""
    with _buffers_lock:
        mine = [buffers for (process, _), buffers in _buffers_by_device.items() if process == getpid()]
    with ExitStack() as stack:  # those of each device, even if another device fails
        for buffers in mine:
            stack.callback(buffers.release)
