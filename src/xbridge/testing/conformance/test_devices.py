"""An array is where it was put: it moves when somebody says so, complete, and never else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from xbridge._api import align, asarray, to_backend, to_numpy
from xbridge._core.devices import CPU, Device
from xbridge._host.memory import native_dtype
from xbridge._inspect import device_of
from xbridge.backends import HOST
from xbridge.backends._registry import get
from xbridge.errors import CopyError, DeviceError
from xbridge.testing._gaps import promise
from xbridge.testing.conformance._cases import (
    WHOLE,
    held,
    of_its_own,
    of_other_devices,
    plain,
    sweep,
    telling,
)
from xbridge.testing.conformance._probes import apart, home, read, refusal_of, same_bits, spot
from xbridge.testing.samples.lookup import samples_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xbridge._core.protocol import Array, HostArray
    from xbridge.testing.samples.model import Sample


CASTS: dict[str, tuple[str, ...]] = {
    "float32": ("float64", "complex64"),
    "complex128": ("complex64",),
    "int16": ("int32", "float32"),
    "bool": ("int32", "float32"),
}
"""Casts whose results everybody agrees on."""


def elsewhere(backend: str) -> tuple[Device, ...]:
    """The devices that are not its home, which is the host wherever it can be there."""
    return get(backend).devices()[1:]


def accelerators(backend: str) -> list[Device]:
    """The devices that are no CPU; a library may have several of these."""
    return [device for device in get(backend).devices() if device.kind != CPU]


def meant(backend: str, device: Device) -> Device:
    """Which one its kind means, near a device: the one of that very name, such as `cpu`, or else this one."""
    kind = Device(device.kind)
    return kind if kind in get(backend).devices() else device


def dtypes_on(backend: str, device: Device) -> list[str]:
    """The dtypes that the library has there as well."""
    return [word for word in held(backend) if not get(backend).unsupported_dtype(word, device)]


def _sent(backend: str) -> Iterator[tuple[Array, Array, HostArray, Device]]:
    """Arrays on the host, the same on every other device, what they hold, and where they are."""
    for device in elsewhere(backend):
        for dtype in dtypes_on(backend, device):
            for shape in (WHOLE, (), (2, 0)):
                values = telling(dtype, shape)
                x = plain(backend, values)
                yield x, to_backend(x, backend, device=device), values, device


# -- names ---------------------------------------------------------------------------------------


def test_every_device_has_one_name_and_leads_to_itself(backend: str) -> None:
    module = get(backend)
    devices = module.devices()
    assert type(devices) is tuple
    assert {type(device) for device in devices} == {Device}
    assert len(set(devices)) == len(devices)
    assert CPU in devices or "host" in module.gaps
    assert module.host_only is False or devices == (CPU,)
    for device in devices:
        for near in devices:
            assert module.resolve_device(device, near) == device
        assert module.resolve_device(Device(device.kind), device) == meant(backend, device)
        assert module.resolve_device(Device(device.kind), CPU).kind == device.kind
        assert module.resolve_device(Device(device.kind), CPU) in devices


@promise("host")
def test_arrays_live_on_the_host_too(backend: str) -> None:
    assert CPU in get(backend).devices()


def test_a_device_object_of_the_library_has_the_name_of_its_device(backend: str) -> None:
    module = get(backend)
    for device in module.devices():
        x = to_backend(plain(backend, telling("float32", (2,))), backend, device=device)
        native = getattr(x, "device", None)
        if native is not None and not isinstance(native, str):
            assert module.device_name(native) == device
            assert device_of(to_backend(telling("float32", (2,)), backend, device=native)) == device
    for thing in (None, 3, object(), object, (), "float32"):
        assert module.device_name(thing) is None


def test_a_device_that_is_not_there_is_refused(backend: str) -> None:
    x = plain(backend, telling("float32", WHOLE))
    for name in ("nowhere", "nowhere:7", *(f"{device.kind}:99" for device in elsewhere(backend))):
        for given in (x, telling("float32", WHOLE)):
            refused = refusal_of(to_backend, given, backend, device=name)
            assert isinstance(refused, DeviceError), name
    assert isinstance(refusal_of(to_backend, x, HOST, device="nowhere"), DeviceError)


def test_gpu_is_an_accelerator_or_refused(backend: str) -> None:
    x = telling("float32", WHOLE)
    if accelerators(backend):
        assert device_of(to_backend(x, backend, device="gpu")) in accelerators(backend)
    else:
        assert isinstance(refusal_of(to_backend, x, backend, device="gpu"), DeviceError)


# -- ways ----------------------------------------------------------------------------------------


@promise("devices")
def test_arrays_live_elsewhere_too(backend: str) -> None:
    module = get(backend)
    if not elsewhere(backend):
        pytest.skip(f"{backend} may have other devices, but has none here")
    for x, moved, values, device in _sent(backend):
        assert module.array_info(moved)[:3] == (values.dtype.name, device, values.shape)
        assert device_of(moved) == device
        assert same_bits(read(backend, moved), values), "other values arrived"
        assert same_bits(read(backend, x), values), "the source was changed"


def test_every_way_of_lying_can_be_sent(backend: str) -> None:
    for device in elsewhere(backend):
        for sample in sweep(backend, tuple(dtypes_on(backend, device))):
            for moved in (
                to_backend(sample.array, backend, device=device),
                get(backend).to_device(sample.array, device),
            ):
                assert device_of(moved) == device
                assert same_bits(read(backend, moved), sample.values), sample.way
        for sample in sweep(HOST, tuple(dtypes_on(backend, device))):
            moved = to_backend(sample.array, backend, device=device)
            assert device_of(moved) == device
            assert same_bits(read(backend, moved), sample.values), sample.way


def test_what_was_sent_comes_back(backend: str) -> None:
    for _, moved, values, device in _sent(backend):
        back = to_backend(moved, backend, device=home(backend))
        assert device_of(back) == home(backend)
        assert same_bits(read(backend, back), values)
        host = to_numpy(moved)
        assert same_bits(host, values)
        assert host.flags.writeable, "a result from another device is the caller's own"
        for other in elsewhere(backend):
            if values.dtype.name in dtypes_on(backend, other):
                assert same_bits(read(backend, to_backend(moved, backend, device=other)), values), (
                    device,
                    other,
                )


def test_what_was_sent_has_memory_of_its_own(backend: str) -> None:
    write = samples_of(backend).write
    for x, moved, values, _ in _sent(backend):
        if values.size and any(way.writable for way in samples_of(backend).ways.values()):
            write(x)
            assert same_bits(read(backend, moved), values), "a write at home shows away"
            back, host = to_backend(moved, backend, device=home(backend)), to_numpy(moved)
            write(moved)
            assert same_bits(read(backend, back), values), "a write away shows in what came back"
            assert same_bits(host, values), "a write away shows in what came back"
            assert apart(spot(backend, back), spot(HOST, host))


def test_between_devices_memory_is_not_shared(backend: str) -> None:
    for x, moved, values, device in _sent(backend):
        if values.size:
            for given in (x, values):
                refused = refusal_of(to_backend, given, backend, device=device, copy=False)
                assert isinstance(refused, CopyError)
            assert isinstance(refusal_of(to_numpy, moved, copy=False), CopyError)


def test_an_array_stays_where_it_is(backend: str) -> None:
    module = get(backend)
    for _, moved, values, device in _sent(backend):
        assert to_backend(moved, backend) is moved
        near = to_backend(moved, backend, device=device.kind)
        assert device_of(near) == meant(backend, device)
        assert (near is moved) is (device_of(near) == device)
        word = next(word for word in dtypes_on(backend, device) if word != values.dtype.name)
        made = [to_backend(moved, backend, copy=True), module.copy(moved), module.stack([moved], (1,))]
        made += [asarray([moved, moved]), module.detach(moved), *align(moved, moved)]
        if not (values.dtype.kind == "c" and word[:3] != "com"):
            made += [to_backend(moved, backend, dtype=word), module.astype(moved, word)]
        made += [
            align(values, moved, like=moved)[0],
            asarray(values, like=moved),
            asarray([1, 2], like=moved),
        ]
        assert {device_of(result) for result in made} == {device}
        copied = read(backend, made[0])
        assert same_bits(copied, values)


@promise("devices")
def test_arrays_are_made_elsewhere(backend: str) -> None:
    if not elsewhere(backend):
        pytest.skip(f"{backend} may have other devices, but has none here")
    for device in elsewhere(backend):
        x = asarray([[1, 2], [3, 4]], backend=backend, device=device)
        assert device_of(x) == device
        assert np.array_equal(read(backend, x), [[1, 2], [3, 4]])


# -- what lies there in its own way --------------------------------------------------------------


@of_other_devices
def test_a_move_waits_for_what_is_under_way(backend: str, sample: Sample) -> None:
    module, x = get(backend), sample.array
    home = module.to_device(x, CPU)
    assert same_bits(read(backend, home), sample.values), "it was read before it had arrived"
    for device in module.devices():
        if device != device_of(x) and not module.unsupported_dtype(sample.values.dtype.name, device):
            moved = module.to_device(x, device)
            assert device_of(moved) == device
            assert same_bits(read(backend, moved), sample.values), device


@of_other_devices
def test_every_way_of_lying_comes_home(backend: str, sample: Sample) -> None:
    assert same_bits(to_numpy(sample.array), sample.values)
    assert same_bits(read(backend, to_backend(sample.array, backend, device=home(backend))), sample.values)


@of_other_devices
def test_every_way_of_lying_is_copied_where_it_is(backend: str, sample: Sample) -> None:
    module, x = get(backend), sample.array
    for copied in (module.copy(x), to_backend(x, backend, copy=True)):
        assert device_of(copied) == device_of(x)
        assert same_bits(read(backend, copied), sample.values)
        assert apart(spot(backend, copied), spot(backend, x))
    pair = np.stack([sample.values, sample.values])
    assert same_bits(read(backend, asarray([x, x])), pair)
    assert same_bits(read(backend, module.stack([x, x], (2,))), pair)


@of_other_devices
def test_every_way_of_lying_is_settled_where_it_is(backend: str, sample: Sample) -> None:
    module, x = get(backend), sample.array
    if not module.memory_layout(x).materialized:
        materialized = module.materialize(x)
        assert module.memory_layout(materialized).materialized
        assert device_of(materialized) == device_of(x)
        assert same_bits(read(backend, materialized), sample.values)
    assert same_bits(read(backend, module.detach(x)), sample.values)
    assert same_bits(read(backend, x), sample.values), "the source was changed"


@of_other_devices
def test_every_way_of_lying_is_cast_where_it_is(backend: str, sample: Sample) -> None:
    module, x, values = get(backend), sample.array, sample.values
    for target in CASTS[values.dtype.name]:
        if not module.unsupported_dtype(target, device_of(x)):
            with np.errstate(all="ignore"):
                known = values.astype(native_dtype(target))
            for made in (module.astype(x, target), to_backend(x, backend, dtype=target)):
                assert device_of(made) == device_of(x)
                found = read(backend, made)
                assert found.dtype == known.dtype
                with np.errstate(invalid="ignore"):  # which some machines raise for a signalling NaN
                    alike = np.array_equal(found, known, equal_nan=values.dtype.kind in "fc")
                assert alike, target


@promise("host")
@of_its_own
def test_on_the_host_there_is_nowhere_to_go(backend: str, sample: Sample) -> None:
    assert to_backend(sample.array, backend, device="cpu") is sample.array
