"""Look up the samples of a backend, and make arrays of them on a device."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, cast

from xbridge._core.devices import CPU
from xbridge.backends._registry import get

if TYPE_CHECKING:
    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array, Backend, HostArray
    from xbridge.testing.samples.model import LayoutCase, Samples


def samples_of(name: str) -> Samples:
    """What the test kit knows of a backend's library."""
    return _known_to(get(name))  # type: ignore[arg-type] # a module is hashable


def lay_on(backend: Backend, way: LayoutCase, values: HostArray, device: Device) -> Array:
    """A new array on a device, which lies that way where it can, and else was moved there."""
    if device != CPU and way.on:
        return way.on(values, device)
    array = way.lay(values)
    return array if device == CPU else backend.to_device(array, device)


@cache
def _known_to(backend: Backend) -> Samples:
    if backend.samples:
        return cast("Samples", import_module(backend.samples))
    from xbridge.testing.samples.anything import Anything  # noqa: PLC0415 -- only for backends without

    return Anything(backend)
