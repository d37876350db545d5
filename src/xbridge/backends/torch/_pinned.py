"""Pinned buffers, through which arrays move between the host and a device.

A device reads and writes pinned memory at line rate, and other host memory several times slower. But pinning
memory takes longer than a copy. So a few buffers are pinned when they are first needed, and the caller's
memory is never pinned.

A buffer has one user at a time. The user gives it back after the last copy is done, not when it was queued.
So nobody fills a buffer that is still being read, or reads one that is still being filled.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from contextlib import ExitStack, suppress
from os import getpid
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import torch

from xbridge._core.dtypes import DTYPES
from xbridge._core.locks import lock
from xbridge._core.protocol import HostArray
from xbridge.errors import DeviceError, OptionError

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


class PinnedBuffer(NamedTuple):
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

    def wait(self) -> None:
        """Wait until no copy uses the buffer, even if Ctrl-C comes meanwhile or came after a copy."""
        try:
            self.stream.synchronize()  # all copies of halves
        finally:
            self.event.synchronize()  # a copy of the whole buffer, on whatever stream


def queue_copy(goal: torch.Tensor, source: torch.Tensor, event: Any, stream: Any) -> None:
    """Queue a copy between a whole buffer and a device on the current stream, and record its event.

    The event is recorded even if Ctrl-C interrupts this thread between the two. Otherwise the next user of
    the buffer would not wait for the copy.
    """
    try:
        goal.copy_(source, non_blocking=True)
    finally:
        event.record(stream)


class PinnedBuffers:
    """The pinned buffers of a device, which has an index. Each is lent to one user at a time."""

    def __init__(self, device: torch.device, sizes: Sizes) -> None:
        self.device: torch.device = device
        self.sizes: Sizes = sizes
        self.api: Any = getattr(torch, device.type)
        self.pinned: int = 0
        """How many buffers have been pinned so far."""
        self._permits = _make_tokens(sizes.buffers)
        self._handles = _make_tokens(min(HANDLES, sizes.buffers - 1))
        self._free: deque[PinnedBuffer] = deque()
        self._unawaited: deque[PinnedBuffer] = deque()
        """Buffers that were given back while their last copy may still be running."""

    def lend(self) -> PinnedBuffer:
        """Wait until there is a buffer that no copy uses, and return it."""
        self._permits.get()
        return self._lend_permitted()

    def lend_at_once(self) -> PinnedBuffer | None:
        """Return a buffer that no copy uses; None if all are lent."""
        try:
            self._permits.get_nowait()
        except Empty:
            return None
        return self._lend_permitted()

    def lend_to_handle(self) -> PinnedBuffer | None:
        """Return a buffer for an asynchronous transfer, which may keep it for long; None if none is left."""
        try:
            self._handles.get_nowait()
        except Empty:
            return None
        pinned = None
        try:
            pinned = self.lend_at_once()
        finally:
            if pinned is None:
                self._handles.put(None)
        return pinned

    def give_back(self, pinned: PinnedBuffer, *, passed: bool = False) -> None:
        """Wait for the last copy of a buffer, and let others use it. If the copy failed, drop the buffer.

        With `passed`, the caller has waited already.
        """
        try:
            if not passed:
                pinned.wait()
            self._free.append(pinned)
        finally:
            self._permits.put(None)

    def take_back(self, pinned: PinnedBuffer, *, passed: bool = False) -> None:
        """Take a buffer back from an asynchronous transfer, without waiting: a finalizer may call this."""
        (self._free if passed else self._unawaited).append(pinned)
        self._permits.put(None)
        self._handles.put(None)

    def release(self) -> None:
        """Drop the buffers that nobody uses, all of them even if the device fails, and free their memory."""
        self._free.clear()
        try:
            with ExitStack() as stack, suppress(IndexError):
                stack.callback(getattr(torch._C, "_host_emptyCache", int))
                while True:
                    stack.callback(self._unawaited.popleft().wait)
        except RuntimeError as error:
            reason = f"the device failed with {type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise DeviceError.build(f"free all buffers of {self.device}", reason, "a new process") from error

    def _lend_permitted(self) -> PinnedBuffer:
        """Return a buffer to the owner of a permit. If that fails, the permit is given back."""
        pinned = None
        try:
            pinned = self._take_or_make()
        finally:
            if pinned is None:
                self._permits.put(None)
        return pinned

    def _take_or_make(self) -> PinnedBuffer:
        """Return a free buffer, else one whose last copy has to be awaited, else a new one."""
        with suppress(IndexError):
            return self._free.pop()
        with suppress(IndexError):
            pinned = self._unawaited.popleft()
            pinned.wait()
            return pinned
        return self._make_buffer()

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
        return PinnedBuffer(buffer, host, self.api.Stream(self.device), (first, second), first.event)


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


def _make_tokens(n: int) -> SimpleQueue[None]:
    """Return a queue of `n` tokens, used as a semaphore: a finalizer may call `put` of this class safely."""
    tokens: SimpleQueue[None] = SimpleQueue()
    for _ in range(n):
        tokens.put(None)
    return tokens
