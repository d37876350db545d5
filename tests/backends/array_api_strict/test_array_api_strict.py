"""array-api-strict, whose devices are there to be forgotten: what is shared, moved, cast and refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import xbridge

strict = pytest.importorskip("array_api_strict")


from xbridge.backends import array_api_strict as backend  # noqa: E402 -- only where the library is

if TYPE_CHECKING:
    from xbridge.protocol import Array, HostArray

NAME = "array_api_strict"
HERE = backend.devices()
CPU = strict.Device("CPU_DEVICE")


def inside(x: Array) -> HostArray:
    """The memory of a strict array, wherever it claims to be."""
    memory: HostArray = x._array
    return memory


def at(device: str, values: object = (1.0, 2.0, 3.0), dtype: str = "float32") -> Array:
    """A strict array made by the library itself."""
    return strict.asarray(np.asarray(values, dtype), device=backend._DEVICES[xbridge.Device(device)])


# -- devices -------------------------------------------------------------------------------------


def test_to_numpy__avoids_dlpack(monkeypatch: pytest.MonkeyPatch) -> None:
    """No conversion uses DLPack, which reports every device as the CPU."""

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError

    for word in ("__dlpack__", "__dlpack_device__"):
        monkeypatch.setattr(type(at("cpu")), word, refuse)
    assert xbridge.to_numpy(at("device1")).tolist() == [1.0, 2.0, 3.0]
    assert xbridge.to_list(at("device1")) == [1.0, 2.0, 3.0]


def test_to_numpy__backend_function_refuses_device_memory() -> None:
    """The backend's own functions do not expose memory that was not moved to the host."""
    with pytest.raises(RuntimeError, match="device1"):
        backend.to_numpy(at("device1"))
    assert backend.fast_to_numpy(at("device1")) is None


def test_to_backend__missing_device_hint_works() -> None:
    """The error for a device that torch lacks suggests one that works."""
    pytest.importorskip("torch")
    with pytest.raises(xbridge.DeviceError, match=r"no device device1 here, .*try device='cpu'$"):
        xbridge.to_backend(at("device1"), "torch")
    assert xbridge.to_backend(at("device1"), "torch", device="cpu").tolist() == [1.0, 2.0, 3.0]


@pytest.mark.skipif("no_float64" not in HERE, reason="came with array-api-strict 2.5")
def test_to_backend__casts_before_moving() -> None:
    """A dtype that the target device lacks is cast before the move."""
    for source in (np.ones(2), at("cpu", [1, 1], "float64")):
        x = xbridge.to_backend(source, NAME, device="no_float64", dtype="complex64")
        assert inside(x).tolist() == [1.0, 1.0]


def test_to_backend__ignores_strict_flags() -> None:
    """An older standard, or one without extensions, changes no conversion."""
    with strict.ArrayAPIStrictFlags(
        api_version="2022.12", boolean_indexing=False, data_dependent_shapes=False, enabled_extensions=()
    ):
        assert backend.devices() == HERE
        x = xbridge.asarray([at("device1"), at("device1")], dtype="int8")
        assert xbridge.device_of(x) == "device1"
        assert xbridge.to_list(x) == [[1, 2, 3], [1, 2, 3]]
        assert xbridge.to_backend(np.ones(2), NAME, device="device2", copy=True).device != CPU


# -- what users do with it -----------------------------------------------------------------------


def test_asarray__list_stays_on_its_device() -> None:
    """Arrays in a list stay on their device, and arrays of two devices are not mixed."""
    x = at("device1")
    nested = xbridge.asarray([[x, x], [x, [4, 5, 6]]])
    assert nested.device == x.device
    assert inside(nested).tolist() == [[[1, 2, 3], [1, 2, 3]], [[1, 2, 3], [4, 5, 6]]]
    with pytest.raises(xbridge.DeviceError, match=r"align\(\*arrays\) first"):
        xbridge.asarray([x, at("cpu")])
    aligned = xbridge.align(x, np.ones(3), at("cpu"))
    assert {y.device for y in aligned} == {x.device}
