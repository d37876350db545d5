"""array-api-strict: the standard and nothing else, with pretend devices in host memory.

NumPy does its computations, and the library adds refusals. So it is for tests: code that forgets a device, or
relies on more than the standard, fails on any machine. Only arrays on its CPU are passed to NumPy. Its DLPack
would export the other devices as the CPU, so the backend does not use it and moves arrays instead.
"""

from __future__ import annotations

from importlib import import_module
from itertools import permutations
from typing import Any

import array_api_strict
import numpy as np

from xbridge._core.devices import CPU, Device
from xbridge._core.dtypes import DTYPES, category
from xbridge._core.protocol import Array, ArrayInfo, Fast, Gap, HostArray, MemoryLayout, Unsupported
from xbridge._host.memory import layout_of
from xbridge.errors import DTypeError

_NATIVE: dict[str, Any] = {
    word: getattr(array_api_strict, word) for word in DTYPES if hasattr(array_api_strict, word)
}
_NAMES = {dtype: word for word, dtype in _NATIVE.items()}
_ON_HOST = {np.dtype(word) for word in _NATIVE}
_EXAMPLES = {"bool": False, "int": 0, "float": 0.0, "complex": 0j}
# Its inspection API has the devices too, but not under every version of the standard that it can implement.
_CPU, *_OTHERS = import_module(array_api_strict.Device.__module__).ALL_DEVICES
_DEVICES = {CPU: _CPU, **{Device(other._device): other for other in _OTHERS}}
_PLACES = {native: device for device, native in _DEVICES.items()}
_Array = type(array_api_strict.empty(0))

name = "array_api_strict"
array_types: tuple[type, ...] = (_Array,)
gaps: dict[str, Gap] = {"autograd": Gap("never", "the array API standard has no gradients")}
host_casts: frozenset[tuple[str, str]] = frozenset(
    (source, target)
    for source, target in permutations(_NATIVE, 2)
    if category(source) != "complex" or category(target) in ("complex", "bool")
)


def to_numpy(x: Array, /) -> HostArray:
    return np.asarray(x).view()


def from_numpy(host: HostArray, /) -> Array:
    return array_api_strict.asarray(host.view(), copy=False)


def array_info(x: Array, /) -> ArrayInfo:
    return ArrayInfo(_NAMES[x.dtype], _PLACES[x.device], x.shape)


def memory_layout(x: Array, /) -> MemoryLayout:
    return layout_of(x._array)


def dtype_name(dtype: object, /) -> str | None:
    # NumPy's dtypes have the same hash as the library's, which warns when they are compared.
    return _NAMES.get(dtype) if isinstance(dtype, type(array_api_strict.bool)) else None


def unsupported_dtype(dtype: str, device: Device, /) -> Unsupported | None:
    if dtype not in _NATIVE:
        return Unsupported(DTypeError, f"array_api_strict has no {dtype}")
    try:
        array_api_strict.empty(0, dtype=_NATIVE[dtype], device=_DEVICES[device])
    except ValueError:
        return Unsupported(DTypeError, f"its device {device} has no {dtype}")
    return None


def default_dtype(category: str, device: Device, /) -> str:
    return _NAMES[array_api_strict.asarray(_EXAMPLES[category], device=_DEVICES[device]).dtype]


def astype(x: Array, dtype: str, /) -> Array:
    with np.errstate(all="ignore"):
        if dtype == "bool":  # `astype` refuses complex numbers, though the standard allows them
            return x != array_api_strict.zeros((), dtype=x.dtype, device=x.device)
        return array_api_strict.astype(x, _NATIVE[dtype])


def devices() -> tuple[Device, ...]:
    return tuple(_DEVICES)


def to_device(x: Array, device: Device, /) -> Array:
    return x.to_device(_DEVICES[device])


def device_name(device: object, /) -> Device | None:
    return _PLACES.get(device) if isinstance(device, array_api_strict.Device) else None


def fast_to_numpy(x: Array, /) -> HostArray | None:
    if x.device != _CPU:
        return None
    host = to_numpy(x)
    return host if host.flags.forc and host.flags.writeable else None


def fast_from_numpy(host: HostArray, /) -> Array | None:
    flags = host.flags
    return from_numpy(host) if flags.behaved and flags.forc and host.dtype in _ON_HOST else None


fast: Fast = Fast(to_numpy=fast_to_numpy, from_numpy=fast_from_numpy)
