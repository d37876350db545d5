"""Torch's `transfers`: packs of small arrays, pieces of large ones, and conversions in other threads.

`Tensor.to` makes all moves in which torch has to take part, because of gradients, tracing, modes or
subclasses, and those that would gain nothing from buffers: single small tensors, and those in pinned memory.

A device reads and writes pinned memory at line rate, and other host memory several times slower. But pinning
memory takes longer than a copy. So the caller's memory is never pinned: arrays move through buffers. Those
come from torch's allocator of pinned memory, which keeps what is freed, and hands it out only when all copies
that were queued on it are done. So a buffer may be dropped at any time, also by Ctrl-C.

To start a copy takes as long as to copy a MiB. So small arrays are placed side by side in a pack, which is
copied as a whole. A loop of Python over them would take longer than the copies, so per-array work uses `map`
over C functions; Python loops only over the distinct facts about arrays. What cannot be copied as plain bytes
is left to a plan, and so are all arrays for which there is no memory.

A large array is moved piece by piece. The calling thread and a few others copy the pieces. Each has a buffer
of its own and uses its halves in turn: while the device copies one half, the thread fills or empties the
other. NumPy copies the bytes on the host, in the thread that calls it and without the GIL. Torch would start
OpenMP threads for each of these threads.
"""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cache, partial
from itertools import accumulate, chain, cycle, repeat
from operator import attrgetter
from os import getpid
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from xbridge._core.devices import CPU, Device
from xbridge._core.protocol import HostArray, Transfers
from xbridge._host.memory import fill, native_dtype
from xbridge.backends.torch import _private
from xbridge.backends.torch._dtypes import DTYPE_OF, TORCH_BY_NAME
from xbridge.backends.torch._private import DECLINED, dispatch_modes, dual_levels
from xbridge.backends.torch._threads import is_captured, queue_mark, streams_of, thread_context, threaded
from xbridge.backends.torch._unsupported import apply_pending, check_readable, storage_fault
from xbridge.errors import DeviceError, OptionError

SETTING = "XBRIDGE_PINNED_MIB"
"""The environment variable for the memory to pin for a large array, in MiB; 0 turns buffers off."""

LEAST = 1 << 25
"""The least bytes of an array that moves through buffers. For less, `Tensor.to` is as fast.

On an H100, 32 MiB took 5.2 ms to the device through buffers and 2.9 ms without, and 64 MiB 5.6 and 8.6 ms;
back, 16 MiB took 4.5 and 1.4 ms, and 32 MiB 5.8 and 19.8 ms. About 4 ms of each time through buffers was the
start of the threads, which stay for the next array (`benchmarks/gpu.md`).
"""

SMALL_NBYTES = 1 << 18
"""The most bytes of an array that is packed. For larger ones, the copy itself takes most of the time."""

ALIGNMENT = 256
"""Arrays of a pack on a device begin at multiples of this number of bytes, as memory of torch does."""

_BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
ITEMS = {dtype: _BYTES[dtype.itemsize] for dtype in TORCH_BY_NAME.values()}
"""For each dtype, one of the same size that NumPy has too, under which the bytes are copied."""

NUMPY_OF = {there: here for here, there in DTYPE_OF.items()}

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_C_ORDER = 0x1
"""The bit of NumPy's `flags.num` for C order, all that a copy needs."""

_is_traced, _is_inference = torch.compiler.is_dynamo_compiling, torch.is_inference_mode_enabled
_keys, _raw = _private.dispatch_keys, _private.raw_keys
_view = torch.Tensor.view
_over: Callable[..., HostArray] = np.ndarray
plain_copy = np.copyto
"""The copy without a cast. Otherwise `fill` is used, which casts and ignores lost values."""
_facts_of_host = attrgetter("dtype", "nbytes", "shape", "flags.num")
_facts_of_tensor = attrgetter("dtype", "nbytes", "shape", "device", "requires_grad")


class Sizes(NamedTuple):
    """Sizes of the pinned buffers, and of the arrays that use them."""

    chunk: int
    """Bytes of a buffer. Two halves of it take turns for a large array, and a pack fills all of it."""
    buffers: int
    """The number of buffers, and of threads, for a large array."""
    least: int


@cache
def sizes() -> Sizes:
    """Return the sizes. The environment variable is read on first use; with 0, no array uses buffers."""
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


def pin_buffer() -> torch.Tensor:
    """Return a pinned buffer of bytes, which is the caller's until nothing refers to it."""
    chunk = sizes().chunk
    try:
        return torch.empty(chunk, dtype=torch.uint8, device="cpu", pin_memory=True)
    except (RuntimeError, TypeError, ValueError) as error:
        hint = f"a smaller {SETTING}, or {SETTING}=0"
        raise DeviceError.build(f"pin {chunk >> 20} MiB", str(error).partition("\n")[0], hint) from error


def is_followed() -> bool:
    """Return True if a mode, a transform or a compiler of this thread takes part in all operations."""
    if dual_levels._current_level >= 0 or dispatch_modes._is_in_torch_dispatch_mode:
        return True
    return _private.current_transform() is not None or _is_traced()


def may_use_buffers(place: torch.device) -> bool:
    """Return True if the device is one with pinned buffers, and no mode, transform or capture is active."""
    if place.type not in ("cuda", _private.get_plugin_device()) or is_followed():
        return False
    api = streams_of(place)
    return api is not None and not is_captured(api)


def _current_stream(place: torch.device) -> Any:
    return getattr(torch, place.type).current_stream(place)


def is_bare(x: torch.Tensor) -> bool:
    """Return True if a tensor can be moved as plain bytes: nothing is pending on it and nothing tracks it."""
    if type(x) not in _PLAIN or x.dtype not in ITEMS or x.requires_grad or not x.numel():
        return False
    return _raw(_keys(x)) in bare_keys(x.device.type)


@cache
def bare_keys(kind: str) -> frozenset[int]:
    """Return the dispatch keys of plain tensors on a kind of device, in and out of inference mode.

    They show in one integer all that torch's dispatcher would do for a tensor: autograd, transforms, a
    conjugate bit. A tensor with the keys of a new empty one has nothing of this.
    """
    found = []
    for mode in (False, True):
        with torch.inference_mode(mode):
            found.append(_raw(_keys(torch.empty(0, device=kind))))
    return frozenset(found)


def to_device(x: torch.Tensor, device: Device, /) -> torch.Tensor:
    """Copy to new memory on another device, complete for any stream."""
    x = apply_pending(check_readable(x))
    if _is_traced():
        return x.to(device._word)  # an older compiler follows a plain string alone
    place = torch.device(device)
    accelerator = place if x.is_cpu else x.device
    if x.numel() * x.itemsize < sizes().least or x.is_cpu is (place.type == "cpu"):
        return x.to(place)
    if not (may_use_buffers(accelerator) and is_bare(x)) or (x.is_cpu and x.is_pinned()):
        return x.to(place)
    return send_tensor(x, place) if x.is_cpu else fetch_tensor(x)


class _TorchTransfers(Transfers):
    has_packs = True

    def fast_to_device(self, device: Any, /) -> Callable[[HostArray], torch.Tensor | None] | None:
        try:
            result_device = torch.device(device)
        except (RuntimeError, TypeError):
            return None
        if result_device.type in ("cpu", "meta"):
            return None
        from_numpy = torch.from_numpy

        def there(host: HostArray) -> torch.Tensor | None:
            # NumPy's flag `carray` means aligned, writable and in C order: `from_numpy` warns of read-only
            # arrays, and refuses negative strides. `Tensor.to` without `non_blocking` waits for its copy.
            if not host.flags.carray or host.dtype not in DTYPE_OF:
                return None
            if _is_traced() or _is_inference() or dispatch_modes._is_in_torch_dispatch_mode:
                return None
            try:
                x = from_numpy(host)
                return x.to(result_device) if host.nbytes < sizes().least else to_device(x, device)
            except DECLINED:  # an integer by its other C name; any other error comes from the plan too
                return None

        return there

    def fast_from_device(self, x: torch.Tensor, /) -> HostArray | None:
        if _is_traced() or dual_levels._current_level >= 0 or dispatch_modes._is_in_torch_dispatch_mode:
            return None
        try:
            if x.is_cpu or x.requires_grad or x.dtype not in NUMPY_OF:
                return None
            if _raw(_keys(x)) not in bare_keys(x.device.type) or not x.is_contiguous():
                return None
            nbytes = x.nbytes
            if len(x.untyped_storage()) < x.storage_offset() * x.itemsize + nbytes:
                return None
            return (x.cpu() if nbytes < sizes().least else to_device(x, CPU)).numpy()
        except DECLINED:
            return None

    def send_many(self, hosts: list[HostArray], device: Device, /) -> list[torch.Tensor | None] | None:
        place = torch.device(device)
        if not may_use_buffers(place) or _is_inference():  # in which a plan makes the tensors
            return None
        facts = list(map(_facts_of_host, hosts))
        known = {
            fact for fact in set(facts) if fact[0] in DTYPE_OF and fact[3] & _C_ORDER and _is_small(fact[1])
        }
        chosen = [i for i, fact in enumerate(facts) if fact in known]
        return _carry_packs(hosts, _make_packs(facts, chosen, ALIGNMENT), partial(_queue_send, place))

    def fetch_many(self, xs: list[torch.Tensor], /) -> list[HostArray | None] | None:
        # The first or the last tensor is on the device, so that a list of host tensors costs nothing.
        place = (xs[-1] if xs[0].is_cpu else xs[0]).device
        if not may_use_buffers(place):
            return None
        facts, chosen = choose_tensors(xs, place)
        return _carry_packs(xs, _make_packs(facts, chosen, 1), partial(_queue_fetch, place))

    def to_device_many(self, xs: list[torch.Tensor], device: Device, /) -> list[torch.Tensor]:
        back = device.kind == "cpu"
        place = next((x.device for x in xs if not x.is_cpu), None) if back else torch.device(device)
        if place is None or not may_use_buffers(place):
            return [to_device(x, device) for x in xs]
        # Packs have dtypes of NumPy, so plain tensors are moved as integers of their size.
        at = [i for i, x in enumerate(xs) if x.is_cpu is not back and is_bare(x) and not storage_fault(x)]
        raw: list[Any] = [xs[i].view(ITEMS[xs[i].dtype]) for i in at]
        moved: list[Any] | None = None
        if at:
            moved = self.fetch_many(raw) if back else self.send_many([x.numpy() for x in raw], device)
        made: list[torch.Tensor | None] = [None] * len(xs)
        with _own_versions():
            for i, y in zip(at, moved or (), strict=False):
                if y is not None:
                    made[i] = (torch.from_numpy(y) if back else y).view(xs[i].dtype)
        return [to_device(x, device) if y is None else y for x, y in zip(xs, made, strict=True)]

    def streams_to_device(self, nbytes: int, device: Device, /) -> bool:
        return nbytes >= sizes().least and may_use_buffers(torch.device(device))

    def stream_to_device(self, host: HostArray, device: Device, dtype: str | None = None, /) -> torch.Tensor:
        word, place = dtype or host.dtype.name, torch.device(device)
        strides = np.empty_like(host, np.uint8, order="C" if 0 in host.strides else "K").strides
        out = torch.empty_strided(host.shape, strides, dtype=getattr(torch, word), device=place)
        return _fill(out, host, native_dtype(word))

    def release_buffers(self) -> None:
        try:
            _private.empty_host_cache()
        except RuntimeError as error:
            reason = f"the device failed with {type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise DeviceError.build("free all buffers", reason) from error

    def may_use_threads(self) -> bool:
        return not is_followed()

    threaded = staticmethod(threaded)
    thread_context = staticmethod(thread_context)
    queue_mark = staticmethod(queue_mark)


transfers: Transfers = _TorchTransfers()


# -- packs of small arrays -------------------------------------------------------------------------


class _Pack(NamedTuple):
    """Arrays that are copied together, and where each begins."""

    at: list[int]
    """Their indices among the arrays of the call."""
    dtypes: Iterable[Any]
    nbytes: list[int]
    shapes: Iterable[tuple[int, ...]]
    starts: list[int]

    def size(self) -> int:
        return self.starts[-1] + self.nbytes[-1]


Copy: TypeAlias = "tuple[Any, Callable[[], Iterable[Any]]]"
"""The event of a copy that was queued, and a function that returns the arrays of the pack after it."""
Queue: TypeAlias = Callable[[list[Any], _Pack], Copy]


def _is_small(nbytes: int) -> bool:
    return 0 < nbytes <= min(SMALL_NBYTES, sizes().chunk)


def choose_tensors(xs: list[torch.Tensor], place: torch.device) -> tuple[list[Any], list[int]]:
    """Return facts about tensors, and the indices of small plain ones of a device, larger items first."""
    # Torch does not check that the storage is large enough, which it may not be after `resize_`, so each
    # tensor is compared with it. In this order of items, each begins at a multiple of its size.
    bare = bare_keys(place.type)
    plain = [key in bare for key in map(_raw, map(_keys, xs))]
    facts: list[Any] = [
        _facts_of_tensor(x) if is_plain else None for x, is_plain in zip(xs, plain, strict=True)
    ]
    known = {
        fact
        for fact in set(facts)
        if fact and fact[0] in NUMPY_OF and fact[3] == place and not fact[4] and _is_small(fact[1])
    }
    chosen = [
        i
        for i, (x, fact) in enumerate(zip(xs, facts, strict=True))
        if fact in known
        and x.is_contiguous()
        and x.storage_offset() * fact[0].itemsize + fact[1] <= len(x.untyped_storage())
    ]
    return facts, [i for size in (16, 8, 4, 2, 1) for i in chosen if facts[i][0].itemsize == size]


def _make_packs(facts: list[Any], chosen: list[int], alignment: int) -> Iterator[_Pack]:
    nbytes = [facts[i][1] for i in chosen]
    starts = list(accumulate([-(-n // alignment) * alignment for n in nbytes], initial=0))
    stops = [start + n for start, n in zip(starts, nbytes, strict=False)]
    first = 0
    while first < len(chosen):
        last = bisect_right(stops, starts[first] + sizes().chunk)
        at = chosen[first:last]
        dtypes, shapes = [facts[i][0] for i in at], [facts[i][2] for i in at]
        begins = [start - starts[first] for start in starts[first:last]]
        yield _Pack(at, dtypes, nbytes[first:last], shapes, begins)
        first = last


def _carry_packs(xs: list[Any], packs: Iterable[_Pack], queue: Queue) -> list[Any]:
    """Copy packs, and return the arrays of the call in order. While one is copied, the next is packed."""
    made: list[Any] = [None] * len(xs)
    waiting: deque[tuple[_Pack, Copy]] = deque()

    def land() -> None:
        pack, (event, arrays) = waiting.popleft()
        event.synchronize()  # the copy
        for i, array in zip(pack.at, arrays(), strict=True):
            made[i] = array

    with suppress(RuntimeError, DeviceError):  # without memory each array is moved alone
        for pack in packs:
            if len(waiting) == 2:
                land()
            waiting.append((pack, queue([xs[i] for i in pack.at], pack)))
        while waiting:
            land()
    return made


def _queue_send(place: torch.device, hosts: list[HostArray], pack: _Pack) -> Copy:
    """Pack host arrays into a pinned buffer, and queue the copy of the pack on the current stream."""
    buffer = pin_buffer()[: pack.size()]
    parts = map(_over, pack.shapes, pack.dtypes, repeat(buffer.numpy()), pack.starts)
    deque(map(np.copyto, parts, hosts), 0)
    there = torch.empty(len(buffer), dtype=torch.uint8, device=place)
    there.copy_(buffer, non_blocking=True)
    event = _current_stream(place).record_event()
    return event, partial(_split, there, pack)


def _split(there: torch.Tensor, pack: _Pack) -> list[torch.Tensor]:
    """Return the arrays of a pack, as views of the tensor that was moved."""
    gaps = [-n % ALIGNMENT for n in pack.nbytes]
    gaps[-1] = 0
    with _own_versions():
        rows = there.split_with_sizes([*chain.from_iterable(zip(pack.nbytes, gaps, strict=True))])[::2]
        return list(map(_view, map(_view, rows, map(DTYPE_OF.__getitem__, pack.dtypes)), pack.shapes))


def _own_versions() -> Any:
    """Return a context in which the results of view operations are no views for autograd.

    They have version counters of their own. Otherwise an in-place change of one tensor of a pack would count
    as a change of all.
    """
    return _private.exclude_keys(_private.VIEWS)


@torch.inference_mode()  # a view takes a tenth less time
def _queue_fetch(place: torch.device, xs: list[torch.Tensor], pack: _Pack) -> Copy:
    """Gather a pack on the current stream, and queue its copy into a buffer."""
    there, buffer = torch.empty(pack.size(), dtype=torch.uint8, device=place), pin_buffer()
    torch.cat([*map(_view, map(_view, xs, repeat(-1)), repeat(torch.uint8))], out=there)
    buffer[: len(there)].copy_(there, non_blocking=True)
    event = _current_stream(place).record_event()
    return event, partial(_unpack, buffer, pack)


def _unpack(buffer: torch.Tensor, pack: _Pack) -> Iterable[HostArray]:
    """Copy a pack that has arrived in a buffer to new memory, and return the arrays over it."""
    block = buffer.numpy()[: pack.size()].copy()
    return map(_over, pack.shapes, map(NUMPY_OF.__getitem__, pack.dtypes), repeat(block), pack.starts)


# -- large arrays, piece by piece --------------------------------------------------------------------


class _Half:
    """A half of a pinned buffer, through which pieces move one after the other."""

    def __init__(self, buffer: torch.Tensor, event: Any) -> None:
        self.buffer, self.host = buffer, buffer.numpy()
        self.event = event
        """Tells when the last copy is done."""
        self.arriving: HostArray | None = None
        """Where the piece goes that the last copy brings from the device."""

    def finish(self) -> None:
        """Wait for the last copy, and empty the half."""
        self.event.synchronize()
        if self.arriving is not None:
            plain_copy(self.arriving, self.host[: len(self.arriving)])
            self.arriving = None

    def fetch(self, host: HostArray, there: torch.Tensor) -> None:
        self.buffer[: len(host)].copy_(there, non_blocking=True)
        self.arriving = host

    def send(self, host: HostArray, there: torch.Tensor, dtype: np.dtype[Any]) -> None:
        """Fill the half with a piece, cast to a dtype, and queue its copy to the device."""
        put = plain_copy if host.dtype == dtype else fill
        put(self.host[: len(there)].view(dtype).reshape(host.shape), host)
        there.copy_(self.buffer[: len(there)], non_blocking=True)


Piece: TypeAlias = tuple[HostArray, torch.Tensor]
Move: TypeAlias = Callable[[_Half, HostArray, torch.Tensor], None]


def send_tensor(x: torch.Tensor, place: torch.device) -> torch.Tensor:
    """Copy a plain host tensor to new memory on a device; complete on return."""
    host = x.view(ITEMS[x.dtype]).numpy()
    return _fill(torch.empty_like(x, device=place), host, host.dtype)


def fetch_tensor(x: torch.Tensor) -> torch.Tensor:
    """Copy a plain tensor of a device to new host memory that NumPy has allocated; complete on return."""
    is_dense = torch.empty_like(x, device="meta").stride() == x.stride()
    dense = x if is_dense else torch.empty_like(x).copy_(x)
    host, there, size = np.empty(x.nbytes, np.uint8), _bytes_of(dense), sizes().chunk // 2
    cuts = range(0, len(host), size)
    _share(_Half.fetch, [(host[start : start + size], there[start : start + size]) for start in cuts])
    bare = torch.empty(0, dtype=x.dtype, device="cpu")  # a view would share a version counter
    return bare.set_(torch.from_numpy(host).untyped_storage(), 0, dense.shape, dense.stride())


def _fill(out: torch.Tensor, host: HostArray, dtype: np.dtype[Any]) -> torch.Tensor:
    """Cast and copy values of the host into a dense tensor of the device; complete on return."""
    order = sorted(range(out.dim()), key=lambda axis: (out.stride(axis), out.shape[axis]), reverse=True)
    there, parts, start = _bytes_of(out), list[Piece](), 0
    for part in _pieces(host.transpose(order), sizes().chunk // 2 // out.itemsize):
        stop = start + part.size * out.itemsize
        parts.append((part, there[start:stop]))
        start = stop
    _share(partial(_Half.send, dtype=dtype), parts)
    return out


def _share(move: Move, parts: list[Piece]) -> None:
    """Copy all pieces, with a thread for each two of them; complete on return."""
    # The array may still be computed on this thread's stream. To wait for it here is simple, and costs
    # nothing, because the copies could not begin earlier.
    place = parts[0][1].device
    _current_stream(place).record_event().synchronize()
    left, helpers = iter(parts), list[Future[None]]()
    try:
        with suppress(RuntimeError):  # there are too many threads, or the interpreter is exiting
            for _ in range(min(len(parts) // 2, sizes().buffers) - 1):
                helpers.append(_threads(getpid()).submit(_move_some, move, left, place))
        _move_some(move, left, place)
    finally:
        deque(left, 0)  # after an error nobody begins another piece
        busy = [helper for helper in helpers if not helper.cancel()]
        wait(busy)
    for helper in busy:
        helper.result()


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    """Return the threads that help to copy, which stay for the next array. A forked child has its own."""
    return ThreadPoolExecutor(max(1, sizes().buffers - 1), "xbridge-copy")


def _move_some(move: Move, left: Iterator[Piece], place: torch.device) -> None:
    """Copy pieces in this thread while any are left, on a stream and with a buffer of its own.

    While the device copies one half of the buffer, the thread fills or empties the other.
    """
    api = getattr(torch, place.type)
    stream = api.Stream(place)
    with torch.inference_mode(), api.stream(stream):
        halves = [_Half(part, api.Event()) for part in pin_buffer().chunk(2)]
        for half, (host, there) in zip(cycle(halves), left, strict=False):
            half.finish()
            there.record_stream(stream)  # so that Ctrl-C may drop memory that is being copied
            move(half, host, there)
            half.event.record(stream)
        stream.synchronize()
        for half in halves:
            half.finish()


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


def _bytes_of(x: torch.Tensor) -> torch.Tensor:
    raw = torch.empty(0, dtype=torch.uint8, device=x.device)
    start = int(x.storage_offset()) * x.itemsize
    return raw.set_(x.untyped_storage(), start, (x.nbytes,), (1,))
