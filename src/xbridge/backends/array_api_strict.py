"""array-api-strict: the standard and nothing else, with devices that are host memory in disguise.

What it computes, NumPy computes; what it adds are refusals. So it is for tests: whoever forgets a device,
or relies on more than the standard, fails on any machine. Only its CPU is shown to NumPy. Its DLPack would
show the other devices too and call them the CPU, so nothing here uses that: arrays are moved.
"""

from __future__ import annotations

from importlib import import_module
from itertools import permutations
from typing import TYPE_CHECKING, Any

import array_api_strict
import numpy as np

from xbridge import _host
from xbridge._core.devices import CPU, Device, no_exchange
from xbridge._core.dtypes import DTYPES, category, instead
from xbridge._core.protocol import ArrayInfo, Unsupported
from xbridge._host.memory import layout_of
from xbridge.errors import DeviceError, DTypeError, GradientError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from xbridge._core.protocol import Array, Exporter, HostArray, MemoryLayout

_NATIVE: dict[str, Any] = {
    word: getattr(array_api_strict, word) for word in DTYPES if hasattr(array_api_strict, word)
}
_NAMES = {dtype: word for word, dtype in _NATIVE.items()}
_ON_HOST = {np.dtype(word) for word in _NATIVE}
_EXAMPLES = {"bool": False, "int": 0, "float": 0.0, "complex": 0j}
# Its inspection API tells the devices as well, but not under every version of the standard that it plays.
_CPU, *_OTHERS = import_module(array_api_strict.Device.__module__).ALL_DEVICES
_DEVICES = {CPU: _CPU, **{Device(other._device): other for other in _OTHERS}}
_PLACES = {native: device for device, native in _DEVICES.items()}
_Array = type(array_api_strict.empty(0))

name = "array_api_strict"
plain: tuple[type, ...] = (_Array,)
scalars: tuple[type, ...] = ()
readonly = True
immutable = False
autograd = False
host_only = False
host_casts: frozenset[tuple[str, str]] = frozenset(
    (source, target)
    for source, target in permutations(_NATIVE, 2)
    if category(source) != "complex" or category(target) in ("complex", "bool")
)
gaps: dict[str, str] = {"history": "never: the array API standard has no gradients"}
samples = "xbridge.testing.samples.array_api_strict"


def owns(cls: type, /) -> bool:
    return issubclass(cls, _Array)


def array_info(x: Array, /) -> ArrayInfo:
    return ArrayInfo(_NAMES[x.dtype], _PLACES[x.device], x.shape)


def unsupported(x: Array, /, *, leaving: bool) -> Unsupported | None:
    return None


def memory_layout(x: Array, /) -> MemoryLayout:
    return layout_of(x._array)


def dtype_name(dtype: object, /) -> str | None:
    # NumPy's dtypes have the same hash as the library's, which warns of being compared with them.
    return _NAMES.get(dtype) if isinstance(dtype, type(array_api_strict.bool)) else None


def unsupported_dtype(dtype: str, device: Device, /) -> Unsupported | None:
    if dtype not in _NATIVE:
        return Unsupported(DTypeError, f"array_api_strict has no {dtype}", instead(dtype))
    try:
        array_api_strict.empty(0, dtype=_NATIVE[dtype], device=_DEVICES[device])
    except ValueError:
        return Unsupported(DTypeError, f"its device {device} has no {dtype}", instead(dtype))
    return None


def default_dtype(category: str, device: Device, /) -> str:
    return _NAMES[array_api_strict.asarray(_EXAMPLES[category], device=_DEVICES[device]).dtype]


def device_name(device: object, /) -> Device | None:
    return _PLACES.get(device) if isinstance(device, array_api_strict.Device) else None


def resolve_device(device: Device, near: Device, /) -> Device:
    if device == "gpu":  # code for an accelerator is tried on what plays one
        return near if near in tuple(_DEVICES)[1:] else devices()[1]
    if device not in _DEVICES:
        raise DeviceError.build(
            f"put an array_api_strict array on {device!r}",
            f"its devices are {', '.join(_DEVICES)}",
            "device='cpu'",
        )
    return device


def devices() -> tuple[Device, ...]:
    return tuple(_DEVICES)


def namespace(x: Array, /) -> ModuleType:
    return array_api_strict


def is_tracing() -> bool:
    return False


def untraced(fn: Callable[..., Array], /) -> Callable[..., Array]:
    return fn


def is_grad_enabled() -> bool:
    return False


def fast_to_numpy(x: Array, /) -> HostArray | None:
    if x.device != _CPU:
        return None
    host = to_numpy(x)
    return host if host.flags.forc and host.flags.writeable else None


def fast_from_numpy(host: HostArray, /) -> Array | None:
    flags = host.flags
    return from_numpy(host) if flags.behaved and flags.forc and host.dtype in _ON_HOST else None


def detach(x: Array, /) -> Array:
    return x


def require_grad(x: Array, /) -> Array:
    raise GradientError.build(
        "make an array_api_strict array require grad", gaps["history"].partition(": ")[2], "backend='torch'"
    )


def materialize(x: Array, /) -> Array:
    return x


def check_cast(x: Array, dtype: str, /) -> Array:
    _host.check_cast(to_numpy(to_device(x, CPU)), dtype)
    return x


def astype(x: Array, dtype: str, /) -> Array:
    with np.errstate(all="ignore"):
        if dtype == "bool":  # `astype` takes no complex numbers there, though the standard lets it
            return x != array_api_strict.zeros((), dtype=x.dtype, device=x.device)
        return array_api_strict.astype(x, _NATIVE[dtype])


def copy(x: Array, /) -> Array:
    return array_api_strict.asarray(x, copy=True)


def to_device(x: Array, device: Device, /) -> Array:
    return x.to_device(_DEVICES[device])


def stack(arrays: list[Array], shape: tuple[int, ...], /) -> Array:
    return array_api_strict.reshape(array_api_strict.stack(arrays), (*shape, *arrays[0].shape))


def accepts_layout(info: ArrayInfo, layout: MemoryLayout, /) -> bool:
    return info.native_byteorder


def to_numpy(x: Array, /) -> HostArray:
    return np.asarray(x).view()


def from_numpy(host: HostArray, /) -> Array:
    return array_api_strict.asarray(host.view(), copy=False)


def to_dlpack(x: Array, /) -> Exporter:
    raise no_exchange(name)


def from_dlpack(shown: Exporter, /) -> Array:
    raise no_exchange(name)
