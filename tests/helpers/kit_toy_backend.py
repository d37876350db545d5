"""The backend of the pretend library in `kit_toy.py`, without a fault: `kit_toy_faults.py` adds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from inside import native_dtype
from kit_toy import LIBRARY_DTYPES, PLACES, Spot, Stone, Tile
from kit_toy import namespace as xp

from xbridge._core.devices import CPU, Device
from xbridge._host import memory as _host
from xbridge._host.memory import layout_of
from xbridge.errors import DeviceError, DTypeError, UnsupportedArrayError
from xbridge.protocol import ArrayInfo, Fast, Unsupported

if TYPE_CHECKING:
    from types import ModuleType

    from xbridge.protocol import HostArray, MemoryLayout

name = "tiles"
array_types: tuple[type, ...] = (Tile,)
host_casts: frozenset[tuple[str, str]] = frozenset({("float64", "float32")})
samples = "kit_toy_samples"


_DEVICES = {"host": CPU, "attic": Device("tile:0"), "cellar": Device("tile:1")}
_PLACES = {device: place for place, device in _DEVICES.items()}
_DEFAULTS = {"bool": "bool", "int": "int64", "float": "float32", "complex": "complex64"}


def to_numpy(x: Tile, /) -> HostArray:
    return x.memory.view()


def from_numpy(host: HostArray, /) -> Tile:
    return Tile(host)


def array_info(x: Tile, /) -> ArrayInfo:
    return ArrayInfo(x.dtype.name, _DEVICES[x.place], x.shape, x.tracked)


def unsupported(x: Tile, /, *, leaving: bool) -> Unsupported | None:
    if not leaving:
        return None
    if type(x) is not Tile:
        return Unsupported(
            UnsupportedArrayError, f"a {type(x).__name__} may mean more than its tiles", "Tile(x.memory)"
        )
    if x.dtype.name in LIBRARY_DTYPES:
        return None
    if x.memory.dtype.kind == "U":
        return Unsupported(DTypeError, "a tile of words has no numbers", "x.lengths()")
    return Unsupported(UnsupportedArrayError, "the tile is broken", "mending it first")


def memory_layout(x: Tile, /) -> MemoryLayout:
    return layout_of(x.memory)._replace(writable=x.writable, materialized=not (x.neg or x.conj))


def accepts_layout(info: ArrayInfo, layout: MemoryLayout, /) -> bool:
    return info.native_byteorder and layout.aligned and all(stride >= 0 for stride in layout.strides)


def namespace(x: Tile, /) -> ModuleType:
    module: ModuleType = xp
    return module


def follows(x: Tile, /) -> bool:
    return x.tracked


def copy(x: Tile, /) -> Tile:
    values = x.values()
    axes = sorted(range(values.ndim), key=lambda axis: -abs(x.memory.strides[axis]))
    dense = np.ascontiguousarray(values.transpose(axes)).reshape([values.shape[axis] for axis in axes])
    copied = dense.transpose(np.argsort(axes)) if axes else dense
    return x.like(copied)


def stack(arrays: list[Tile], shape: tuple[int, ...], /) -> Tile:
    values = np.stack([x.values() for x in arrays])
    return arrays[0].like(values.reshape((*shape, *arrays[0].shape)), *arrays)


def dtype_name(dtype: object, /) -> str | None:
    return dtype.name if isinstance(dtype, Stone) else None


def unsupported_dtype(dtype: str, device: Device, /) -> Unsupported | None:
    if dtype in LIBRARY_DTYPES:
        return None
    return Unsupported(DTypeError, f"there are no tiles of {dtype}", "")


def default_dtype(category: str, device: Device, /) -> str:
    return _DEFAULTS[category]


def astype(x: Tile, dtype: str, /) -> Tile:
    with np.errstate(all="ignore"):
        return x.like(x.values().astype(native_dtype(dtype)))


def check_cast(x: Tile, dtype: str, /) -> Tile:
    _host.check_cast(x.values(), dtype)
    return x


def devices() -> tuple[Device, ...]:
    return tuple(_DEVICES.values())


def to_device(x: Tile, device: Device, /) -> Tile:
    return Tile(np.empty(0), place=_PLACES[device]).like(x.values(), x)


def device_name(device: object, /) -> Device | None:
    return _DEVICES[device.place] if isinstance(device, Spot) else None


def resolve_device(device: Device, near: Device, /) -> Device:
    kind = "tile" if device.kind == "gpu" else device.kind
    if kind == near.kind and device.index in (None, near.index):
        return near
    found = Device(f"{kind}:0") if kind == "tile" and device.index is None else Device(str(device))
    if device.kind == "gpu":
        return _DEVICES["attic"]
    if found not in _PLACES:
        raise DeviceError.build(
            f"put a tile on {device!r}", "there is no such place", f"device={PLACES[0]!r}"
        )
    return found


def detach(x: Tile, /) -> Tile:
    return Tile(x.memory, place=x.place, neg=x.neg, conj=x.conj, writable=False)


def require_grad(x: Tile, /) -> Tile:
    return Tile(x.memory, place=x.place, neg=x.neg, conj=x.conj, writable=x.writable, parents=())


def materialize(x: Tile, /) -> Tile:
    return x.like(x.values())


def fast_to_numpy(x: Tile, /) -> HostArray | None:
    if x.place != "host" or x.neg or x.conj or x.tracked or x.dtype.name not in LIBRARY_DTYPES:
        return None
    if not x.writable or memory_layout(x).may_overlap_itself():
        return None
    return x.memory.view()


def fast_from_numpy(host: HostArray, /) -> Tile | None:
    flags = host.flags
    if not (flags.behaved and flags.forc and host.dtype.isnative) or host.dtype.name not in LIBRARY_DTYPES:
        return None
    return Tile(host)


fast = Fast(to_numpy=fast_to_numpy, from_numpy=fast_from_numpy)
