"""Between the host and a device: the plain way, through pinned buffers, or many tensors at once.

What torch itself has to take part in goes the plain way, with `Tensor.to`: gradients, tracing, modes and
subclasses; so does what is too small to gain anything, or lies in pinned memory already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._C import _functorch
from torch.autograd import forward_ad
from torch.utils import _python_dispatch

from xbridge.backends.torch._refusals import not_there, readable
from xbridge.backends.torch._staging import ITEMS, Ring, is_dense, sizes, tensor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xbridge._devices import Device
    from xbridge.backends.torch._staging import Lane

    Work = Callable[[list[object]], list[object]]

ALIGNMENT = 256
"""Where a tensor of a pack begins: at a multiple of so many bytes, as if it had been allocated."""

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_rings: dict[torch.device, Ring] = {}
_asides: dict[torch.device, Any] = {}
"""A stream of each device for what goes on aside."""


def move(x: torch.Tensor, device: Device, /) -> torch.Tensor:
    """New memory on another device, complete for whoever reads it next."""
    x, goal = readable(x), torch.device(device)
    if torch.compiler.is_dynamo_compiling() or x.numel() * x.itemsize < sizes().least:
        return x.to(goal)
    place = goal if x.is_cpu else x.device
    if goal.type == x.device.type or not _is_open(place) or not _is_bare(x) or (x.is_cpu and x.is_pinned()):
        return x.to(goal)
    return _ring(place).send(x) if x.is_cpu else _ring(place).fetch(x)


def move_all(xs: list[torch.Tensor], device: Device, /) -> list[torch.Tensor]:
    """The same for many small tensors, which cross in one piece and share their new memory."""
    goal, limit = torch.device(device), sizes().chunk
    lanes = {place: _is_open(place) for place in {x.device if goal.type == "cpu" else goal for x in xs}}
    together: dict[torch.device, list[int]] = {}
    moved: dict[int, torch.Tensor] = {}
    for i, x in enumerate(xs):
        place = goal if x.is_cpu else x.device
        crosses = x.is_cpu is not (goal.type == "cpu") and lanes[place]
        if crosses and _is_bare(x) and x.nbytes <= limit and is_dense(x) and not not_there(x):
            together.setdefault(place, []).append(i)
        else:
            moved[i] = move(x, device)
    carry = _fetch if goal.type == "cpu" else _send
    for place, chosen in together.items():
        for pack, starts, size in _packs(xs, chosen, limit):
            moved.update(zip(pack, carry(_ring(place), [xs[i] for i in pack], starts, size), strict=True))
    return [moved[i] for i in range(len(xs))]


def aside(fn: Work, device: Device, /) -> Work:
    """`fn` for another thread: on a stream of its own, complete on return, and this thread's to use."""
    place, recording = torch.device(device), torch.is_grad_enabled()
    api = _streams(place)

    def recorded(xs: list[object]) -> list[object]:
        with torch.set_grad_enabled(recording):
            return fn(xs)

    if api is None:
        return recorded
    if place not in _asides:
        _asides[place] = api.Stream(place)
    mine, side = api.current_stream(place), _asides[place]
    asked = mine.record_event()

    def apart(xs: list[object]) -> list[object]:
        with api.stream(side):
            if any(_lies_on(x, place) for x in xs):
                side.wait_event(asked)
            made = recorded(xs)
            side.synchronize()
        for y in made:
            if _lies_on(y, place):
                y.record_stream(mine)  # type: ignore[attr-defined] # a tensor
        return made

    return apart


def _send(ring: Ring, xs: list[torch.Tensor], starts: list[int], size: int) -> list[torch.Tensor]:
    there = torch.empty(size, dtype=torch.uint8, device=ring.device)

    def work(lane: Lane) -> None:
        for x, place in zip(xs, _places(lane.buffer, starts, xs), strict=True):
            place.copy_(x)
        there.copy_(lane.buffer[:size], non_blocking=True)

    ring.use(work)
    return [tensor_of(there, start, x) for x, start in zip(xs, starts, strict=True)]


def _fetch(ring: Ring, xs: list[torch.Tensor], starts: list[int], size: int) -> list[torch.Tensor]:
    host = np.empty(size, np.uint8)

    def work(lane: Lane) -> None:
        for x, place in zip(xs, _places(lane.buffer, starts, xs), strict=True):
            place.copy_(x, non_blocking=True)
        lane.stream.synchronize()  # the copies into the buffer
        np.copyto(host, lane.host[:size])

    ring.use(work)
    here = torch.from_numpy(host)
    return [tensor_of(here, start, x) for x, start in zip(xs, starts, strict=True)]


def _places(buffer: torch.Tensor, starts: list[int], likes: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Where each tensor of a pack lies in a buffer: views of it, which come sooner than tensors."""
    typed = {dtype: buffer.view(dtype) for dtype in {x.dtype for x in likes}}
    for x, start in zip(likes, starts, strict=True):
        yield typed[x.dtype].as_strided(x.shape, x.stride(), start // x.itemsize)


def _packs(
    xs: list[torch.Tensor], chosen: list[int], limit: int
) -> Iterator[tuple[list[int], list[int], int]]:
    """Which of them cross in one piece, where each begins in it, and its size."""
    pack: list[int] = []
    starts: list[int] = []
    size = 0
    for i in chosen:
        start = -(-size // ALIGNMENT) * ALIGNMENT
        if start + xs[i].nbytes > limit:
            yield pack, starts, size
            pack, starts, start = [], [], 0
        pack.append(i)
        starts.append(start)
        size = start + xs[i].nbytes
    yield pack, starts, size


def _is_open(place: torch.device) -> bool:
    """Whether a device is one that pinned memory was tried with, and nobody records what it is asked for."""
    if place.type not in ("cuda", torch._C._get_privateuse1_backend_name()):
        return False
    api = _streams(place)
    return api is not None and not getattr(api, "is_current_stream_capturing", bool)()


def _ring(place: torch.device) -> Ring:
    """The buffers of a device, made when they are first needed."""
    if place not in _rings:
        _rings[place] = Ring(place, sizes())
    return _rings[place]


def _is_bare(x: torch.Tensor) -> bool:
    """Whether it is its bytes and nothing else, to torch and to whoever watches it now."""
    if type(x) not in _PLAIN or x.layout is not torch.strided or x.is_nested or x.dtype not in ITEMS:
        return False
    if x.requires_grad or forward_ad._current_level >= 0 or _python_dispatch._is_in_torch_dispatch_mode:
        return False
    if _functorch.is_functorch_wrapped_tensor(x) or torch._is_functional_tensor(x):
        return False
    return x.numel() > 0 and not (x.is_conj() or x.is_neg() or x._is_zerotensor())


def _streams(place: torch.device) -> Any:
    """The module of torch for a kind of device that works through queues; None for other kinds."""
    api = None if place.type == "cpu" else getattr(torch, place.type, None)
    return api if hasattr(api, "Stream") else None


def _lies_on(x: object, place: torch.device) -> bool:
    return isinstance(x, torch.Tensor) and x.device == place
