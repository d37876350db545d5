"""Pinned buffers, through which arrays move between the host and a device.

A device reads and writes pinned memory at line rate, and other host memory several times slower. But to pin
memory costs more than the copy. So a few buffers are pinned when they are first needed, and the caller's
memory never.

A buffer has one user at a time. It is given back after its last copy has passed, not when that copy was
queued. So nobody fills a buffer that is still read, or reads one that is still filled.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from contextlib import suppress
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
"""For each dtype, one of the same size that NumPy has too: bytes are copied, whatever their meaning."""

LEAST = 1 << 22
"""The least bytes of a single array for which buffers are tried. Below it, torch's own way is as fast."""

FUSED = 1 << 24
"""The least bytes of an array that is cast or copied on the host piece by piece, as it moves."""

HANDLES = 2
"""How many buffers the handles of transfers may keep at a time. The others are for calls that wait."""


class Sizes(NamedTuple):
    """Sizes of the pinned buffers, and of the arrays that use them."""

    chunk: int
    """Bytes of a buffer."""
    buffers: int
    """The number of buffers."""
    least: int
    """The least bytes of an array that may use the buffers."""
    fused: int
    """The least bytes of an array that uses them because NumPy works on it as it moves."""
    timed: bool = True
    """True if the times of real calls decide which of these arrays do."""


_sizes: Sizes | None = None
"""What `sizes` returns, once the setting was read."""


def sizes() -> Sizes:
    """Return the sizes by the setting, which is read on first use; with 0, no array uses buffers."""
    global _sizes  # noqa: PLW0603 -- one for the process
    if _sizes is None:
        _sizes = _read()
    return _sizes


def _read() -> Sizes:
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
    """A half of a buffer, and the event of its last copy."""

    buffer: torch.Tensor
    host: HostArray
    """The same bytes as NumPy's array."""
    event: Any


class PinnedBuffer(NamedTuple):
    """A pinned buffer, and a stream for its copies.

    A single user may use the halves in turn, so that the device copies one while the other is filled or
    emptied. Or it uses the whole buffer, with the event of the first half.
    """

    buffer: torch.Tensor
    host: HostArray
    stream: Any
    halves: tuple[Half, Half]
    event: Any
    """Of the last copy of the whole buffer: that of the first half."""

    def wait(self) -> None:
        """Wait until no copy uses the buffer."""
        for half in self.halves:
            half.event.synchronize()


class PinnedBuffers:
    """The pinned buffers of a device, which has an index. Each is lent to one user at a time."""

    def __init__(self, device: torch.device, sizes: Sizes) -> None:
        self.device: torch.device = device
        self.sizes: Sizes = sizes
        self.api: Any = getattr(torch, device.type)
        self._permits = _tokens(sizes.buffers)
        self._handles = _tokens(min(HANDLES, sizes.buffers - 1))
        self._free: deque[PinnedBuffer] = deque()
        self._left: deque[PinnedBuffer] = deque()
        """Buffers whose last copy may be under way, because nobody has waited for it."""

    def lend(self) -> PinnedBuffer:
        """Return a buffer that no copy uses, when there is one."""
        self._permits.get()
        return self._lent()

    def lend_at_once(self) -> PinnedBuffer | None:
        """Return a buffer that no copy uses; None if others have all of them."""
        try:
            self._permits.get_nowait()
        except Empty:
            return None
        return self._lent()

    def lend_to_handle(self) -> PinnedBuffer | None:
        """Return a buffer that may be kept for long; None if handles have enough of them."""
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
        """Let others use a buffer after its last copy. If that fails, the buffer is not used again.

        With `passed`, the caller has waited for that copy.
        """
        try:
            if not passed:
                pinned.wait()
            self._free.append(pinned)
        finally:
            self._permits.put(None)

    def take_back(self, pinned: PinnedBuffer, *, passed: bool = False) -> None:
        """Take the buffer of a handle, which no longer needs it. Do not wait: a finalizer may call this."""
        (self._free if passed else self._left).append(pinned)
        self._permits.put(None)
        self._handles.put(None)

    def release(self) -> None:
        """Forget the buffers that nobody uses. The next user pins new ones."""
        self._free.clear()

    def _lent(self) -> PinnedBuffer:
        """Return a buffer for a permit, which is given back if there is none."""
        pinned = None
        try:
            pinned = self._taken()
        finally:
            if pinned is None:
                self._permits.put(None)
        return pinned

    def _taken(self) -> PinnedBuffer:
        """Return a buffer that is free, or was left, or a new one."""
        with suppress(IndexError):
            return self._free.pop()
        with suppress(IndexError):
            pinned = self._left.popleft()
            pinned.wait()
            return pinned
        return self._made()

    def _made(self) -> PinnedBuffer:
        chunk, buffers = self.sizes.chunk, self.sizes.buffers
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


_known: dict[tuple[int, torch.device], PinnedBuffers] = {}
"""Buffers by process and device. In a child, those that threads of its parent use would never be given back.

A driver does not let a child use or free memory that its parent has pinned, so the parent's are kept.
"""
_making = lock()


def buffers_of(place: torch.device) -> PinnedBuffers:
    """Return the buffers of a device, which are pinned when they are first lent."""
    key = getpid(), place
    with _making:
        if key not in _known:
            _known[key] = PinnedBuffers(place, sizes())
        return _known[key]


def release() -> None:
    """Give the memory of all buffers that are not in use back to the system."""
    with _making:
        mine = [buffers for (process, _), buffers in _known.items() if process == getpid()]
    for buffers in mine:
        buffers.release()
    if mine:
        getattr(torch._C, "_host_emptyCache", int)()


def _tokens(n: int) -> SimpleQueue[None]:
    """Return a queue with so many tokens. Its `put` may be called by a finalizer at any time."""
    tokens: SimpleQueue[None] = SimpleQueue()
    for _ in range(n):
        tokens.put(None)
    return tokens
