"""Transfers between the host and a device: by `Tensor.to`, through pinned buffers, or many tensors at once.

`Tensor.to` does all transfers with gradients, tracing, modes and subclasses, in which torch has to take part.
It also does those that are too small to gain from buffers, and those of pinned memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from os import getpid
from typing import NamedTuple

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.utils import _python_dispatch

from xbridge._core.devices import Device
from xbridge._core.locks import lock
from xbridge._core.protocol import HostArray
from xbridge._host.memory import native_dtype
from xbridge.backends.torch._pinned import ITEMS, PinnedBuffer, PinnedPool, is_dense, sizes
from xbridge.backends.torch._threads import is_captured, streams_of
from xbridge.backends.torch._unsupported import freed, readable, without_pending

ALIGNMENT = 256
"""A tensor of a pack begins at a multiple of so many bytes, like memory that torch allocates."""

_VIEWS = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
"""Without it, a tensor over the memory of another is not a view, and has its own version counter."""

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_pools: dict[tuple[int, torch.device], PinnedPool] = {}
"""Pools by process and device. In a child, buffers that threads of its parent hold would never be released.

A driver does not let a child use or free memory that its parent has pinned, so the parent's pools are kept.
"""

_making = lock()


def to_device(x: torch.Tensor, device: Device, /) -> torch.Tensor:
    """Copy to new memory on another device, complete for any stream."""
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
    return _pool(place).stream_to_device(x) if x.is_cpu else _pool(place).fetch(x)


def to_device_many(xs: list[torch.Tensor], device: Device, /) -> list[torch.Tensor]:
    """Copy many tensors. Small ones move in one pack, with those of one dtype and layout stacked."""
    goal, limit = torch.device(device), sizes().chunk
    back = goal.type == "cpu"
    places = {x.device for x in xs if not x.is_cpu} if back else {goal}
    keys = {place: _bare_keys(place.type if back else "cpu") for place in places if _is_open(place)}
    alike: dict[tuple[object, ...], list[int]] = {}
    moved: dict[int, torch.Tensor] = {}
    for i, x in enumerate(xs):
        place = x.device if back else goal
        if x.is_cpu is not back and place in keys and _is_bare(x, keys[place]) and not freed(x):
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
    move = _fetch if back else _send
    for place, groups in together.items():
        for pack in _packs(xs, groups, limit):
            chosen = [i for rows in pack for i in rows.chosen]
            moved.update(zip(chosen, move(_pool(place), pack), strict=True))
    return [moved[i] for i in range(len(xs))]


def streams_to_device(nbytes: int, device: Device, /) -> bool:
    """Return True if an array of so many bytes moves through buffers now."""
    return nbytes >= sizes().least and _is_open(torch.device(device))


def stream_to_device(host: HostArray, device: Device, dtype: str | None = None, /) -> torch.Tensor:
    """Cast or copy into new memory on a device, with the layout that NumPy would give the cast array."""
    goal, word = torch.device(device), dtype or host.dtype.name
    axes = list(range(host.ndim))
    if 0 not in host.strides and not host.flags.c_contiguous:
        axes.sort(key=lambda axis: -abs(host.strides[axis]))
    dense = torch.empty([host.shape[axis] for axis in axes], device="meta")
    like = dense.permute([axes.index(axis) for axis in range(host.ndim)])
    out = torch.empty_strided(host.shape, like.stride(), dtype=getattr(torch, word), device=goal)
    return _pool(goal).cast_into(out, host, native_dtype(word))


class PackSegment(NamedTuple):
    """Tensors of one dtype and layout in a pack."""

    xs: list[torch.Tensor]
    chosen: list[int]
    """The indices of the tensors among all of them."""
    start: int
    pitch: int
    """Bytes from the start of a tensor to the start of the next one."""

    def stop(self) -> int:
        """Return the end of the last tensor."""
        return self.start + (len(self.xs) - 1) * self.pitch + self.xs[0].nbytes

    def within(self, memory: torch.Tensor) -> torch.Tensor:
        """Return the tensors in the memory of their pack, stacked along a first axis."""
        like = self.xs[0]
        shape, pitch = (len(self.xs), *like.shape), self.pitch // like.itemsize
        return memory[self.start : self.stop()].view(like.dtype).as_strided(shape, (pitch, *like.stride()))

    def on_host(self, host: HostArray) -> Iterator[torch.Tensor]:
        """Yield the tensors in host memory of their pack, each with a storage that ends where it does."""
        like = self.xs[0]
        item = torch.empty(0, dtype=ITEMS[like.dtype], device="cpu").numpy().dtype
        shape, strides = (len(self.xs), *like.shape), [n * like.itemsize for n in like.stride()]
        rows = np.ndarray(shape, item, host.data, self.start, (self.pitch, *strides))
        for i in range(len(self.xs)):
            yield torch.from_numpy(rows[i, ...]).view(like.dtype)


def _packs(xs: list[torch.Tensor], groups: list[list[int]], limit: int) -> Iterator[list[PackSegment]]:
    """Yield packs of tensors. Each pack moves as one piece of memory."""
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


def _send(pool: PinnedPool, pack: list[PackSegment]) -> list[torch.Tensor]:
    """Move a pack to the device."""
    size = pack[-1].stop()
    there = torch.empty(size, dtype=torch.uint8, device=pool.device)

    def work(pinned: PinnedBuffer) -> None:
        for rows in pack:
            torch.stack(rows.xs, out=rows.within(pinned.buffer))
        there.copy_(pinned.buffer[:size], non_blocking=True)

    pool.use(work)
    with torch._C._ExcludeDispatchKeyGuard(_VIEWS):
        return [x for rows in pack for x in rows.within(there).unbind()]


def _fetch(pool: PinnedPool, pack: list[PackSegment]) -> list[torch.Tensor]:
    """Move a pack to the host."""
    size = pack[-1].stop()
    host = np.empty(size, np.uint8)

    def work(pinned: PinnedBuffer) -> None:
        there = torch.empty(size, dtype=torch.uint8, device=pool.device)
        for rows in pack:
            torch.stack(rows.xs, out=rows.within(there))
        pinned.fetch(host, there)

    pool.use(work)
    with torch._C._ExcludeDispatchKeyGuard(_VIEWS):
        return [x for rows in pack for x in rows.on_host(host)]


def _is_open(place: torch.device) -> bool:
    """Return True if pinned buffers are tested with the device, and no mode or transform is active."""
    if place.type not in ("cuda", torch._C._get_privateuse1_backend_name()):
        return False
    if forward_ad._current_level >= 0 or _python_dispatch._is_in_torch_dispatch_mode:
        return False
    if torch._C._functorch.maybe_current_level() is not None:
        return False
    api = streams_of(place)
    return api is not None and not is_captured(api)


def _pool(place: torch.device) -> PinnedPool:
    """Return the buffers of a device, made when they are first needed."""
    key = getpid(), place
    with _making:
        if key not in _pools:
            _pools[key] = PinnedPool(place, sizes())
        return _pools[key]


def _is_bare(x: torch.Tensor, keys: frozenset[int]) -> bool:
    """Return True if a tensor is nothing but its bytes."""
    if type(x) not in _PLAIN or x.dtype not in ITEMS or x.requires_grad or not x.numel():
        return False
    return torch._C._dispatch_keys(x).raw_repr() in keys


@cache
def _bare_keys(kind: str) -> frozenset[int]:
    """Return the dispatch keys of a tensor on a kind of device with nothing pending."""
    found = []
    for mode in (False, True):
        with torch.inference_mode(mode):
            found.append(torch._C._dispatch_keys(torch.empty(0, device=kind)).raw_repr())
    return frozenset(found)
