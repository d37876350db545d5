"""Pinned buffers, through which large arrays move between the host and a device.

A device reads and writes pinned memory at line rate, and other host memory several times slower. But to pin
memory costs more than the copy. So a few buffers are pinned once, and the caller's memory never.

A pinned buffer has a stream. A thread that holds a buffer takes the next piece of the array, fills the
buffer, queues its copy and waits. The threads of the other buffers do the same meanwhile, so the device
always has a copy to do. A buffer has one use at a time: it is not filled before its last copy is complete,
not read before its data has arrived, and not released with work pending.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import torch

from xbridge._core.dtypes import DTYPES
from xbridge._core.protocol import HostArray
from xbridge._host.memory import fill
from xbridge.errors import DeviceError, OptionError

Piece = tuple[HostArray, torch.Tensor]

SETTING = "XBRIDGE_PINNED_MIB"
"""The environment variable for the memory to pin for each device, in MiB; 0 turns staging off."""

_BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
ITEMS = {dtype: _BYTES[dtype.itemsize] for word in DTYPES if (dtype := getattr(torch, word, None))}
"""For each dtype, one of the same size that NumPy has too: bytes are copied, whatever their meaning."""

LEAST = 1 << 24
"""An array of at least so many bytes uses threads: below it, they cost more than they save."""

SMALLEST = 1 << 20
"""The least bytes of a piece: the copy of a smaller one takes longer to queue than to run."""


class Sizes(NamedTuple):
    """Sizes of the pinned buffers, and of the arrays that use them."""

    chunk: int
    """Bytes of a buffer."""
    buffers: int
    """The number of buffers."""
    least: int
    """The least bytes of an array that uses the buffers."""


@cache
def sizes() -> Sizes:
    """Return the sizes by the setting, which is read on first use; with 0, no array uses buffers."""
    setting = os.environ.get(SETTING, "").strip() or "64"
    if not setting.isdecimal():
        reason = "it is a whole number of MiB for each device"
        raise OptionError.build(f"read {SETTING}={setting!r}", reason, f"{SETTING}=64")
    buffers = min(8, os.cpu_count() or 1)
    share = (int(setting) << 20) // buffers
    if not share:
        return Sizes(0, 0, sys.maxsize)
    # torch rounds the size of pinned memory up to a power of two
    return Sizes(1 << share.bit_length() - 1, buffers, LEAST)


class PinnedBuffer(NamedTuple):
    """A pinned buffer, and the stream of its copies."""

    buffer: torch.Tensor
    host: HostArray
    """The bytes of the buffer as NumPy's array."""
    stream: Any

    def stream_to_device(self, host: HostArray, there: torch.Tensor, dtype: np.dtype[Any]) -> None:
        """Cast and copy values of the host to bytes of the device; complete on return."""
        size = there.numel()
        fill(self.host[:size].view(dtype).reshape(host.shape), host)
        there.copy_(self.buffer[:size], non_blocking=True)
        self.stream.synchronize()  # the next piece will be in the same buffer

    def fetch(self, host: HostArray, there: torch.Tensor) -> None:
        """Copy bytes of the device to bytes of the host; complete on return."""
        self.buffer[: host.nbytes].copy_(there, non_blocking=True)
        self.stream.synchronize()  # the copy into the buffer
        np.copyto(host, self.host[: host.nbytes])


class PinnedPool:
    """The pinned buffers of a device, which has an index. Each is lent to one thread at a time."""

    def __init__(self, device: torch.device, sizes: Sizes) -> None:
        self.device, self.sizes = device, sizes
        self.api: Any = getattr(torch, device.type)
        self._free: SimpleQueue[PinnedBuffer] = SimpleQueue()
        with torch.inference_mode(mode=False):
            for _ in range(sizes.buffers):
                buffer = self._pinned(sizes)
                self._free.put(PinnedBuffer(buffer, buffer.numpy(), self.api.Stream(device)))

    def _pinned(self, sizes: Sizes) -> torch.Tensor:
        try:
            return torch.empty(sizes.chunk, dtype=torch.uint8, device="cpu", pin_memory=True)
        except (RuntimeError, TypeError, ValueError) as error:
            action = f"pin {sizes.buffers} buffers of {sizes.chunk >> 20} MiB for {self.device}"
            hint = f"a smaller {SETTING}, or {SETTING}=0"
            raise DeviceError.build(action, str(error).partition("\n")[0], hint) from error

    def stream_to_device(self, x: torch.Tensor) -> torch.Tensor:
        """Copy a tensor of the host to the device; complete on return."""
        host = x.view(ITEMS[x.dtype]).numpy()
        return self.cast_into(torch.empty_like(x, device=self.device), host, host.dtype)

    def cast_into(self, out: torch.Tensor, host: HostArray, dtype: np.dtype[Any]) -> torch.Tensor:
        """Cast and copy values of the host into a dense tensor of the device; complete on return."""
        order = sorted(range(out.dim()), key=lambda axis: (out.stride(axis), out.shape[axis]), reverse=True)
        copy = partial(PinnedBuffer.stream_to_device, dtype=dtype)
        self._share_out(copy, host.transpose(order), bytes_of(out))
        return out

    def fetch(self, x: torch.Tensor) -> torch.Tensor:
        """Copy a tensor of the device to the host, into NumPy's memory; complete on return."""
        dense = x if is_dense(x) else torch.empty_like(x).copy_(x)
        host = np.empty(x.nbytes, np.uint8)
        self._share_out(PinnedBuffer.fetch, host, bytes_of(dense))
        bare = torch.empty(0, dtype=x.dtype, device="cpu")  # a view would share a version counter
        return bare.set_(torch.from_numpy(host).untyped_storage(), 0, dense.shape, dense.stride())

    def use(self, work: Callable[[PinnedBuffer], None], asked: Any = None) -> None:
        """Call `work` with a buffer after an event, or the work of the current stream; complete on return."""
        asked = asked or self.api.current_stream(self.device).record_event()
        pinned = self._free.get()
        try:
            with torch.inference_mode(), self.api.stream(pinned.stream):
                pinned.stream.wait_event(asked)
                work(pinned)
        finally:
            try:
                pinned.stream.synchronize()
            finally:
                self._free.put(pinned)

    def _share_out(self, copy: Callable[[PinnedBuffer, HostArray, torch.Tensor], None], *ends: Any) -> None:
        """Copy every piece, in one thread for each buffer, of which this thread is one."""
        parts, asked = list(self._parts(*ends)), self.api.current_stream(self.device).record_event()

        def work(left: Iterator[Piece], pinned: PinnedBuffer) -> None:
            for part in left:
                copy(pinned, *part)

        left = iter(parts)
        with ThreadPoolExecutor(self.sizes.buffers) as pool:
            try:
                others = range(1, min(self.sizes.buffers, len(parts)))
                helpers = [pool.submit(self.use, partial(work, left), asked) for _ in others]
            except RuntimeError:  # an interpreter that shuts down starts no threads
                helpers, left = [], iter(parts)
            self.use(partial(work, left), asked)
            for helper in helpers:
                helper.result()

    def _parts(self, host: HostArray, there: torch.Tensor) -> Iterator[Piece]:
        """Yield the pieces: two for each buffer, unless they exceed a buffer or are too small."""
        total = there.numel()
        size = min(self.sizes.chunk, max(SMALLEST, total // (2 * self.sizes.buffers)))
        itemsize = total // host.size
        start = 0
        for part in pieces(host, size // itemsize):
            stop = start + part.size * itemsize
            yield part, there[start:stop]
            start = stop


def pieces(host: HostArray, limit: int) -> Iterator[HostArray]:
    """Yield the parts of an array in C order, each of at most `limit` elements."""
    if host.flags.c_contiguous:
        host = host.reshape(-1)
    row = host.size // len(host)
    if row > limit:
        for part in host:
            yield from pieces(part, limit)
    else:
        rows = limit // row
        for start in range(0, len(host), rows):
            yield host[start : start + rows]


def is_dense(x: torch.Tensor) -> bool:
    """Return True if the elements fill one piece of memory, each once."""
    return x.is_contiguous() or torch.empty_like(x, device="meta").stride() == x.stride()


def bytes_of(x: torch.Tensor) -> torch.Tensor:
    """Return the memory of a dense tensor as bytes."""
    raw = torch.empty(0, dtype=torch.uint8, device=x.device)
    start = int(x.storage_offset()) * x.itemsize
    return raw.set_(x.untyped_storage(), start, (x.nbytes,), (1,))
