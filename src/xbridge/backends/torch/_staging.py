"""Move large arrays between the host and a device, piece by piece through pinned buffers.

The calling thread and a crew of others copy the pieces. Each has a buffer of its own and uses its halves in
turn: while the device copies one half, the thread fills or empties the other. NumPy copies the bytes on the
host, in the thread that calls it and without the GIL. Torch would start OpenMP threads for each of these
threads.

The crew stays for the next array, because starting threads takes longer than the copy of a few MiB. It ends
after a second without work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, pairwise, repeat
from queue import Empty, SimpleQueue
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import torch

from xbridge._core.locks import lock
from xbridge._core.protocol import HostArray
from xbridge._host.memory import fill
from xbridge.backends.torch._pinned import ITEMS, Half, Loan, PinnedBuffer, PinnedBuffers

if TYPE_CHECKING:
    from types import TracebackType

T = TypeVar("T")
Piece: TypeAlias = tuple[HostArray, torch.Tensor]
Copy: TypeAlias = Callable[[Iterator[Piece], PinnedBuffer], None]

PAGE = 1 << 21
"""Bytes of a huge page, and the least bytes of a piece. Two threads that write to a new page would both clear
it."""

IDLE_SECONDS = 1.0
"""Seconds without work after which a thread of a crew ends."""

LARGE = 1 << 26
"""The bytes from which buffers are tried before `Tensor.to`: a program may move just one such array."""

plain_copy = np.copyto
"""The copy without a cast. Otherwise `fill` is used, which casts and ignores lost values."""

RETRY_CALLS = 64
"""The number of calls after which the slower way is tried again."""


class Crew:
    """Threads that help the calling thread to copy the pieces of a large array, one array at a time."""

    def __init__(self, buffers: PinnedBuffers) -> None:
        self.buffers = buffers
        self._turn, self._changing = lock(), lock()
        self._jobs: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._threads = 0

    def send(self, out: torch.Tensor, host: HostArray, dtype: np.dtype[Any]) -> torch.Tensor:
        """Cast and copy values of the host into a dense tensor of the device; complete on return."""
        order = sorted(range(out.dim()), key=lambda axis: (out.stride(axis), out.shape[axis]), reverse=True)
        there, size = bytes_of(out), self._size(out.nbytes)
        parts, start = [], 0
        for part in pieces(host.transpose(order), size // out.itemsize):
            stop = start + part.size * out.itemsize
            parts.append((part, there[start:stop]))
            start = stop
        put = plain_copy if host.dtype == dtype else fill
        self._share(partial(_send, put, dtype), parts)
        return out

    def fetch(self, x: torch.Tensor) -> torch.Tensor:
        """Copy a tensor of the device to new host memory that NumPy has allocated; complete on return."""
        dense = x if is_dense(x) else torch.empty_like(x).copy_(x)
        host, there = np.empty(x.nbytes, np.uint8), bytes_of(dense)
        cuts = _cut_at_pages(host, self._size(x.nbytes))
        self._share(_fetch, [(host[a:b], there[a:b]) for a, b in pairwise(cuts)])
        bare = torch.empty(0, dtype=x.dtype, device="cpu")  # a view would share a version counter
        return bare.set_(torch.from_numpy(host).untyped_storage(), 0, dense.shape, dense.stride())

    def _size(self, total: int) -> int:
        """Return the bytes of a piece: two for each buffer, unless they exceed its half or are too small."""
        pages = -(-total // (2 * self.buffers.sizes.buffers) // PAGE) * PAGE
        return min(self.buffers.sizes.chunk // 2, max(PAGE, pages))

    def _share(self, copy: Copy, parts: list[Piece]) -> None:
        """Copy all pieces, with a thread for each two of them; complete on return."""
        api, left, ended = self.buffers.api, iter(parts), SimpleQueue[None]()
        errors: list[BaseException | None] = []
        reports: list[BaseException | None] = []
        # The array may still be computed on this thread's stream. To wait for it here is simple, and costs
        # nothing, because the copies could not begin earlier.
        api.current_stream(self.buffers.device).record_event().synchronize()
        asked: list[None] = []

        def finish() -> None:
            deque(left, 0)  # after an error nobody begins another piece; now no thread has the arrays
            while len(reports) < len(asked):  # Ctrl-C does not end this wait: copies may use the memory
                with _Report(errors):
                    ended.get()

        with self._turn:
            try:
                try:
                    self._ask(partial(self._help, copy, left, reports, ended), len(parts) // 2 - 1, asked)
                    self._copy(copy, left, self.buffers.lend())
                finally:
                    finish()
            finally:
                finish()  # if Ctrl-C has come as the first call began
        for error in filter(None, errors + reports):
            raise error

    def _ask(self, job: Callable[[], None], n: int, asked: list[None]) -> None:
        """Give a job to at most `n` threads of the crew, and add an item to `asked` for each of them."""
        n = min(n, self.buffers.sizes.buffers - 1)
        with self._changing:
            while self._threads < n:
                try:
                    Thread(target=self._serve, name="xbridge-copy", daemon=True).start()
                except RuntimeError:  # there are too many threads, or the interpreter is exiting
                    break
                self._threads += 1
            # One call of C code, which no Ctrl-C interrupts between a job and its item
            asked.extend(map(self._jobs.put, repeat(job, max(0, min(n, self._threads)))))

    def _serve(self) -> None:
        """Do jobs until there is none for a while."""
        while True:
            try:
                job = self._jobs.get(timeout=IDLE_SECONDS)
            except Empty:
                with self._changing:
                    if self._jobs.empty():
                        self._threads -= 1
                        return
            else:
                job()

    def _help(
        self,
        copy: Copy,
        left: Iterator[Piece],
        reports: list[BaseException | None],
        ended: SimpleQueue[None],
    ) -> None:
        """Copy pieces in a thread of the crew, if there is a buffer, and report the end to the caller."""
        with _Report(reports):
            loan = self.buffers.lend_at_once()
            if loan is not None:
                self._copy(copy, left, loan)
        ended.put(None)

    def _copy(self, copy: Copy, left: Iterator[Piece], loan: Loan) -> None:
        # Twice, because Ctrl-C may come as the end of the block begins. The memory may not be freed by then.
        with loan, loan, torch.inference_mode(), self.buffers.api.stream(loan.pinned.stream):
            copy(left, loan.pinned)


class _Report:
    """A context that appends the exception of its block to a list at the end, or None."""

    def __init__(self, reports: list[BaseException | None]) -> None:
        self._reports = reports

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """End the block."""
        self._reports.append(error)
        return True


def _send(
    put: Callable[[HostArray, HostArray], None],
    dtype: np.dtype[Any],
    left: Iterator[Piece],
    pinned: PinnedBuffer,
) -> None:
    """Fill one half of a buffer while the device copies the other."""
    for half, (host, there) in zip(cycle(pinned.halves), left, strict=False):
        size = len(there)
        half.event.synchronize()  # the copy out of this half
        put(half.host[:size].view(dtype).reshape(host.shape), host)
        there.copy_(half.buffer[:size], non_blocking=True)
        half.event.record(pinned.stream)


def _fetch(left: Iterator[Piece], pinned: PinnedBuffer) -> None:
    """Empty one half of a buffer while the device fills the other."""
    halves = cycle(pinned.halves)

    def ask() -> tuple[HostArray, Half] | None:
        for host, there in left:
            half = next(halves)
            half.buffer[: len(host)].copy_(there, non_blocking=True)
            half.event.record(pinned.stream)
            return host, half
        return None

    pending = ask()
    while pending is not None:
        (host, half), pending = pending, ask()
        half.event.synchronize()  # the copy into this half
        np.copyto(host, half.host[: len(host)])


class Chooser:
    """Chooses between a plain way, such as `Tensor.to`, and pinned buffers by the times of real calls.

    For each size, rounded to a power of two, each way is tried once. Then the better one is used. The other
    is tried again after some calls if it was not much worse, because the machine may have been busy. A call
    that had to pin a buffer does not count, because pinning takes longer than most copies.
    """

    def __init__(self, buffers: PinnedBuffers) -> None:
        self._buffers = buffers
        self._best: dict[object, dict[bool, float]] = {}
        self._calls: dict[object, int] = {}

    def run(self, way: str, nbytes: int, plain: Callable[[], T], staged: Callable[[], T]) -> T:
        """Return the result of the way that is better for arrays of about this size."""
        key = way, nbytes.bit_length()
        best, calls = self._best.setdefault(key, {}), self._calls.get(key, 0)
        self._calls[key] = calls + 1
        use = _choose_staged(best, calls, first=nbytes >= LARGE)
        pinned, begin = self._buffers.pinned, perf_counter()
        made = (staged if use else plain)()
        took = perf_counter() - begin
        if self._buffers.pinned == pinned:
            best[use] = min(took, 1.1 * best.get(use, took))  # a single fast call must not decide for ever
        return made


def _choose_staged(best: dict[bool, float], calls: int, *, first: bool) -> bool:
    """Return True to use buffers, by the best times of both ways. `first` is the way that is tried first."""
    if len(best) < 2:
        return not first if first in best else first
    better = best[True] < best[False]
    is_close = max(best.values()) < 2 * min(best.values())
    return better is not (calls % RETRY_CALLS == 0 and is_close)


def _cut_at_pages(host: HostArray, size: int) -> list[int]:
    """Return the offsets between pieces of new memory: those inside are boundaries of huge pages."""
    page = min(PAGE, size)
    first = -host.__array_interface__["data"][0] % page or size
    return [0, *range(min(first, len(host)), len(host), size), len(host)]


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
    """Return True if the elements fill one block of memory without gaps or overlaps, in any order of axes."""
    return x.is_contiguous() or torch.empty_like(x, device="meta").stride() == x.stride()


def bytes_of(x: torch.Tensor) -> torch.Tensor:
    """Return the memory of a dense tensor as bytes."""
    raw = torch.empty(0, dtype=torch.uint8, device=x.device)
    start = int(x.storage_offset()) * x.itemsize
    return raw.set_(x.untyped_storage(), start, (x.nbytes,), (1,))


def bits_of(x: torch.Tensor) -> HostArray:
    """Return NumPy's view of a host tensor, under a dtype of the same size that NumPy has."""
    return x.view(ITEMS[x.dtype]).numpy()
