"""Move many small arrays between the host and a device in packs: one copy for each pack.

To start a copy takes as long as to copy a MiB. So small arrays are placed side by side, in a pinned buffer or
in one tensor on the device, and the pack is copied as a whole.

A loop of Python over the arrays would take longer than the copies. So everything that is done for each array
is done by C code of NumPy or torch, called by `map`, `zip` and the like: the facts about all arrays are
collected in lists, and decisions are made once for each distinct fact.

The functions accept ordinary arrays, which can be copied as plain bytes. They return None in place of any
other array, and of all that are left if there is no memory for a pack. Such arrays are moved by a plan.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate, chain, islice, repeat
from operator import add, attrgetter, methodcaller
from time import monotonic, sleep
from typing import Any, NamedTuple

import numpy as np
import torch

from xbridge._core.devices import Device
from xbridge._core.dtypes import DTYPES
from xbridge._core.protocol import HostArray, c_strides
from xbridge._host.memory import native_dtype
from xbridge.backends.torch._bare import bare_keys, may_use_buffers
from xbridge.backends.torch._pinned import (
    ITEMS,
    Loan,
    PinnedBuffer,
    PinnedBuffers,
    buffers_of,
    queue_copy,
    sizes,
)
from xbridge.backends.torch._threads import worker_stream
from xbridge.errors import DeviceError

ALIGNMENT = 256
"""Arrays of a pack begin at multiples of this number of bytes, as does memory that torch allocates."""

SMALL_NBYTES = 1 << 18
"""The most bytes of an array that is packed. For larger ones, the copy itself takes most of the time."""

INLINE_NBYTES = 1 << 20
"""The most bytes that `begin_send` packs in the calling thread. For less, to start a thread takes longer."""

POLL_SECONDS = 5e-4
"""Seconds between two queries of an event. Torch has no wait for an event with a time limit."""

VIEWS = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
"""The dispatch key that makes results of view operations views for autograd.

Where it is excluded, the tensors that a pack is split into have version counters of their own. Otherwise an
in-place change of one of them would count as a change of all.
"""

DTYPE_OF = {
    native_dtype(word): getattr(torch, word)
    for word, facts in DTYPES.items()
    if hasattr(torch, word) and not facts.is_extended
}
"""Torch's dtypes for NumPy's own dtypes."""
NUMPY_OF = {there: here for here, there in DTYPE_OF.items()}
_RARE_DTYPES = frozenset(
    getattr(torch, word) for word in ("uint16", "uint32", "uint64") if hasattr(torch, word)
)
"""Dtypes for which a device may lack operators such as `cat`. They are packed as signed integers."""
_C_ORDER = 0x1
"""The bit of NumPy's `flags.num` for C order, all that a copy needs."""

_keys, _raw = torch._C._dispatch_keys, torch._C.DispatchKeySet.raw_repr
_storage, _offset = torch.Tensor.untyped_storage, torch.Tensor.storage_offset
_facts_of_host = attrgetter("dtype", "flags.num", "nbytes", "shape")
_facts_of_tensor = attrgetter("dtype", "device", "requires_grad", "nbytes", "shape")
_flat = methodcaller("view", -1)
_gaps: dict[tuple[object, int, torch.device | None], Any] = {}


class _Batch(NamedTuple):
    """The ordinary arrays among those of a call, with facts about each."""

    arrays: list[Any]
    at: list[int]
    """Their indices among all arrays of the call."""
    dtypes: Sequence[Any]
    nbytes: Sequence[int]
    shapes: Sequence[tuple[int, ...]]


class _Part(NamedTuple):
    """Arrays of one dtype in a pack."""

    dtype: Any
    start: int
    stop: int
    """The range of their bytes in the pack."""
    chosen: list[int]
    """Their indices in the batch."""
    filled: list[Any]
    """The arrays; with fillers between them if alignment needs gaps."""
    lengths: list[int]
    """The number of elements of each item of `filled`."""
    shapes: list[tuple[int, ...]]
    """The shapes of the arrays."""

    @property
    def step(self) -> int:
        """The distance from an array to the next in `filled`: 2 if there are fillers, else 1."""
        return 2 if len(self.filled) > len(self.chosen) else 1

    def is_alike(self) -> bool:
        """Return True if all arrays have one shape."""
        return len(set(self.shapes)) == 1

    def pitch(self) -> int:
        """Return the number of elements from the start of an array to the start of the next."""
        return sum(self.lengths[: self.step])


def send_many(hosts: list[HostArray], device: Device, /) -> list[torch.Tensor | None] | None:
    """Copy ordinary host arrays to a device; complete on return. See `Backend.send_many`."""
    place = torch.device(device)
    if not _can_send_to(place):
        return None
    buffers, batch = buffers_of(place), _ordinary_hosts(hosts)
    queue = partial(_queue_send, place, buffers.api.current_stream(place))
    return _carry_packs(buffers, batch, len(hosts), None, queue)


def fetch_many(xs: list[torch.Tensor], /) -> list[HostArray | None] | None:
    """Copy ordinary tensors of one device to the host; complete on return. See `Backend.fetch_many`."""
    place = _packing_device(xs)
    if not place:
        return None
    buffers, batch = buffers_of(place), _ordinary_tensors(xs, place)
    queue = partial(_queue_fetch, place, buffers.api.current_stream(place))
    return _carry_packs(buffers, batch, len(xs), place, queue)


def begin_send(hosts: list[HostArray], device: Device, /) -> Pending | None:
    """Begin to copy a few ordinary host arrays to a device, without a thread. See `Backend.begin_send`.

    The arrays are read before the call returns. The results are complete for any stream.
    """
    place = torch.device(device)
    if not _can_send_to(place) or sum(map(attrgetter("nbytes"), hosts)) > INLINE_NBYTES:
        return None
    buffers, batch, side = buffers_of(place), _ordinary_hosts(hosts), worker_stream(place)
    mine = buffers.api.current_stream(place)

    def queue(parts: list[_Part], pinned: PinnedBuffer) -> Callable[[], Iterable[Any]]:
        with buffers.api.stream(side):
            land = _queue_send(place, side, parts, pinned)
        made = list(land())
        made[0].record_stream(mine)  # one memory for all
        return lambda: made

    return _begin_pack(buffers, batch, len(hosts), None, queue)


def begin_fetch(xs: list[torch.Tensor], /) -> Pending | None:
    """Begin to copy a few ordinary tensors to the host, without a thread. See `Backend.begin_fetch`.

    They are read after the work that the current stream has by now. That stream does not wait for the copy.
    """
    place = _packing_device(xs)
    if not place:
        return None
    buffers = buffers_of(place)
    asked = partial(_queue_fetch_aside, place, buffers)
    return _begin_pack(buffers, _ordinary_tensors(xs, place), len(xs), place, asked)


class Pending:
    """A pack that is being copied. It keeps its pinned buffer until the copy is done.

    If it is deleted before, the next user of the buffer waits for the copy.
    """

    def __init__(self, loan: Loan, finish: Callable[[], list[Any]]) -> None:
        self._loan: Loan | None = loan
        self._finish = finish
        self._made: list[Any] = []

    def done(self) -> bool:
        """Return True if `result` would not wait."""
        loan = self._loan
        return loan is None or bool(loan.pinned.event.query())

    def wait(self, seconds: float | None) -> bool:
        """Wait for the copy, at most this long. Return True if it is done."""
        loan = self._loan
        if loan is not None and seconds is None:
            loan.pinned.event.synchronize()
            return True
        end = monotonic() + (seconds or 0)
        while not self.done():
            if monotonic() >= end:
                return False
            sleep(POLL_SECONDS)
        return True

    def result(self) -> list[Any]:
        """Return the arrays, after `wait`. Two threads may not call it at a time."""
        self._made = self._made or self._finish()  # once, even if Ctrl-C interrupts the rest
        loan, self._loan = self._loan, None
        if loan is not None:
            loan.end(passed=True)
        return self._made


def _begin_pack(
    buffers: PinnedBuffers,
    batch: _Batch,
    n: int,
    place: torch.device | None,
    queue: Callable[[list[_Part], PinnedBuffer], Callable[[], Iterable[Any]]],
) -> Pending | None:
    """Queue the copy of one pack; return None if one pack does not have all `n` arrays of the call."""
    packs = list(islice(_make_packs(batch, place), 2)) if len(batch.at) == n else []
    if len(packs) != 1:
        return None
    with suppress(RuntimeError, DeviceError):  # without memory each array is moved alone
        loan = buffers.lend_at_once(to_handle=True)
        if loan is None:
            return None
        land = queue(packs[0], loan.pinned)

        def finish() -> list[Any]:
            made: list[Any] = [None] * n
            _put_in_order(made, batch, packs[0], land())
            return made

        return Pending(loan, finish)
    return None


def _carry_packs(
    buffers: PinnedBuffers,
    batch: _Batch,
    n: int,
    place: torch.device | None,
    queue: Callable[[list[_Part], PinnedBuffer], Callable[[], Iterable[Any]]],
) -> list[Any]:
    """Copy packs, and return the `n` arrays of the call in order. While one is copied, the next is packed."""
    made: list[Any] = [None] * n
    waiting: deque[tuple[Loan, list[_Part], Callable[[], Iterable[Any]]]] = deque()

    def land() -> None:
        loan, parts, arrays = waiting[0]
        loan.pinned.event.synchronize()  # its copy
        _put_in_order(made, batch, parts, arrays())
        waiting.popleft()
        loan.end(passed=True)

    with suppress(RuntimeError, DeviceError):  # without memory each array is moved alone
        try:
            for parts in _make_packs(batch, place):
                loan = buffers.lend_at_once() if len(waiting) == 1 else None
                if loan is None:
                    if waiting:
                        land()
                    loan = buffers.lend()
                waiting.append((loan, parts, tuple))
                waiting[-1] = loan, parts, queue(parts, loan.pinned)
            while waiting:
                land()
        finally:
            for loan, _, _ in waiting:
                loan.end()
    return made


def _put_in_order(made: list[Any], batch: _Batch, parts: list[_Part], arrays: Iterable[Any]) -> None:
    """Put the arrays of a pack into the list of results, in the order of the call."""
    for i, array in zip(chain.from_iterable([part.chosen for part in parts]), arrays, strict=True):
        made[batch.at[i]] = array


# -- the choice of ordinary arrays -----------------------------------------------------------------


def _ordinary_hosts(hosts: list[HostArray]) -> _Batch:
    """Choose small host arrays in C order, of a dtype that torch has."""
    # The check of dtype, flags and size runs once for each distinct combination, of which a batch has few.
    facts, limit = list(map(_facts_of_host, hosts)), min(SMALL_NBYTES, sizes().chunk)
    known = {
        fact for fact in set(facts) if fact[0] in DTYPE_OF and fact[1] & _C_ORDER and 0 < fact[2] <= limit
    }
    at = [i for i, fact in enumerate(facts) if fact in known]
    dtypes, _, nbytes, shapes = zip(*[facts[i] for i in at], strict=True) if at else ((),) * 4
    return _Batch([hosts[i] for i in at], at, dtypes, nbytes, shapes)


def _ordinary_tensors(xs: list[torch.Tensor], place: torch.device) -> _Batch:
    """Choose small plain tensors of a device in C order that are inside of their storage."""
    # `_keys` gives the dispatch keys of a tensor, which show if anything but its bytes matters (`_bare.py`).
    # The other facts are checked once for each distinct combination. Torch does not check that the storage is
    # large enough, which it may not be after `resize_`, so each tensor is compared with it.
    bare, limit = bare_keys(place.type), min(SMALL_NBYTES, sizes().chunk)
    at = [i for i, key in enumerate(map(_raw, map(_keys, xs))) if key in bare]
    some = [xs[i] for i in at]
    facts = list(map(_facts_of_tensor, some))
    known = {
        fact
        for fact in set(facts)
        if fact[0] in NUMPY_OF and fact[1] == place and not fact[2] and 0 < fact[3] <= limit
    }
    room, begins = map(len, map(_storage, some)), map(_offset, some)
    fit = [
        fact in known and dense and begin * fact[0].itemsize + fact[3] <= most
        for fact, dense, begin, most in zip(
            facts, map(torch.Tensor.is_contiguous, some), begins, room, strict=True
        )
    ]
    chosen = [i for i, fits in enumerate(fit) if fits]
    dtypes, _, _, nbytes, shapes = zip(*[facts[i] for i in chosen], strict=True) if chosen else ((),) * 5
    return _Batch([some[i] for i in chosen], [at[i] for i in chosen], dtypes, nbytes, shapes)


def _can_send_to(place: torch.device) -> bool:
    """Return True if packs can be sent to a device now. In inference mode a plan makes the tensors."""
    return may_use_buffers(place) and not torch.is_inference_mode_enabled()


def _packing_device(xs: list[torch.Tensor]) -> torch.device | None:
    """Return the device from which packs are fetched: that of the first tensor, or of the last one.

    The others are not asked, so that a list of host tensors costs nothing. Return None if neither is on a
    device with pinned buffers.
    """
    place = (xs[-1] if xs[0].is_cpu else xs[0]).device
    return place if may_use_buffers(place) else None


# -- the layout of a pack --------------------------------------------------------------------------


def _make_packs(batch: _Batch, place: torch.device | None) -> Iterator[list[_Part]]:
    """Yield packs that fit into one buffer. `place` is the device of the arrays; None for the host."""
    limit = sizes().chunk
    pack: list[_Part] = []
    used = 0
    for dtype in dict.fromkeys(batch.dtypes):
        chosen = [i for i, other in enumerate(batch.dtypes) if other == dtype]
        nbytes = [batch.nbytes[i] for i in chosen]
        starts = list(accumulate([-(-n // ALIGNMENT) * ALIGNMENT for n in nbytes], initial=0))
        stops = list(map(add, starts, nbytes))
        done = 0
        while done < len(chosen):
            end = bisect_right(stops, limit - used + starts[done])
            if end > done:
                pack.append(_make_part(batch, dtype, used, chosen[done:end], place))
                used, done = used + starts[end] - starts[done], end
            else:
                yield pack
                pack, used = [], 0
    if pack:
        yield pack


def _make_part(batch: _Batch, dtype: Any, start: int, chosen: list[int], place: torch.device | None) -> _Part:
    """Describe the arrays of one dtype in a pack, with fillers between them for alignment."""
    itemsize = dtype.itemsize
    filled, shapes = [batch.arrays[i] for i in chosen], [batch.shapes[i] for i in chosen]
    lengths = [batch.nbytes[i] // itemsize for i in chosen]
    gaps = [-n % (ALIGNMENT // itemsize) for n in lengths[:-1]]
    if any(gaps):
        fill = {n: _gap_filler(dtype, n, place) for n in set(gaps)}
        last, more = filled[-1], lengths[-1]
        filled = [y for x, gap in zip(filled, gaps, strict=False) for y in (x, fill[gap])]
        lengths = [n for length, gap in zip(lengths, gaps, strict=False) for n in (length, gap)]
        filled.append(last)
        lengths.append(more)
    return _Part(dtype, start, start + sum(lengths) * itemsize, chosen, filled, lengths, shapes)


def _gap_filler(dtype: Any, n: int, place: torch.device | None) -> Any:
    """Return an array of `n` elements to fill a gap. Nobody reads it, so it is made once and used again."""
    key = dtype, n, place
    if key not in _gaps:
        _gaps[key] = np.zeros(n, dtype) if place is None else torch.empty(n, dtype=dtype, device=place)
    return _gaps[key]


# -- from the host to a device ---------------------------------------------------------------------


def _queue_send(
    place: torch.device, stream: Any, parts: list[_Part], pinned: PinnedBuffer
) -> Callable[[], Iterator[torch.Tensor]]:
    """Pack host arrays into a pinned buffer, and queue the copy of the pack on the current stream."""
    stop = parts[-1].stop
    for part in parts:
        goal = pinned.host[part.start : part.stop].view(part.dtype)
        np.concatenate(part.filled, axis=None, out=goal)
    there = torch.empty(stop, dtype=torch.uint8, device=place)
    queue_copy(there, pinned.buffer[:stop], pinned, stream)
    return lambda: chain.from_iterable([_split_tensor(there, part) for part in parts])


def _split_tensor(there: torch.Tensor, part: _Part) -> Sequence[torch.Tensor]:
    """Return the arrays of a part of a pack, as views of the tensor that was moved."""
    with torch._C._ExcludeDispatchKeyGuard(VIEWS):
        typed = there[part.start : part.stop].view(DTYPE_OF[part.dtype])
        if part.is_alike():
            shape = part.shapes[0]
            strides = (part.pitch(), *c_strides(shape, 1))
            return typed.as_strided((len(part.chosen), *shape), strides).unbind()
        rows = typed.split_with_sizes(part.lengths)[:: part.step]
        return list(map(torch.Tensor.view, rows, part.shapes))


# -- from a device to the host ---------------------------------------------------------------------


def _queue_fetch(
    place: torch.device, stream: Any, parts: list[_Part], pinned: PinnedBuffer
) -> Callable[[], Iterator[HostArray]]:
    """Queue the copy of a pack on the current stream, into a buffer of the host."""
    there = _gather(parts, place)
    queue_copy(pinned.buffer[: len(there)], there, pinned, stream)
    return partial(_unpack_on_host, parts, pinned)


def _queue_fetch_aside(
    place: torch.device, buffers: PinnedBuffers, parts: list[_Part], pinned: PinnedBuffer
) -> Callable[[], Iterator[HostArray]]:
    """Gather a pack on the current stream, and queue its copy on another one."""
    there = _gather(parts, place)
    pinned.stream.wait_event(buffers.api.current_stream(place).record_event())
    with buffers.api.stream(pinned.stream):
        queue_copy(pinned.buffer[: len(there)], there, pinned, pinned.stream)
    there.record_stream(pinned.stream)
    return partial(_unpack_on_host, parts, pinned)


@torch.inference_mode()  # a view takes a tenth less time
def _gather(parts: list[_Part], place: torch.device) -> torch.Tensor:
    """Copy the tensors of a pack side by side into one tensor, on the current stream."""
    there = torch.empty(parts[-1].stop, dtype=torch.uint8, device=place)
    for part in parts:
        xs, dtype, shape = part.filled, part.dtype, part.shapes[0]
        rows: tuple[int, ...] = (-1,)
        if part.is_alike() and part.step == 1 and shape:
            rows = (-1, *shape[1:])
        elif set(map(len, part.shapes)) != {1}:
            xs[:: part.step] = map(_flat, xs[:: part.step])
        if dtype in _RARE_DTYPES:
            dtype = ITEMS[dtype]
            xs = list(map(methodcaller("view", dtype), xs))
        torch.cat(xs, out=there[part.start : part.stop].view(dtype).view(rows))
    return there


def _unpack_on_host(parts: list[_Part], pinned: PinnedBuffer) -> Iterator[HostArray]:
    """Copy a pack that has arrived in a buffer to new memory, and return the arrays over it."""
    block = pinned.host[: parts[-1].stop].copy()
    return chain.from_iterable([_split_block(block, part) for part in parts])


def _split_block(block: HostArray, part: _Part) -> Iterable[HostArray]:
    """Return the host arrays over the memory of their pack."""
    dtype, shape, n = NUMPY_OF[part.dtype], part.shapes[0], len(part.chosen)
    if part.is_alike() and shape:
        pitch = part.pitch() * dtype.itemsize
        strides = pitch, *c_strides(shape, dtype.itemsize)
        return np.ndarray((n, *shape), dtype, block, part.start, strides)
    lengths = accumulate(part.lengths[:-1], initial=0)
    starts = [part.start + start * dtype.itemsize for start in islice(lengths, 0, None, part.step)]
    return map(np.ndarray, part.shapes, repeat(dtype), repeat(block), starts)
