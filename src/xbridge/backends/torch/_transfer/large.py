"""Move large arrays between the host and a device, piece by piece through pinned buffers.

The calling thread and a few others copy the pieces. Each has a buffer of its own and uses its halves in turn:
while the device copies one half, the thread fills or empties the other. NumPy copies the bytes on the host,
in the thread that calls it and without the GIL. Torch would start OpenMP threads for each of these threads.

The threads stay for the next array, because starting them takes longer than the copy of a few MiB.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cache, partial
from itertools import cycle
from os import getpid
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from xbridge._core.futures import settle
from xbridge._core.protocol import HostArray
from xbridge._host.memory import fill, native_dtype
from xbridge.backends.torch._transfer.pinned import ITEMS, pin_buffer, sizes
from xbridge.backends.torch._transfer.streams import streams_of

PAGE = 1 << 21
"""Bytes of a huge page, and the least bytes of a piece. Two threads that write to a new page would both clear
it."""

plain_copy = np.copyto
"""The copy without a cast. Otherwise `fill` is used, which casts and ignores lost values."""


class Half(NamedTuple):
    """A half of a buffer, and the event that tells when its last copy is done."""

    buffer: torch.Tensor
    host: HostArray
    """The same memory as a NumPy array."""
    event: Any
    stream: Any
    """The stream of the copies. The allocator hears of it, so Ctrl-C may drop memory that is being copied."""


Piece: TypeAlias = tuple[HostArray, torch.Tensor]
Halves: TypeAlias = list[Half]
Copy: TypeAlias = Callable[[Iterator[Piece], Halves], None]


def send(host: HostArray, place: torch.device, dtype: str | None = None) -> torch.Tensor:
    """Cast or copy into new memory on a device, with the layout that NumPy would give the cast array."""
    word = dtype or host.dtype.name
    axes = list(range(host.ndim))
    if 0 not in host.strides and not host.flags.c_contiguous:
        axes.sort(key=lambda axis: -abs(host.strides[axis]))
    dense = torch.empty([host.shape[axis] for axis in axes], device="meta")
    like = dense.permute([axes.index(axis) for axis in range(host.ndim)])
    out = torch.empty_strided(host.shape, like.stride(), dtype=getattr(torch, word), device=place)
    return _fill(out, host, native_dtype(word))


def send_tensor(x: torch.Tensor, place: torch.device) -> torch.Tensor:
    """Copy a plain host tensor to new memory on a device; complete on return."""
    host = x.view(ITEMS[x.dtype]).numpy()
    return _fill(torch.empty_like(x, device=place), host, host.dtype)


def fetch_tensor(x: torch.Tensor) -> torch.Tensor:
    """Copy a plain tensor of a device to new host memory that NumPy has allocated; complete on return."""
    dense = x if _is_dense(x) else torch.empty_like(x).copy_(x)
    host, there, size = np.empty(x.nbytes, np.uint8), _bytes_of(dense), _piece_nbytes(x.nbytes)
    cuts = range(0, len(host), size)
    _share(_fetch, [(host[start : start + size], there[start : start + size]) for start in cuts], x.device)
    bare = torch.empty(0, dtype=x.dtype, device="cpu")  # a view would share a version counter
    return bare.set_(torch.from_numpy(host).untyped_storage(), 0, dense.shape, dense.stride())


def _fill(out: torch.Tensor, host: HostArray, dtype: np.dtype[Any]) -> torch.Tensor:
    """Cast and copy values of the host into a dense tensor of the device; complete on return."""
    order = sorted(range(out.dim()), key=lambda axis: (out.stride(axis), out.shape[axis]), reverse=True)
    there, parts, start = _bytes_of(out), [], 0
    for part in _pieces(host.transpose(order), _piece_nbytes(out.nbytes) // out.itemsize):
        stop = start + part.size * out.itemsize
        parts.append((part, there[start:stop]))
        start = stop
    put = plain_copy if host.dtype == dtype else fill
    _share(partial(_send, put, dtype), parts, out.device)
    return out


def _share(copy: Copy, parts: list[Piece], place: torch.device) -> None:
    """Copy all pieces, with a thread for each two of them; complete on return."""
    # The array may still be computed on this thread's stream. To wait for it here is simple, and costs
    # nothing, because the copies could not begin earlier.
    streams_of(place).current_stream(place).record_event().synchronize()
    left, helpers = iter(parts), list[Future[None]]()
    try:
        with suppress(RuntimeError):  # there are too many threads, or the interpreter is exiting
            for _ in range(min(len(parts) // 2, sizes().buffers) - 1):
                helpers.append(Future())
                _threads(getpid()).submit(settle, helpers[-1], partial(_copy_some, copy, left, place))
        _copy_some(copy, left, place)
    finally:
        deque(left, 0)  # after an error nobody begins another piece
        busy = [helper for helper in helpers if not helper.cancel()]
        wait(busy)
    for helper in busy:
        helper.result()


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    """Return the threads that help to copy. A forked child has its own."""
    return ThreadPoolExecutor(max(1, sizes().buffers - 1), "xbridge-copy")


def _copy_some(copy: Copy, left: Iterator[Piece], place: torch.device) -> None:
    """Copy pieces in this thread while any are left, on a stream and with a buffer of its own."""
    api = streams_of(place)
    stream = api.Stream(place)
    with torch.inference_mode(), api.stream(stream):
        buffer = pin_buffer()
        halves = [Half(part, part.numpy(), api.Event(), stream) for part in buffer.chunk(2)]
        copy(left, halves)
        stream.synchronize()


def _send(
    put: Callable[[HostArray, HostArray], None],
    dtype: np.dtype[Any],
    left: Iterator[Piece],
    halves: Halves,
) -> None:
    """Fill one half of a buffer while the device copies the other."""
    for half, (host, there) in zip(cycle(halves), left, strict=False):
        size = len(there)
        half.event.synchronize()  # the copy out of this half
        put(half.host[:size].view(dtype).reshape(host.shape), host)
        there.record_stream(half.stream)
        there.copy_(half.buffer[:size], non_blocking=True)
        half.event.record(half.stream)


def _fetch(left: Iterator[Piece], halves: Halves) -> None:
    """Empty one half of a buffer while the device fills the other."""
    turns = cycle(halves)

    def ask() -> tuple[HostArray, Half] | None:
        for host, there in left:
            half = next(turns)
            there.record_stream(half.stream)
            half.buffer[: len(host)].copy_(there, non_blocking=True)
            half.event.record(half.stream)
            return host, half
        return None

    pending = ask()
    while pending is not None:
        (host, half), pending = pending, ask()
        half.event.synchronize()  # the copy into this half
        plain_copy(host, half.host[: len(host)])


def _piece_nbytes(total: int) -> int:
    """Return the bytes of a piece: two for each buffer, unless they exceed its half or are too small."""
    pages = -(-total // (2 * sizes().buffers) // PAGE) * PAGE
    return min(sizes().chunk // 2, max(PAGE, pages))


def _pieces(host: HostArray, limit: int) -> Iterator[HostArray]:
    """Yield the parts of an array in C order, each of at most `limit` elements."""
    if host.flags.c_contiguous:
        host = host.reshape(-1)
    row = host.size // len(host)
    if row > limit:
        for part in host:
            yield from _pieces(part, limit)
    else:
        rows = limit // row
        for start in range(0, len(host), rows):
            yield host[start : start + rows]


def _is_dense(x: torch.Tensor) -> bool:
    """Return True if the elements fill one block of memory without gaps or overlaps, in any order of axes."""
    return x.is_contiguous() or torch.empty_like(x, device="meta").stride() == x.stride()


def _bytes_of(x: torch.Tensor) -> torch.Tensor:
    """Return the memory of a dense tensor as bytes."""
    raw = torch.empty(0, dtype=torch.uint8, device=x.device)
    start = int(x.storage_offset()) * x.itemsize
    return raw.set_(x.untyped_storage(), start, (x.nbytes,), (1,))
