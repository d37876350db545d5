"""Move large arrays of other libraries through the pinned buffers, as tensors over the same device memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from xbridge._core.devices import Device
from xbridge._core.protocol import Array, Exporter, HostArray
from xbridge.backends.torch._bare import bare_keys, is_bare, may_use_buffers
from xbridge.backends.torch._devices import from_dlpack
from xbridge.backends.torch._packs import DTYPE_OF
from xbridge.backends.torch._pinned import sizes
from xbridge.backends.torch._small import DECLINED
from xbridge.backends.torch._staging import bits_of
from xbridge.backends.torch._threads import streams_of
from xbridge.backends.torch._transfer import crew_for

T = TypeVar("T", bound=Array)


def fetch(
    way: str, shown: Exporter, device: Device, dtype: np.dtype[Any], plain: Callable[[], HostArray]
) -> HostArray:
    """Copy an array of another library to the host. See `Staging.fetch`."""
    place = _place_of(device)
    x = None if place is None else _take(shown)
    if place is None or x is None or x.device != place or x.nbytes < sizes().least:
        return plain()
    if not is_bare(x, bare_keys(place.type)):
        return plain()
    crew, chooser = crew_for(place)
    staged = partial(crew.fetch, x)
    return chooser.run(way, x.nbytes, plain, lambda: bits_of(staged()).view(dtype))


def send(
    way: str,
    host: HostArray,
    device: Device,
    empty: Callable[[], tuple[T, Exporter]],
    plain: Callable[[], T],
) -> T:
    """Copy a host array to memory of another library. See `Staging.send`."""
    place = _place_of(device)
    if place is None or host.nbytes < sizes().least or host.dtype not in DTYPE_OF:
        return plain()
    crew, chooser = crew_for(place)

    def staged() -> T:
        made, shown = empty()
        x = _take(shown)
        if x is None or x.device != place:
            return plain()
        crew.send(x, host, host.dtype)
        return made

    return chooser.run(way, host.nbytes, plain, staged)


def _take(shown: Exporter) -> torch.Tensor | None:
    """Return a tensor over the memory of an array; None if one of the libraries refuses its dtype."""
    try:
        return from_dlpack(shown)
    except (*DECLINED, BufferError):
        return None


def _place_of(device: Device) -> torch.device | None:
    """Return a device that torch uses already, and on which buffers may be used now; else None."""
    if device.kind not in ("cuda", torch._C._get_privateuse1_backend_name()):
        return None
    place = torch.device(device)
    api = streams_of(place)
    return place if getattr(api, "is_initialized", bool)() and may_use_buffers(place) else None
