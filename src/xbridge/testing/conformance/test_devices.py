"""Devices: an array moves only if the caller asks for it, and arrives complete."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest

from xbridge import Device, align, asarray, device_of, to_backend
from xbridge.errors import DeviceError
from xbridge.extend import CPU, HOST, get_backend
from xbridge.testing._parametrize import promise
from xbridge.testing.conformance._cases import (
    FULL_SHAPE,
    edge_values,
    error_of,
    for_device_arrays,
    plain_array,
    read,
    same_bits,
    swept_dtypes,
)

if TYPE_CHECKING:
    from xbridge.testing.samples import Sample


def other_devices(backend: str) -> tuple[Device, ...]:
    """Return the devices other than the default one."""
    return get_backend(backend).devices()[1:]


def resolved_kind(backend: str, device: Device) -> Device:
    """Return the device that a kind resolves to near a device: one of that name, else this one."""
    kind = Device(device.kind)
    return kind if kind in get_backend(backend).devices() else device


# -- names ---------------------------------------------------------------------------------------


def test_every_device_resolves_to_itself(backend: str) -> None:
    module = get_backend(backend)
    devices = module.devices()
    assert type(devices) is tuple
    assert {type(device) for device in devices} == {Device}
    assert len(set(devices)) == len(devices)
    assert CPU in devices or "host" in module.gaps
    assert module.host_only is False or devices == (CPU,)
    for device in devices:
        for near in devices:
            assert module.resolve_device(device, near) == device
        assert module.resolve_device(Device(device.kind), device) == resolved_kind(backend, device)
        assert module.resolve_device(Device(device.kind), CPU).kind == device.kind
        assert module.resolve_device(Device(device.kind), CPU) in devices


def test_device_name_reads_devices_of_the_library(backend: str) -> None:
    module = get_backend(backend)
    for device in module.devices():
        x = to_backend(plain_array(backend, edge_values("float32", (2,))), backend, device=device)
        native = getattr(x, "device", None)
        if native is not None and not isinstance(native, str):
            assert module.device_name(native) == device
            assert device_of(to_backend(edge_values("float32", (2,)), backend, device=native)) == device
    for thing in (None, 3, object(), object, (), "float32"):
        assert module.device_name(thing) is None


def test_an_unknown_device_raises(backend: str) -> None:
    x = plain_array(backend, edge_values("float32", FULL_SHAPE))
    for name in ("nowhere", "nowhere:7", *(f"{device.kind}:99" for device in other_devices(backend))):
        for given in (x, edge_values("float32", FULL_SHAPE)):
            refused = error_of(to_backend, given, backend, device=name)
            assert isinstance(refused, DeviceError), name
    assert isinstance(error_of(to_backend, x, HOST, device="nowhere"), DeviceError)


def test_gpu_resolves_to_an_accelerator_or_raises(backend: str) -> None:
    x = edge_values("float32", FULL_SHAPE)
    if accelerators := [device for device in get_backend(backend).devices() if device.kind != CPU]:
        assert device_of(to_backend(x, backend, device="gpu")) in accelerators
    else:
        assert isinstance(error_of(to_backend, x, backend, device="gpu"), DeviceError)


# -- moves ---------------------------------------------------------------------------------------


@promise("devices")
def test_arrays_move_to_other_devices_and_stay_there(backend: str) -> None:
    module = get_backend(backend)
    if not other_devices(backend):
        pytest.skip(f"{backend} supports other devices, but none is present")
    shapes = (FULL_SHAPE, (), (2, 0))
    for device, dtype, shape in product(other_devices(backend), swept_dtypes(backend), shapes):
        if module.unsupported_dtype(dtype, device):
            continue
        values = edge_values(dtype, shape)
        x = plain_array(backend, values)
        moved = to_backend(x, backend, device=device)
        assert module.array_info(moved)[:3] == (dtype, device, shape)
        assert same_bits(read(backend, moved), values), "other values arrived"
        assert same_bits(read(backend, x), values), "the source was changed"
        assert to_backend(moved, backend) is moved
        near = to_backend(moved, backend, device=device.kind)
        assert device_of(near) == resolved_kind(backend, device)
        assert (near is moved) is (device_of(near) == device)
        made = [module.detach(moved), *align(moved, moved), align(values, moved, like=moved)[0]]
        made += [asarray(values, like=moved), asarray([1, 2], like=moved)]
        assert {device_of(result) for result in made} == {device}


# -- layouts on a device -------------------------------------------------------------------------


@for_device_arrays
def test_a_move_waits_for_pending_work(backend: str, sample: Sample) -> None:
    module, x = get_backend(backend), sample.array
    on_host = module.to_device(x, CPU)
    assert same_bits(read(backend, on_host), sample.values), "the array was read before the move was complete"
    for device in module.devices():
        if device != device_of(x) and not module.unsupported_dtype(sample.values.dtype.name, device):
            moved = module.to_device(x, device)
            assert device_of(moved) == device
            assert same_bits(read(backend, moved), sample.values), device
