"""A few pinned buffers, through which everything large goes between the host and a device.

A device reads and writes pinned memory at line rate, and other memory of the host several times slower; but
to pin memory costs more than the copy. So the caller's memory is never pinned. A few buffers are, once.

A lane is one buffer and one stream. A thread that has a lane takes the next piece of the array, fills the
buffer, has it copied and waits; the other lanes do the same meanwhile, so that the device always has a copy
to do. No lane does two things at once: a buffer is never filled while it is still copied, nothing is read
before it is there, and no lane is given back with work under way.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from xbridge._core.dtypes import DTYPES
from xbridge._host import fill
from xbridge.errors import DeviceError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xbridge._core.protocol import HostArray

    Piece = tuple[HostArray, torch.Tensor]

SETTING = "XBRIDGE_PINNED_MIB"
"""The environment variable that says how much memory may be pinned for each device; 0 turns staging off."""

_BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
ITEMS = {
    dtype: _BYTES[dtype.itemsize] for word in DTYPES if (dtype := getattr(torch, word, None)) is not None
}
"""For each dtype one of the same size that NumPy knows too: what is copied are bytes, whatever they mean."""

LEAST = 1 << 24
"""Bytes from which on threads pay: below it, starting them costs more than they save."""

SMALLEST = 1 << 20
"""Bytes of a piece below which the copy of each takes longer to ask for than to do."""


class Sizes(NamedTuple):
    """How much goes how."""

    chunk: int
    """Bytes in a buffer."""
    lanes: int
    """Buffers."""
    least: int
    """Bytes from which on an array goes through them."""


@cache
def sizes() -> Sizes:
    """What the setting makes of it, read when it is first needed; nothing is staged where it says 0."""
    said = os.environ.get(SETTING, "").strip() or "64"
    if not said.isdecimal():
        raise OptionError.build(
            f"read {SETTING}={said!r}", "it is a whole number of MiB for each device", f"{SETTING}=64"
        )
    lanes = min(8, os.cpu_count() or 1)
    share = (int(said) << 20) // lanes
    if not share:
        return Sizes(0, 0, sys.maxsize)
    # torch pins a power of two, whatever it is asked for
    return Sizes(1 << share.bit_length() - 1, lanes, LEAST)


class PinnedBuffer(NamedTuple):
    """A pinned buffer, and the stream that copies out of it and into it."""

    buffer: torch.Tensor
    host: HostArray
    """The same bytes."""
    stream: Any

    def stream_to_device(self, host: HostArray, there: torch.Tensor, dtype: np.dtype[Any]) -> None:
        """Copy values of the host, cast, to bytes of the device; complete on return."""
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
    """The lanes of a device, each lent to one thread at a time.

    Parameters
    ----------
    device
        With an index.
    sizes
        How many lanes, and how large.
    """

    def __init__(self, device: torch.device, sizes: Sizes) -> None:
        self.device, self.sizes = device, sizes
        self.api: Any = getattr(torch, device.type)
        self._free: SimpleQueue[PinnedBuffer] = SimpleQueue()
        with torch.inference_mode(mode=False):
            for _ in range(sizes.lanes):
                buffer = self._pinned(sizes)
                self._free.put(PinnedBuffer(buffer, buffer.numpy(), self.api.Stream(device)))

    def _pinned(self, sizes: Sizes) -> torch.Tensor:
        try:
            return torch.empty(sizes.chunk, dtype=torch.uint8, device="cpu", pin_memory=True)
        except (RuntimeError, TypeError, ValueError) as error:
            raise DeviceError.build(
                f"pin {sizes.lanes} buffers of {sizes.chunk >> 20} MiB for {self.device}",
                str(error).partition("\n")[0],
                f"a smaller {SETTING}, or {SETTING}=0",
            ) from error

    def stream_to_device(self, x: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor of the host on the device; complete on return."""
        host = x.view(ITEMS[x.dtype]).numpy()
        return self.cast_into(torch.empty_like(x, device=self.device), host, host.dtype)

    def cast_into(self, out: torch.Tensor, host: HostArray, dtype: np.dtype[Any]) -> torch.Tensor:
        """Give a dense tensor of the device the values of the host, cast; complete on return."""
        order = sorted(range(out.dim()), key=lambda axis: (out.stride(axis), out.shape[axis]), reverse=True)
        self._share_out(
            partial(PinnedBuffer.stream_to_device, dtype=dtype), host.transpose(order), bytes_of(out)
        )
        return out

    def fetch(self, x: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor of the device on the host, in NumPy's memory; complete on return."""
        dense = x if is_dense(x) else torch.empty_like(x).copy_(x)
        host = np.empty(x.nbytes, np.uint8)
        self._share_out(PinnedBuffer.fetch, host, bytes_of(dense))
        return tensor_of(torch.from_numpy(host), 0, dense)

    def use(self, work: Callable[[PinnedBuffer], None]) -> None:
        """Have a lane for a while: after what the current stream was asked for, and complete on return."""
        self._use(work, self._so_far())

    def _so_far(self) -> Any:
        """What the current stream was asked for: memory that it still uses, or still makes."""
        return self.api.current_stream(self.device).record_event()

    def _share_out(self, hint: Callable[[PinnedBuffer, HostArray, torch.Tensor], None], *ends: Any) -> None:
        """Do every piece, in as many threads as there are lanes; this one is one of them."""
        parts, asked = list(self._parts(*ends)), self._so_far()

        def work(left: Iterator[Piece], lane: PinnedBuffer) -> None:
            for part in left:
                hint(lane, *part)

        left = iter(parts)
        with ThreadPoolExecutor(self.sizes.lanes) as pool:
            try:
                others = range(1, min(self.sizes.lanes, len(parts)))
                helpers = [pool.submit(self._use, partial(work, left), asked) for _ in others]
            except RuntimeError:  # an interpreter that shuts down starts no threads
                helpers, left = [], iter(parts)
            self._use(partial(work, left), asked)
            for helper in helpers:
                helper.result()

    def _parts(self, host: HostArray, there: torch.Tensor) -> Iterator[Piece]:
        """Two pieces for every lane, unless that is more than one holds, or less than is worth a copy."""
        total = there.numel()
        size = min(self.sizes.chunk, max(SMALLEST, total // (2 * self.sizes.lanes)))
        itemsize = total // host.size
        start = 0
        for part in pieces(host, size // itemsize):
            stop = start + part.size * itemsize
            yield part, there[start:stop]
            start = stop

    def _use(self, work: Callable[[PinnedBuffer], None], asked: Any) -> None:
        lane = self._free.get()
        try:
            with torch.inference_mode(), self.api.stream(lane.stream):
                lane.stream.wait_event(asked)
                work(lane)
        finally:
            try:
                lane.stream.synchronize()
            finally:
                self._free.put(lane)


def pieces(host: HostArray, limit: int) -> Iterator[HostArray]:
    """Parts of an array of at most so many elements, in C order."""
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
    """Whether its elements lie in one piece of memory, each once."""
    return x.is_contiguous() or torch.empty_like(x, device="meta").stride() == x.stride()


def bytes_of(x: torch.Tensor) -> torch.Tensor:
    """The memory of a dense tensor, byte by byte."""
    raw = torch.empty(0, dtype=torch.uint8, device=x.device)
    start = int(x.storage_offset()) * x.itemsize
    return raw.set_(x.untyped_storage(), start, (x.nbytes,), (1,))


def tensor_of(raw: torch.Tensor, start: int, like: torch.Tensor) -> torch.Tensor:
    """A tensor in memory that is there, like another: no view, whose history would be that of all others."""
    bare = torch.empty(0, dtype=like.dtype, device=raw.device)
    return bare.set_(raw.untyped_storage(), start // like.itemsize, like.shape, like.stride())
