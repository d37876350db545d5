"""Look up the samples of a backend, and make arrays of them on a device."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, cast

from xbridge.extend import CPU, get_backend

if TYPE_CHECKING:
    from xbridge import Device
    from xbridge.protocol import Array, Backend, HostArray
    from xbridge.testing.samples import LayoutCase, Samples


def samples_of(name: str) -> Samples:
    """Return the samples of a backend."""
    return _samples_of(get_backend(name))  # type: ignore[arg-type] # a module is hashable


def make_on(backend: Backend, case: LayoutCase, values: HostArray, device: Device) -> Array:
    """Make a new array on a device, with that layout if it exists there; else it is moved there."""
    if device != CPU and case.make_on_device:
        return case.make_on_device(values, device)
    array = case.make(values)
    return array if device == CPU else backend.to_device(array, device)


@cache
def _samples_of(backend: Backend) -> Samples:
    if backend.samples:
        return cast("Samples", import_module(backend.samples))
    from xbridge.testing.samples.derived import DerivedSamples  # noqa: PLC0415 -- only for backends without

    return DerivedSamples(backend)
