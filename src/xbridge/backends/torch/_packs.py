"""Many small arrays between the host and a device, with one copy for each pack.

To ask for a copy takes as long as to copy a MiB. So small arrays are packed side by side, in a pinned buffer
or in one piece of memory of the device, and the pack is copied. What has to be done for each array is done by
C code of NumPy and torch: facts of all arrays are collected in lists, and decisions are made about those that
are distinct.

The functions take ordinary arrays, which are nothing but their bytes. They return None in place of any other,
and of all that are left if there is no memory for a pack.
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
from xbridge.backends.torch._bare import bare_keys, is_open
from xbridge.backends.torch._pinned import ITEMS, PinnedBuffer, PinnedBuffers, buffers_of, sizes
from xbridge.backends.torch._threads import side_of
from xbridge.errors import DeviceError

ALIGNMENT = 256
"""An array of a pack begins at a multiple of so many bytes, like memory that torch allocates."""

SMALL = 1 << 18
"""Bytes up to which arrays are packed. For a larger one, the call costs little beside the copy."""

AT_CALL = 1 << 20
"""Bytes that are packed by the thread that asks for a transfer. To start another would take longer."""

POLL = 5e-4
"""Seconds between two looks at an event, for which a device cannot wait with a time limit."""

VIEWS = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
"""Without it, a tensor over the memory of another is not a view, and has its own version counter."""

DTYPE_OF = {
    native_dtype(word): getattr(torch, word)
    for word in DTYPES
    if hasattr(torch, word) and not word.startswith(("bfloat", "float8"))
}
"""NumPy's own dtypes, and torch's."""
NUMPY_OF = {there: here for here, there in DTYPE_OF.items()}
_LATE = frozenset(getattr(torch, word) for word in ("uint16", "uint32", "uint64") if hasattr(torch, word))
"""Dtypes that some operators of a device may lack."""
_ORDERED = 0x101
"""NumPy's flags: in C order and aligned. Whether it may be written does not matter to a copy."""

_keys, _raw = torch._C._dispatch_keys, torch._C.DispatchKeySet.raw_repr
_storage, _offset = torch.Tensor.untyped_storage, torch.Tensor.storage_offset
_facts_of_host = attrgetter("dtype", "flags.num", "nbytes", "shape")
_facts_of_tensor = attrgetter("dtype", "device", "requires_grad", "nbytes", "shape")
_flat = methodcaller("view", -1)
_gaps: dict[tuple[object, int, torch.device | None], Any] = {}


class _Batch(NamedTuple):
    """The ordinary ones of some arrays, with facts of each."""

    arrays: list[Any]
    at: list[int]
    """Their indices among all arrays."""
    dtypes: Sequence[Any]
    nbytes: Sequence[int]
    shapes: Sequence[tuple[int, ...]]


class _Part(NamedTuple):
    """Arrays of one dtype in a pack."""

    dtype: Any
    start: int
    stop: int
    """Where they are among the bytes of the pack."""
    chosen: list[int]
    """Their indices in the batch."""
    filled: list[Any]
    """The arrays, and the gaps between them if there are any."""
    lengths: list[int]
    """The elements of each of these."""
    shapes: list[tuple[int, ...]]
    """Of the arrays."""

    @property
    def step(self) -> int:
        """From an array to the next among what is filled."""
        return 2 if len(self.filled) > len(self.chosen) else 1

    def is_alike(self) -> bool:
        """Return True if all arrays have one shape."""
        return len(set(self.shapes)) == 1

    def pitch(self) -> int:
        """Return the elements from the start of an array to the start of the next."""
        return sum(self.lengths[: self.step])


def send_many(hosts: list[HostArray], device: Device, /) -> list[torch.Tensor | None] | None:
    """Copy ordinary arrays of the host to a device; complete on return. None in place of any other."""
    place = torch.device(device)
    if not _takes(place):
        return None
    buffers, batch = buffers_of(place), _ordinary_hosts(hosts)
    queue = partial(_sent, place, buffers.api.current_stream(place))
    return _carried(buffers, batch, len(hosts), None, queue)


def fetch_many(xs: list[torch.Tensor], /) -> list[HostArray | None] | None:
    """Copy ordinary tensors of one device to the host; complete on return. None in place of any other."""
    place = _place_of(xs)
    if not place:
        return None
    buffers, batch = buffers_of(place), _ordinary_tensors(xs, place)
    queue = partial(_asked_for, place, buffers.api.current_stream(place))
    return _carried(buffers, batch, len(xs), place, queue)


def begin_send(hosts: list[HostArray], device: Device, /) -> Pending | None:
    """Begin to copy a few ordinary arrays to a device, without a thread; None in doubt.

    The arrays are read before the call returns. The results are complete for any stream.
    """
    place = torch.device(device)
    if not _takes(place) or sum(map(attrgetter("nbytes"), hosts)) > AT_CALL:
        return None
    buffers, batch, side = buffers_of(place), _ordinary_hosts(hosts), side_of(place)
    mine = buffers.api.current_stream(place)

    def queue(parts: list[_Part], pinned: PinnedBuffer) -> Callable[[], Iterable[Any]]:
        with buffers.api.stream(side):
            land = _sent(place, side, parts, pinned)
        made = list(land())
        made[0].record_stream(mine)  # one memory for all
        return lambda: made

    return _begun(buffers, batch, len(hosts), None, queue)


def begin_fetch(xs: list[torch.Tensor], /) -> Pending | None:
    """Begin to copy a few ordinary tensors of a device to the host, without a thread; None in doubt.

    They are read after the work that the current stream has before the call. It does not wait for the copy.
    """
    place = _place_of(xs)
    if not place:
        return None
    buffers = buffers_of(place)
    asked = partial(_copied_aside, place, buffers)
    return _begun(buffers, _ordinary_tensors(xs, place), len(xs), place, asked)


class Pending:
    """A pack that a device copies, in a buffer that is kept until the copy is done."""

    def __init__(
        self,
        buffers: PinnedBuffers,
        pinned: PinnedBuffer,
        finish: Callable[[], list[Any]],
    ) -> None:
        self._buffers, self._finish = buffers, finish
        self._pinned: PinnedBuffer | None = pinned

    def done(self) -> bool:
        """Return True if `result` would not wait."""
        pinned = self._pinned
        return pinned is None or bool(pinned.event.query())

    def wait(self, seconds: float | None) -> bool:
        """Wait for the copy, but not longer than that. Return True if it is done."""
        pinned = self._pinned
        if pinned is not None and seconds is None:
            pinned.event.synchronize()
            return True
        end = monotonic() + (seconds or 0)
        while not self.done():
            if monotonic() >= end:
                return False
            sleep(POLL)
        return True

    def result(self) -> list[Any]:
        """Return the arrays, once. The caller has waited, and no other thread asks meanwhile."""
        made = self._finish()
        self._leave(passed=True)
        return made

    def __del__(self) -> None:
        """Give the buffer back, without a wait."""
        self._leave(passed=False)

    def _leave(self, *, passed: bool) -> None:
        pinned, self._pinned = self._pinned, None
        if pinned is not None:
            self._buffers.take_back(pinned, passed=passed)


def _begun(
    buffers: PinnedBuffers,
    batch: _Batch,
    n: int,
    place: torch.device | None,
    queue: Callable[[list[_Part], PinnedBuffer], Callable[[], Iterable[Any]]],
) -> Pending | None:
    """Queue one pack of so many arrays; return None if it would not have them all."""
    packs = list(islice(_packs(batch, place), 2)) if len(batch.at) == n else []
    if len(packs) != 1:
        return None
    with suppress(RuntimeError, DeviceError):  # without memory each array is moved alone
        pinned = buffers.lend_to_handle()
        if pinned is None:
            return None
        land: Callable[[], Iterable[Any]] | None = None
        try:
            land = queue(packs[0], pinned)
        finally:
            if land is None:
                buffers.take_back(pinned)

        def finish() -> list[Any]:
            made: list[Any] = [None] * n
            _put(made, batch, packs[0], land())
            return made

        return Pending(buffers, pinned, finish)
    return None


def _carried(
    buffers: PinnedBuffers,
    batch: _Batch,
    n: int,
    place: torch.device | None,
    queue: Callable[[list[_Part], PinnedBuffer], Callable[[], Iterable[Any]]],
) -> list[Any]:
    """Copy packs, and return the arrays in order, `n` in all. While one is copied, the next is packed."""
    made: list[Any] = [None] * n
    waiting: deque[tuple[PinnedBuffer, list[_Part], Callable[[], Iterable[Any]]]] = deque()

    def land() -> None:
        pinned, parts, arrays = waiting[0]
        pinned.event.synchronize()  # its copy
        _put(made, batch, parts, arrays())
        waiting.popleft()
        buffers.give_back(pinned, passed=True)

    with suppress(RuntimeError, DeviceError):  # without memory each array is moved alone
        try:
            for parts in _packs(batch, place):
                pinned = buffers.lend_at_once() if len(waiting) == 1 else None
                if pinned is None:
                    if waiting:
                        land()
                    pinned = buffers.lend()
                waiting.append((pinned, parts, tuple))
                waiting[-1] = pinned, parts, queue(parts, pinned)
            while waiting:
                land()
        finally:
            for pinned, _, _ in waiting:
                buffers.give_back(pinned)
    return made


def _put(made: list[Any], batch: _Batch, parts: list[_Part], arrays: Iterable[Any]) -> None:
    """Put the arrays of a pack where they belong among all."""
    for i, array in zip(chain.from_iterable([part.chosen for part in parts]), arrays, strict=True):
        made[batch.at[i]] = array


# -- what is ordinary ------------------------------------------------------------------------------


def _ordinary_hosts(hosts: list[HostArray]) -> _Batch:
    """Choose arrays of NumPy in C order that torch has a dtype for."""
    facts, limit = list(map(_facts_of_host, hosts)), min(SMALL, sizes().chunk)
    known = {
        fact
        for fact in set(facts)
        if fact[0] in DTYPE_OF and fact[1] & _ORDERED == _ORDERED and 0 < fact[2] <= limit
    }
    at = [i for i, fact in enumerate(facts) if fact in known]
    dtypes, _, nbytes, shapes = zip(*[facts[i] for i in at], strict=True) if at else ((),) * 4
    return _Batch([hosts[i] for i in at], at, dtypes, nbytes, shapes)


def _ordinary_tensors(xs: list[torch.Tensor], place: torch.device) -> _Batch:
    """Choose tensors of a device that are nothing but their bytes, in C order and inside of their storage."""
    bare, limit = bare_keys(place.type), min(SMALL, sizes().chunk)
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


def _takes(place: torch.device) -> bool:
    """Return True if tensors may be made on a device now. A plan leaves the inference mode for that."""
    return is_open(place) and not torch.is_inference_mode_enabled()


def _place_of(xs: list[torch.Tensor]) -> torch.device | None:
    """Return the device of the first or last tensor, if one of them is on a device with buffers.

    Not all are asked: a tree of tensors on the host has none on a device.
    """
    place = (xs[-1] if xs[0].is_cpu else xs[0]).device
    return place if is_open(place) else None


# -- what a pack consists of -----------------------------------------------------------------------


def _packs(batch: _Batch, place: torch.device | None) -> Iterator[list[_Part]]:
    """Yield packs of at most one buffer. `place` is where the gaps between arrays are, None for the host."""
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
                pack.append(_part(batch, dtype, used, chosen[done:end], place))
                used, done = used + starts[end] - starts[done], end
            else:
                yield pack
                pack, used = [], 0
    if pack:
        yield pack


def _part(batch: _Batch, dtype: Any, start: int, chosen: list[int], place: torch.device | None) -> _Part:
    """Describe the arrays of one dtype in a pack, with the gaps between them."""
    itemsize = dtype.itemsize
    filled, shapes = [batch.arrays[i] for i in chosen], [batch.shapes[i] for i in chosen]
    lengths = [batch.nbytes[i] // itemsize for i in chosen]
    gaps = [-n % (ALIGNMENT // itemsize) for n in lengths[:-1]]
    if any(gaps):
        fill = {n: _gap(dtype, n, place) for n in set(gaps)}
        last, more = filled[-1], lengths[-1]
        filled = [y for x, gap in zip(filled, gaps, strict=False) for y in (x, fill[gap])]
        lengths = [n for length, gap in zip(lengths, gaps, strict=False) for n in (length, gap)]
        filled.append(last)
        lengths.append(more)
    return _Part(dtype, start, start + sum(lengths) * itemsize, chosen, filled, lengths, shapes)


def _gap(dtype: Any, n: int, place: torch.device | None) -> Any:
    """Return a few elements to fill a gap, which nobody reads. They are made once."""
    key = dtype, n, place
    if key not in _gaps:
        _gaps[key] = np.zeros(n, dtype) if place is None else torch.empty(n, dtype=dtype, device=place)
    return _gaps[key]


# -- there -----------------------------------------------------------------------------------------


def _sent(
    place: torch.device, stream: Any, parts: list[_Part], pinned: PinnedBuffer
) -> Callable[[], Iterator[torch.Tensor]]:
    """Pack arrays of the host, and queue the copy of the pack on the current stream."""
    stop = parts[-1].stop
    for part in parts:
        goal = pinned.host[part.start : part.stop].view(part.dtype)
        np.concatenate(part.filled, axis=None, out=goal)
    there = torch.empty(stop, dtype=torch.uint8, device=place)
    there.copy_(pinned.buffer[:stop], non_blocking=True)
    pinned.event.record(stream)
    return lambda: chain.from_iterable([_tensors(there, part) for part in parts])


def _tensors(there: torch.Tensor, part: _Part) -> Sequence[torch.Tensor]:
    """Return the tensors in the memory of their pack."""
    with torch._C._ExcludeDispatchKeyGuard(VIEWS):
        typed = there[part.start : part.stop].view(DTYPE_OF[part.dtype])
        if part.is_alike():
            shape = part.shapes[0]
            strides = (part.pitch(), *c_strides(shape, 1))
            return typed.as_strided((len(part.chosen), *shape), strides).unbind()
        rows = typed.split_with_sizes(part.lengths)[:: part.step]
        return list(map(torch.Tensor.view, rows, part.shapes))


# -- back ------------------------------------------------------------------------------------------


def _asked_for(
    place: torch.device, stream: Any, parts: list[_Part], pinned: PinnedBuffer
) -> Callable[[], Iterator[HostArray]]:
    """Queue the copy of a pack on the current stream, into a buffer of the host."""
    with torch.inference_mode():
        there = _gathered(parts, place)
        pinned.buffer[: len(there)].copy_(there, non_blocking=True)
        pinned.event.record(stream)
    return partial(_landed, parts, pinned)


def _copied_aside(
    place: torch.device, buffers: PinnedBuffers, parts: list[_Part], pinned: PinnedBuffer
) -> Callable[[], Iterator[HostArray]]:
    """Gather a pack on the current stream, and queue its copy on another one."""
    with torch.inference_mode():
        there = _gathered(parts, place)
        pinned.stream.wait_event(buffers.api.current_stream(place).record_event())
        with buffers.api.stream(pinned.stream):
            pinned.buffer[: len(there)].copy_(there, non_blocking=True)
            pinned.event.record(pinned.stream)
        there.record_stream(pinned.stream)
    return partial(_landed, parts, pinned)


def _gathered(parts: list[_Part], place: torch.device) -> torch.Tensor:
    """Copy tensors of a device side by side, on its current stream."""
    there = torch.empty(parts[-1].stop, dtype=torch.uint8, device=place)
    for part in parts:
        xs, dtype, shape = part.filled, part.dtype, part.shapes[0]
        rows: tuple[int, ...] = (-1,)
        if part.is_alike() and part.step == 1 and shape:
            rows = (-1, *shape[1:])
        elif set(map(len, part.shapes)) != {1}:
            xs = list(map(_flat, xs))
        if dtype in _LATE:
            dtype = ITEMS[dtype]
            xs = list(map(methodcaller("view", dtype), xs))
        torch.cat(xs, out=there[part.start : part.stop].view(dtype).view(rows))
    return there


def _landed(parts: list[_Part], pinned: PinnedBuffer) -> Iterator[HostArray]:
    """Copy a pack that has arrived to memory of its own, and return the arrays in it."""
    block = pinned.host[: parts[-1].stop].copy()
    return chain.from_iterable([_arrays(block, part) for part in parts])


def _arrays(block: HostArray, part: _Part) -> Iterable[HostArray]:
    """Return the arrays in the memory of their pack."""
    dtype, shape, n = NUMPY_OF[part.dtype], part.shapes[0], len(part.chosen)
    if part.is_alike() and shape:
        pitch = part.pitch() * dtype.itemsize
        strides = pitch, *c_strides(shape, dtype.itemsize)
        return np.ndarray((n, *shape), dtype, block, part.start, strides)
    lengths = accumulate(part.lengths[:-1], initial=0)
    starts = [part.start + start * dtype.itemsize for start in islice(lengths, 0, None, part.step)]
    return map(np.ndarray, part.shapes, repeat(dtype), repeat(block), starts)
