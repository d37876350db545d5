"""Transfer tensors between the host and a device: by `Tensor.to`, through pinned buffers, or in packs.

`Tensor.to` makes all transfers in which torch has to take part, because of gradients, tracing, modes or
subclasses, and those that would gain nothing from buffers: small tensors, and those in pinned memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from os import getpid
from typing import NamedTuple

import numpy as np
import torch

from xbridge._core.devices import Device
from xbridge._core.locks import lock
from xbridge._core.protocol import HostArray
from xbridge._host.memory import native_dtype
from xbridge.backends.torch._bare import bare_keys, is_bare, may_use_buffers
from xbridge.backends.torch._packs import ALIGNMENT, VIEWS
from xbridge.backends.torch._pinned import ITEMS, PinnedBuffers, buffers_of, queue_copy, sizes
from xbridge.backends.torch._staging import Chooser, Crew, bits_of, is_dense
from xbridge.backends.torch._unsupported import apply_pending, check_readable, storage_fault

_crews: dict[tuple[int, torch.device], tuple[Crew, Chooser]] = {}
"""Crews by process and device. The process counts because a forked child lacks the threads of its parent."""

_crews_lock = lock()


def to_device(x: torch.Tensor, device: Device, /) -> torch.Tensor:
    """Copy to new memory on another device, complete for any stream."""
    x = apply_pending(check_readable(x))
    if torch.compiler.is_dynamo_compiling():
        return x.to(device._word)  # an older compiler follows a plain string alone
    goal, nbytes, limits = torch.device(device), x.numel() * x.itemsize, sizes()
    if nbytes < limits.least:
        return x.to(goal)
    place = goal if x.is_cpu else x.device
    if x.is_cpu is (goal.type == "cpu") or not may_use_buffers(place) or (x.is_cpu and x.is_pinned()):
        return x.to(goal)
    if not is_bare(x, bare_keys(x.device.type)):
        return x.to(goal)
    return move_large(x, goal, place)


def move_large(x: torch.Tensor, goal: torch.device, place: torch.device) -> torch.Tensor:
    """Copy a large plain tensor to or from a device with an index, by the faster of the two ways."""
    crew, chooser = crew_for(place)
    if x.is_cpu:
        way, staged = "there", partial(_send_by_crew, crew, x)
    else:
        way, staged = "back", partial(crew.fetch, x)
    if not sizes().timed:
        return staged()
    # Both ways wait for the work that is queued, which would be part of their times.
    crew.buffers.api.current_stream(place).record_event().synchronize()
    return chooser.run(way, x.nbytes, partial(x.to, goal), staged)


def to_device_many(xs: list[torch.Tensor], device: Device, /) -> list[torch.Tensor]:
    """Copy many tensors to a device. Small ones move in packs, stacked by dtype and layout."""
    goal, limit = torch.device(device), sizes().chunk
    back = goal.type == "cpu"
    places = {x.device for x in xs if not x.is_cpu} if back else {goal}
    keys = {place: bare_keys(place.type if back else "cpu") for place in places if may_use_buffers(place)}
    alike: dict[tuple[object, ...], list[int]] = {}
    moved: dict[int, torch.Tensor] = {}
    for i, x in enumerate(xs):
        place = x.device if back else goal
        if x.is_cpu is not back and place in keys and is_bare(x, keys[place]) and not storage_fault(x):
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
    move = _fetch_pack if back else _send_pack
    for place, groups in together.items():
        for pack in _make_packs(xs, groups, limit):
            chosen = [i for rows in pack for i in rows.chosen]
            moved.update(zip(chosen, move(buffers_of(place), pack), strict=True))
    return [moved[i] for i in range(len(xs))]


def streams_to_device(nbytes: int, device: Device, /) -> bool:
    """Return True if an array of `nbytes` bytes moves through buffers now."""
    return nbytes >= sizes().fused and may_use_buffers(torch.device(device))


def stream_to_device(host: HostArray, device: Device, dtype: str | None = None, /) -> torch.Tensor:
    """Cast or copy into new memory on a device, with the layout that NumPy would give the cast array."""
    goal, word = torch.device(device), dtype or host.dtype.name
    axes = list(range(host.ndim))
    if 0 not in host.strides and not host.flags.c_contiguous:
        axes.sort(key=lambda axis: -abs(host.strides[axis]))
    dense = torch.empty([host.shape[axis] for axis in axes], device="meta")
    like = dense.permute([axes.index(axis) for axis in range(host.ndim)])
    out = torch.empty_strided(host.shape, like.stride(), dtype=getattr(torch, word), device=goal)
    crew, _ = crew_for(goal)
    return crew.send(out, host, native_dtype(word))


def _send_by_crew(crew: Crew, x: torch.Tensor) -> torch.Tensor:
    """Copy a host tensor to the device of a crew; complete on return."""
    host = bits_of(x)
    return crew.send(torch.empty_like(x, device=crew.buffers.device), host, host.dtype)


def crew_for(place: torch.device) -> tuple[Crew, Chooser]:
    """Return the threads that move large arrays of a device, and the chooser that has timed them."""
    key = getpid(), place
    with _crews_lock:
        if key not in _crews:
            buffers = buffers_of(place)
            _crews[key] = Crew(buffers), Chooser(buffers)
        return _crews[key]


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

    def among(self, host: HostArray) -> HostArray:
        """Return the same in host memory, as an array of integers with the size of the items."""
        like = self.xs[0]
        item = torch.empty(0, dtype=ITEMS[like.dtype], device="cpu").numpy().dtype
        shape, strides = (len(self.xs), *like.shape), [n * like.itemsize for n in like.stride()]
        return np.ndarray(shape, item, host.data, self.start, (self.pitch, *strides))

    def on_host(self, host: HostArray) -> Iterator[torch.Tensor]:
        """Yield the tensors in host memory of their pack, each with a storage of its own length."""
        rows, dtype = self.among(host), self.xs[0].dtype
        for i in range(len(self.xs)):
            yield torch.from_numpy(rows[i, ...]).view(dtype)


def _make_packs(xs: list[torch.Tensor], groups: list[list[int]], limit: int) -> Iterator[list[PackSegment]]:
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


def _send_pack(buffers: PinnedBuffers, pack: list[PackSegment]) -> list[torch.Tensor]:
    """Move a pack to the device."""
    size = pack[-1].stop()
    loan = buffers.lend()
    with loan:
        for rows in pack:
            np.stack([bits_of(x) for x in rows.xs], out=rows.among(loan.pinned.host))
        there = torch.empty(size, dtype=torch.uint8, device=buffers.device)
        stream = buffers.api.current_stream(buffers.device)
        queue_copy(there, loan.pinned.buffer[:size], loan.pinned, stream)
    with torch._C._ExcludeDispatchKeyGuard(VIEWS):
        return [x for rows in pack for x in rows.within(there).unbind()]


def _fetch_pack(buffers: PinnedBuffers, pack: list[PackSegment]) -> list[torch.Tensor]:
    """Move a pack to the host."""
    size = pack[-1].stop()
    with torch.inference_mode():
        there = torch.empty(size, dtype=torch.uint8, device=buffers.device)
        for rows in pack:
            torch.stack(rows.xs, out=rows.within(there))
        loan = buffers.lend()
        with loan:
            stream = buffers.api.current_stream(buffers.device)
            queue_copy(loan.pinned.buffer[:size], there, loan.pinned, stream)
            loan.pinned.event.synchronize()  # the copy into the buffer
            host = loan.pinned.host[:size].copy()
    with torch._C._ExcludeDispatchKeyGuard(VIEWS):
        return [x for rows in pack for x in rows.on_host(host)]
