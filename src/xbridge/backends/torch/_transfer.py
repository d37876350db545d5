"""Between the host and a device: the plain way, through pinned buffers, or many tensors at once.

What torch itself has to take part in goes the plain way, with `Tensor.to`: gradients, tracing, modes and
subclasses; so does what is too small to gain anything, or lies in pinned memory already.
"""

from __future__ import annotations

from functools import cache
from os import getpid
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.utils import _python_dispatch

from xbridge._core.locks import lock
from xbridge._host.memory import native_dtype
from xbridge.backends.torch._pinned import ITEMS, PinnedPool, is_dense, sizes
from xbridge.backends.torch._threads import is_captured, streams_of
from xbridge.backends.torch._unsupported import not_there, readable, without_pending

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xbridge._core.devices import Device
    from xbridge._core.protocol import HostArray
    from xbridge.backends.torch._pinned import PinnedBuffer

ALIGNMENT = 256
"""Where a tensor of a pack begins: at a multiple of so many bytes, as if it had been allocated."""

_VIEWS = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
"""Without it what lies in the memory of a tensor is no view: it has a history of its own."""

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_rings: dict[tuple[int, torch.device], PinnedPool] = {}
"""By process: in a child, the lanes that threads of its parent had would never come back. Not even a driver
lets a child use or free what its parent has pinned, so those rings stay where they are."""

_making = lock()


def to_device(x: torch.Tensor, device: Device, /) -> torch.Tensor:
    """New memory on another device, complete for whoever reads it next."""
    x = without_pending(readable(x))
    if torch.compiler.is_dynamo_compiling():
        return x.to(device._word)  # an older compiler follows a plain string alone
    goal = torch.device(device)
    if x.numel() * x.itemsize < sizes().least:
        return x.to(goal)
    place = goal if x.is_cpu else x.device
    if x.is_cpu is (goal.type == "cpu") or not _is_open(place) or (x.is_cpu and x.is_pinned()):
        return x.to(goal)
    if not _is_bare(x, _bare_keys(x.device.type)):
        return x.to(goal)
    return _ring(place).stream_to_device(x) if x.is_cpu else _ring(place).fetch(x)


def to_device_many(xs: list[torch.Tensor], device: Device, /) -> list[torch.Tensor]:
    """The same for many small tensors, which cross in one piece; those that are alike are rows of it."""
    goal, limit = torch.device(device), sizes().chunk
    back = goal.type == "cpu"
    places = {x.device for x in xs if not x.is_cpu} if back else {goal}
    keys = {place: _bare_keys(place.type if back else "cpu") for place in places if _is_open(place)}
    alike: dict[tuple[object, ...], list[int]] = {}
    moved: dict[int, torch.Tensor] = {}
    for i, x in enumerate(xs):
        place = x.device if back else goal
        if x.is_cpu is not back and place in keys and _is_bare(x, keys[place]) and not not_there(x):
            alike.setdefault((place, x.dtype, x.shape, x.stride()), []).append(i)
        else:
            moved[i] = to_device(x, device)
    together: dict[torch.device, list[list[int]]] = {}
    for chosen in alike.values():
        first = xs[chosen[0]]
        if first.nbytes <= limit and is_dense(first):
            together.setdefault(goal if first.is_cpu else first.device, []).append(chosen)
        else:
            moved.update((i, to_device(xs[i], device)) for i in chosen)
    carry = _fetch if back else _send
    for place, groups in together.items():
        for pack in _packs(xs, groups, limit):
            chosen = [i for rows in pack for i in rows.chosen]
            moved.update(zip(chosen, carry(_ring(place), pack), strict=True))
    return [moved[i] for i in range(len(xs))]


def streams_to_device(nbytes: int, device: Device, /) -> bool:
    """Whether so many bytes go through buffers now."""
    return nbytes >= sizes().least and _is_open(torch.device(device))


def stream_to_device(host: HostArray, device: Device, dtype: str | None = None, /) -> torch.Tensor:
    """New memory on a device, laid out as NumPy would lay out the cast array."""
    goal, word = torch.device(device), dtype or host.dtype.name
    axes = list(range(host.ndim))
    if 0 not in host.strides and not host.flags.c_contiguous:
        axes.sort(key=lambda axis: -abs(host.strides[axis]))
    dense = torch.empty([host.shape[axis] for axis in axes], device="meta")
    like = dense.permute([axes.index(axis) for axis in range(host.ndim)])
    out = torch.empty_strided(host.shape, like.stride(), dtype=getattr(torch, word), device=goal)
    return _ring(goal).cast_into(out, host, native_dtype(word))


class PackSegment(NamedTuple):
    """Tensors of one dtype and layout in a pack."""

    xs: list[torch.Tensor]
    chosen: list[int]
    """Which of all tensors they are."""
    start: int
    pitch: int
    """From one to the next, in bytes."""

    def stop(self) -> int:
        """Where the last one ends."""
        return self.start + (len(self.xs) - 1) * self.pitch + self.xs[0].nbytes

    def within(self, memory: torch.Tensor) -> torch.Tensor:
        """Where they lie in the memory of their pack, along one axis more."""
        like = self.xs[0]
        shape, pitch = (len(self.xs), *like.shape), self.pitch // like.itemsize
        return memory[self.start : self.stop()].view(like.dtype).as_strided(shape, (pitch, *like.stride()))

    def apart(self, host: HostArray) -> Iterator[torch.Tensor]:
        """The same on the host, each in a storage that ends where it does."""
        like = self.xs[0]
        item = torch.empty(0, dtype=ITEMS[like.dtype], device="cpu").numpy().dtype
        shape, strides = (len(self.xs), *like.shape), [n * like.itemsize for n in like.stride()]
        rows = np.ndarray(shape, item, host.data, self.start, (self.pitch, *strides))
        for i in range(len(self.xs)):
            yield torch.from_numpy(rows[i, ...]).view(like.dtype)


def _packs(xs: list[torch.Tensor], groups: list[list[int]], limit: int) -> Iterator[list[PackSegment]]:
    """What crosses in one piece."""
    pack: list[PackSegment] = []
    start = 0
    for chosen in groups:
        size = xs[chosen[0]].nbytes
        pitch = -(-size // ALIGNMENT) * ALIGNMENT
        done = 0
        while done < len(chosen):
            n = (limit - start - size) // pitch + 1
            if n > 0:
                part = chosen[done : done + n]
                pack.append(PackSegment([xs[i] for i in part], part, start, pitch))
                start, done = start + pitch * len(part), done + len(part)
            else:
                yield pack
                pack, start = [], 0
    yield pack


def _send(ring: PinnedPool, pack: list[PackSegment]) -> list[torch.Tensor]:
    size = pack[-1].stop()
    there = torch.empty(size, dtype=torch.uint8, device=ring.device)

    def work(lane: PinnedBuffer) -> None:
        for rows in pack:
            torch.stack(rows.xs, out=rows.within(lane.buffer))
        there.copy_(lane.buffer[:size], non_blocking=True)

    ring.use(work)
    with torch._C._ExcludeDispatchKeyGuard(_VIEWS):
        return [x for rows in pack for x in rows.within(there).unbind()]


def _fetch(ring: PinnedPool, pack: list[PackSegment]) -> list[torch.Tensor]:
    size = pack[-1].stop()
    host = np.empty(size, np.uint8)

    def work(lane: PinnedBuffer) -> None:
        there = torch.empty(size, dtype=torch.uint8, device=ring.device)
        for rows in pack:
            torch.stack(rows.xs, out=rows.within(there))
        lane.buffer[:size].copy_(there, non_blocking=True)
        lane.stream.synchronize()  # the copy into the buffer
        np.copyto(host, lane.host[:size])

    ring.use(work)
    with torch._C._ExcludeDispatchKeyGuard(_VIEWS):
        return [x for rows in pack for x in rows.apart(host)]


def _is_open(place: torch.device) -> bool:
    """Whether pinned memory was tried with a device, and nobody stands between the caller and torch."""
    if place.type not in ("cuda", torch._C._get_privateuse1_backend_name()):
        return False
    if forward_ad._current_level >= 0 or _python_dispatch._is_in_torch_dispatch_mode:
        return False
    if torch._C._functorch.maybe_current_level() is not None:
        return False
    api = streams_of(place)
    return api is not None and not is_captured(api)


def _ring(place: torch.device) -> PinnedPool:
    """The buffers of a device, made when they are first needed."""
    key = getpid(), place
    with _making:
        if key not in _rings:
            _rings[key] = PinnedPool(place, sizes())
        return _rings[key]


def _is_bare(x: torch.Tensor, keys: frozenset[int]) -> bool:
    """Whether it is its bytes and nothing else."""
    if type(x) not in _PLAIN or x.dtype not in ITEMS or x.requires_grad or not x.numel():
        return False
    return torch._C._dispatch_keys(x).raw_repr() in keys


@cache
def _bare_keys(kind: str) -> frozenset[int]:
    """What torch decides by where there is memory of a kind of device, and nothing pending on it."""
    found = []
    for mode in (False, True):
        with torch.inference_mode(mode):
            found.append(torch._C._dispatch_keys(torch.empty(0, device=kind)).raw_repr())
    return frozenset(found)
