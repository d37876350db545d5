"""Move many small arrays between the host and a device in packs: one copy for each pack.

To start a copy takes as long as to copy a MiB. So small arrays are placed side by side, in a pinned buffer or
in one tensor on the device, and the pack is copied as a whole.

A loop of Python over the arrays would take longer than the copies. So per-array work uses `map`, `zip` and
the like over C functions of NumPy or torch; Python loops only over the distinct facts about arrays.

The functions accept ordinary arrays, which can be copied as plain bytes. They return None in place of any
other array, and of all that are left if there is no memory for a pack. Such arrays are moved by a plan.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import accumulate, chain, islice, repeat
from operator import add, attrgetter, methodcaller
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakSet

import numpy as np
import torch

from xbridge._core.devices import Device
from xbridge._core.dtypes import DTYPES
from xbridge._core.protocol import HostArray, Pending, c_strides
from xbridge._host.memory import native_dtype
from xbridge.backends.torch import _private
from xbridge.backends.torch._transfer.pinned import (
    ITEMS,
    bare_keys,
    is_bare,
    may_use_buffers,
    pin_buffer,
    sizes,
)
from xbridge.backends.torch._transfer.streams import streams_of, worker_stream
from xbridge.backends.torch._unsupported import storage_fault
from xbridge.errors import DeviceError

ALIGNMENT = 256
"""Arrays of a pack begin at multiples of this number of bytes, as does memory that torch allocates."""

SMALL_NBYTES = 1 << 18
"""The most bytes of an array that is packed. For larger ones, the copy itself takes most of the time."""

INLINE_NBYTES = 1 << 20
"""The most bytes that `begin_send` packs in the calling thread. For less, to start a thread takes longer."""

HANDLES = 2
"""How many unfinished transfers may keep a buffer at a time. Others use a thread, which ends without it."""

DTYPE_OF = {
    native_dtype(word): getattr(torch, word)
    for word, facts in DTYPES.items()
    if hasattr(torch, word) and not facts.is_extended
}
"""Torch's dtypes for NumPy's own dtypes."""
NUMPY_OF = {there: here for here, there in DTYPE_OF.items()}
_C_ORDER = 0x1
"""The bit of NumPy's `flags.num` for C order, all that a copy needs."""

_keys, _raw = _private.dispatch_keys, _private.raw_keys
_storage, _offset = torch.Tensor.untyped_storage, torch.Tensor.storage_offset
_facts_of_host = attrgetter("dtype", "flags.num", "nbytes", "shape")
_facts_of_tensor = attrgetter("dtype", "device", "requires_grad", "nbytes", "shape")
_flat = methodcaller("view", -1)

Copy: TypeAlias = "tuple[Any, Callable[[], Iterable[Any]]]"
"""The event of a copy that was queued, and a function that returns the arrays of the pack after it."""


class _Batch(NamedTuple):
    """The ordinary arrays among those of a call, with facts about each."""

    arrays: list[Any]
    at: list[int]
    """Their indices among all arrays of the call."""
    dtypes: Sequence[Any]
    nbytes: Sequence[int]
    shapes: Sequence[tuple[int, ...]]
    place: torch.device | None
    """The device of the arrays; None for the host."""


class _Part(NamedTuple):
    """Arrays of one dtype in a pack."""

    dtype: Any
    start: int
    """Where their bytes begin in the pack."""
    chosen: list[int]
    """Their indices in the batch."""
    filled: list[Any]
    """The arrays; with fillers between them if alignment needs gaps."""
    lengths: list[int]
    """The number of elements of each item of `filled`."""
    shapes: list[tuple[int, ...]]
    """The shapes of the arrays."""

    @property
    def stop(self) -> int:
        """The end of their bytes in the pack."""
        return self.start + sum(self.lengths) * int(self.dtype.itemsize)

    @property
    def step(self) -> int:
        """The distance from an array to the next in `filled`: 2 if there are fillers, else 1."""
        return 2 if len(self.filled) > len(self.chosen) else 1

    def strides(self) -> tuple[int, ...] | None:
        """Return the strides of all arrays as one, counted in elements; None if they differ in shape."""
        if len(set(self.shapes)) > 1:
            return None
        return sum(self.lengths[: self.step]), *c_strides(self.shapes[0], 1)


def send_many(hosts: list[HostArray], device: Device) -> list[torch.Tensor | None] | None:
    """Copy ordinary host arrays to a device; complete on return. See `Transfers.send_many`."""
    place = torch.device(device)
    if not _can_send_to(place):
        return None
    return _carry_packs(_ordinary_hosts(hosts), len(hosts), partial(_queue_send, place))


def fetch_many(xs: list[torch.Tensor]) -> list[HostArray | None] | None:
    """Copy ordinary tensors of one device to the host; complete on return. See `Transfers.fetch_many`."""
    place = _packing_device(xs)
    if place is None:
        return None
    return _carry_packs(_ordinary_tensors(xs, place), len(xs), partial(_queue_fetch, place))


def begin_send(hosts: list[HostArray], device: Device) -> Pending | None:
    """Begin to copy a few ordinary host arrays to a device, without a thread. See `Transfers.begin_send`."""
    place = torch.device(device)
    if not _can_send_to(place) or sum(map(attrgetter("nbytes"), hosts)) > INLINE_NBYTES:
        return None
    return _begin_pack(_ordinary_hosts(hosts), len(hosts), partial(_queue_send_aside, place))


def begin_fetch(xs: list[torch.Tensor]) -> Pending | None:
    """Begin to copy a few ordinary tensors to the host, without a thread. See `Transfers.begin_fetch`."""
    place = _packing_device(xs)
    if place is None:
        return None
    return _begin_pack(_ordinary_tensors(xs, place), len(xs), partial(_queue_fetch, place, aside=True))


_handles: WeakSet[Callable[[], list[Any]]] = WeakSet()
"""The functions of unfinished transfers that return their arrays. Each keeps a pinned buffer."""


def _begin_pack(batch: _Batch, n: int, queue: Callable[[list[_Part]], Copy]) -> Pending | None:
    """Queue the copy of one pack; return None if one pack does not have all `n` arrays of the call."""
    packs = list(islice(_make_packs(batch), 2)) if len(batch.at) == n else []
    if len(packs) != 1 or len(_handles) >= HANDLES:
        return None
    with suppress(RuntimeError, DeviceError):  # without memory each array is moved alone
        event, land = queue(packs[0])

        def arrays() -> list[Any]:
            return _in_order([None] * n, batch, packs[0], land())

        _handles.add(arrays)
        return event, arrays
    return None


def _carry_packs(batch: _Batch, n: int, queue: Callable[[list[_Part]], Copy]) -> list[Any]:
    """Copy packs, and return the `n` arrays of the call in order. While one is copied, the next is packed."""
    made: list[Any] = [None] * n
    waiting: deque[tuple[list[_Part], Copy]] = deque()

    def land() -> None:
        parts, (event, arrays) = waiting.popleft()
        event.synchronize()  # the copy
        _in_order(made, batch, parts, arrays())

    with suppress(RuntimeError, DeviceError):  # without memory each array is moved alone
        for parts in _make_packs(batch):
            if len(waiting) == 2:
                land()
            waiting.append((parts, queue(parts)))
        while waiting:
            land()
    return made


def _in_order(made: list[Any], batch: _Batch, parts: list[_Part], arrays: Iterable[Any]) -> list[Any]:
    """Put the arrays of a pack into the list of results, in the order of the call."""
    for i, array in zip(chain.from_iterable([part.chosen for part in parts]), arrays, strict=True):
        made[batch.at[i]] = array
    return made


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
    return _Batch([hosts[i] for i in at], at, dtypes, nbytes, shapes, None)


def _ordinary_tensors(xs: list[torch.Tensor], place: torch.device) -> _Batch:
    """Choose small plain tensors of a device in C order that are inside of their storage."""
    # `_keys` gives the dispatch keys of a tensor, which show if anything but its bytes matters (`pinned.py`).
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
    return _Batch([some[i] for i in chosen], [at[i] for i in chosen], dtypes, nbytes, shapes, place)


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


def _make_packs(batch: _Batch) -> Iterator[list[_Part]]:
    """Yield packs that fit into one buffer."""
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
                pack.append(_make_part(batch, dtype, used, chosen[done:end]))
                used, done = used + starts[end] - starts[done], end
            else:
                yield pack
                pack, used = [], 0
    if pack:
        yield pack


def _make_part(batch: _Batch, dtype: Any, start: int, chosen: list[int]) -> _Part:
    """Describe the arrays of one dtype in a pack, with fillers between them for alignment."""
    itemsize = dtype.itemsize
    filled, shapes = [batch.arrays[i] for i in chosen], [batch.shapes[i] for i in chosen]
    lengths = [batch.nbytes[i] // itemsize for i in chosen]
    gaps = [-n % (ALIGNMENT // itemsize) for n in lengths[:-1]]
    if any(gaps):
        fill = {n: _gap_filler(dtype, n, batch.place) for n in set(gaps)}
        fillers = [fill[gap] for gap in gaps]
        filled = [*chain.from_iterable(zip(filled, fillers, strict=False)), filled[-1]]
        lengths = [*chain.from_iterable(zip(lengths, gaps, strict=False)), lengths[-1]]
    return _Part(dtype, start, chosen, filled, lengths, shapes)


@cache
def _gap_filler(dtype: Any, n: int, place: torch.device | None) -> Any:
    """Return an array of `n` elements to fill a gap. Nobody reads it, so it is made once and used again."""
    return np.zeros(n, dtype) if place is None else torch.empty(n, dtype=dtype, device=place)


# -- from the host to a device ---------------------------------------------------------------------


def _queue_send(place: torch.device, parts: list[_Part]) -> Copy:
    """Pack host arrays into a pinned buffer, and queue the copy of the pack on the current stream."""
    stop = parts[-1].stop
    buffer = pin_buffer()[:stop]
    host = buffer.numpy()
    for part in parts:
        np.concatenate(part.filled, axis=None, out=host[part.start : part.stop].view(part.dtype))
    there = torch.empty(stop, dtype=torch.uint8, device=place)
    there.copy_(buffer, non_blocking=True)
    event = streams_of(place).current_stream(place).record_event()
    return event, lambda: chain.from_iterable([_split_tensor(there, part) for part in parts])


def _queue_send_aside(place: torch.device, parts: list[_Part]) -> Copy:
    """Queue the copy of a pack on the stream of worker threads, so that it does not wait for this one's."""
    api = streams_of(place)
    with api.stream(worker_stream(place)):
        event, land = _queue_send(place, parts)
    made = list(land())
    made[0].record_stream(api.current_stream(place))  # one memory for all
    return event, lambda: made


def _split_tensor(there: torch.Tensor, part: _Part) -> Sequence[torch.Tensor]:
    """Return the arrays of a part of a pack, as views of the tensor that was moved."""
    with _own_versions():
        typed = there[part.start : part.stop].view(DTYPE_OF[part.dtype])
        strides = part.strides()
        if strides:
            return typed.as_strided((len(part.chosen), *part.shapes[0]), strides).unbind()
        rows = typed.split_with_sizes(part.lengths)[:: part.step]
        return list(map(torch.Tensor.view, rows, part.shapes))


def _own_versions() -> Any:
    """Return a context in which the results of view operations are no views for autograd.

    They have version counters of their own. Otherwise an in-place change of one tensor of a pack would count
    as a change of all.
    """
    return _private.exclude_keys(_private.VIEWS)


# -- from a device to the host ---------------------------------------------------------------------


def _queue_fetch(place: torch.device, parts: list[_Part], *, aside: bool = False) -> Copy:
    """Gather a pack on the current stream, and queue its copy into a buffer, on another stream if asked."""
    api = streams_of(place)
    there, buffer = _gather(parts, place), pin_buffer()
    gathered = stream = api.current_stream(place)
    if aside:
        stream = api.Stream(place)
        stream.wait_stream(gathered)
        there.record_stream(stream)
    with api.stream(stream):
        buffer[: len(there)].copy_(there, non_blocking=True)
    return stream.record_event(), partial(_unpack_on_host, parts, buffer)


@torch.inference_mode()  # a view takes a tenth less time
def _gather(parts: list[_Part], place: torch.device) -> torch.Tensor:
    """Copy the tensors of a pack side by side into one tensor, on the current stream."""
    there = torch.empty(parts[-1].stop, dtype=torch.uint8, device=place)
    for part in parts:
        xs, shape = part.filled, part.shapes[0]
        rows: tuple[int, ...] = (-1,)
        if part.step == 1 and shape and part.strides():
            rows = (-1, *shape[1:])
        elif set(map(len, part.shapes)) != {1}:
            xs[:: part.step] = map(_flat, xs[:: part.step])
        torch.cat(xs, out=there[part.start : part.stop].view(part.dtype).view(rows))
    return there


def _unpack_on_host(parts: list[_Part], buffer: torch.Tensor) -> Iterator[HostArray]:
    """Copy a pack that has arrived in a buffer to new memory, and return the arrays over it."""
    block = buffer.numpy()[: parts[-1].stop].copy()
    return chain.from_iterable([_split_block(block, part) for part in parts])


def _split_block(block: HostArray, part: _Part) -> Iterable[HostArray]:
    """Return the host arrays over the memory of their pack."""
    dtype, shape, size = NUMPY_OF[part.dtype], part.shapes[0], part.dtype.itemsize
    strides = part.strides()
    if strides and shape:
        return np.ndarray((len(part.chosen), *shape), dtype, block, part.start, [n * size for n in strides])
    lengths = accumulate(part.lengths[:-1], initial=0)
    starts = [part.start + start * size for start in islice(lengths, 0, None, part.step)]
    return map(np.ndarray, part.shapes, repeat(dtype), repeat(block), starts)


# -- tensors of the host and of a device -------------------------------------------------------------


def to_device_many(xs: list[torch.Tensor], device: Device) -> list[torch.Tensor | None] | None:
    """Move plain tensors in packs, as integers of their size, which NumPy has; None in place of any other."""
    back = device.kind == "cpu"
    at = [i for i, x in enumerate(xs) if x.is_cpu is not back and is_bare(x) and not storage_fault(x)]
    if not at or not (_packing_device(xs) if back else _can_send_to(torch.device(device))):
        return None
    raw = [xs[i].view(ITEMS[xs[i].dtype]) for i in at]
    moved: list[Any] | None = fetch_many(raw) if back else send_many([x.numpy() for x in raw], device)
    made: list[torch.Tensor | None] = [None] * len(xs)
    with _own_versions():
        for i, y in zip(at, moved or (), strict=False):
            if y is not None:
                made[i] = (torch.from_numpy(y) if back else y).view(xs[i].dtype)
    return made
