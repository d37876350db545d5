"""The backend of CuPy: arrays in GPU memory only, never read-only and without gradients.

On the host, NumPy's arrays take the place of CuPy's. CuPy computes on the current device and its current
stream, so each step makes the device of the array current. A transfer is complete on return, for which CuPy
itself would not wait.

CuPy can be installed on a machine without a GPU, where this backend is not available.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import cupy
import numpy as np

from xbridge._core.devices import CPU, Device, absent_device_error, device_named
from xbridge._core.dtypes import DTYPES
from xbridge._core.protocol import (
    Array,
    ArrayFn,
    ArrayInfo,
    Exporter,
    Gap,
    HostArray,
    MemoryLayout,
    Transfers,
    Unsupported,
    is_aligned,
)
from xbridge._host import memory as _host
from xbridge._host.device_exporter import OnDeviceExporter
from xbridge._host.memory import finite_extremes, native_dtype
from xbridge.backends import numpy as _numpy
from xbridge.errors import DTypeError, MissingLibraryError, UnsupportedArrayError, type_of

try:
    _count = cupy.cuda.runtime.getDeviceCount()
    _why = "CuPy is installed, and its driver finds no GPU"
except RuntimeError as _error:
    _count, _why = 0, f"CuPy is installed, and cannot use a GPU here: {_error}"
if not _count:
    raise MissingLibraryError.build("use backend 'cupy'", _why)

_KIND = "rocm" if cupy.cuda.runtime.is_hip else "cuda"
_DEVICES = {device_named(f"{_KIND}:{index}"): index for index in range(_count)}
_EXTENDED = ("bfloat16",) if int(cupy.__version__.partition(".")[0]) >= 14 else ()
_NATIVE = frozenset(word for word in DTYPES if hasattr(np, word) or word in _EXTENDED)

_widen = cupy.ElementwiseKernel(
    "float32 x",
    "float64 y",
    """
    unsigned int bits = __float_as_uint(x), size = bits & 0x7fffffffu;
    y = size >> 23 ? (double)x : copysign(size * 1.401298464324817e-45, bits >> 31 ? -1.0 : 1.0)
    """,
    "xbridge_widen",
)
_narrow = cupy.ElementwiseKernel(
    "float64 x",
    "float32 y",
    """
    unsigned int sign = signbit(x) ? 0x80000000u : 0u;
    double steps = fabs(x) * 7.1362384635298e+44;
    y = steps < 8388608.0 ? __uint_as_float(sign | (unsigned int)rint(steps)) : (float)x
    """,
    "xbridge_narrow",
)
_EXACT = {
    "f": ("d", _widen, "dD?"),
    "F": ("D", _widen, "D?"),
    "d": ("f", _narrow, "fFE"),
    "D": ("F", _narrow, "F"),
}
"""By the dtype of an array: to which one a kernel casts it, the kernel, and the casts that begin with it.

CuPy's own kernels take subnormal numbers of 32 bits for zero. These count them in steps of the least. `E` is
bfloat16, whose exponents are those of float32.
"""

name = "cupy"
array_types: tuple[type, ...] = (cupy.ndarray,)
gaps: dict[str, Gap] = {
    "host": Gap("never", "CuPy arrays are on a GPU"),
    "autograd": Gap("never", "CuPy does not differentiate"),
    "readonly": Gap("never", "CuPy has no read-only arrays"),
}
samples = "xbridge.testing.samples.cupy"
host_casts: frozenset[tuple[str, str]] = frozenset(
    {
        *(("float64", "float32"), ("complex128", "complex64")),
        *((wide, narrow) for wide in ("int64", "uint64") for narrow in ("int32", "uint32")),
    }
)
"""Casts that round at most once, and after which fewer bytes are sent."""


def to_numpy(x: HostArray, /) -> HostArray:
    return x


def from_numpy(host: HostArray, /) -> HostArray:
    return host


def array_info(x: Array, /) -> ArrayInfo:
    return ArrayInfo(_numpy.dtype_of(x), device_named(f"{_KIND}:{x.device.id}"), x.shape)


def unsupported(x: Array, /, *, leaving: bool) -> Unsupported | None:
    if not leaving:
        return None
    if type(x) is not cupy.ndarray:
        reason = f"{type_of(x)} may mean more than its numbers"
        return Unsupported(UnsupportedArrayError, reason, "x.view(type=cupy.ndarray)")
    if _numpy.dtype_of(x) in DTYPES:
        return None
    hint = f"x[{x.dtype.names[0]!r}]" if x.dtype.names else ""
    return Unsupported(DTypeError, f"{x.dtype} is not a numeric dtype", hint)


def memory_layout(x: Array, /) -> MemoryLayout:
    address, size = x.data.ptr if x.size else 0, x.itemsize
    return MemoryLayout(address, x.shape, x.strides, size, aligned=is_aligned(address, x.strides, size))


def accepts_layout(info: ArrayInfo, layout: MemoryLayout, /) -> bool:
    return info.native_byteorder and layout.aligned


def namespace(x: Array, /) -> ModuleType:
    from array_api_compat import cupy as compat  # noqa: PLC0415 -- 14 ms, and only this verb needs it

    return compat


def copy(x: Array, /) -> Array:
    with x.device:
        return x.copy(order="K")


def as_c_order(x: Array, /) -> Array:
    with x.device:
        return x if x.flags.c_contiguous else x.copy(order="C")


def stack(arrays: list[Array], shape: tuple[int, ...], /) -> Array:
    with arrays[0].device:
        return cupy.stack(arrays).reshape((*shape, *arrays[0].shape))


def unsupported_dtype(dtype: str, device: Device, /) -> Unsupported | None:
    return None if dtype in _NATIVE else Unsupported(DTypeError, f"CuPy has no {dtype}")


def astype(x: Array, dtype: str, /) -> Array:
    native = native_dtype(dtype)
    with x.device:
        if x.dtype.name == "bfloat16" and native.char in "dD?":
            x = x.astype("float32")
        between, kernel, goals = _EXACT.get(x.dtype.char, ("", None, ""))
        if kernel is None or native.char not in goals:
            return x.astype(native)
        made = cupy.empty_like(x, dtype=between)
        for part, goal in ((x.real, made.real), (x.imag, made.imag)) if between in "FD" else ((x, made),):
            kernel(part, goal)
        return made.astype(native, copy=False)


def check_cast(x: Array, dtype: str, /) -> Array:
    if x.size:
        with x.device:
            wide = x if x.dtype.kind in "biufc" else x.astype("float32")
            _host.check_cast(finite_extremes(cupy, wide).get(), dtype)
    return x


def devices() -> tuple[Device, ...]:
    return tuple(_DEVICES)


def to_device(x: Array, device: Device, /) -> Array:
    # CuPy would send an array in neither C nor Fortran order in C order, so the axes are sorted first.
    axes = sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis]))
    return _send(x.transpose(axes), device).transpose([axes.index(axis) for axis in range(x.ndim)])


def device_name(device: object, /) -> Device | None:
    return device_named(f"{_KIND}:{device.id}") if isinstance(device, cupy.cuda.Device) else None


def resolve_device(device: Device, near: Device, /) -> Device:
    if device in _DEVICES:
        return device
    if device in ("gpu", _KIND):
        return near if near in _DEVICES else device_named(f"{_KIND}:{cupy.cuda.runtime.getDevice()}")
    raise absent_device_error(name, device, devices())


def to_dlpack(x: Array, /) -> Exporter:
    return OnDeviceExporter(x, x.device)


def from_dlpack(shown: Exporter, /) -> Array:
    return cupy.from_dlpack(shown)


class _Transfers(Transfers):
    def threaded(self, fn: ArrayFn, device: Device, /) -> ArrayFn:
        # The call uses the stream of this thread, because CuPy frees memory on the stream that allocated it.
        with cupy.cuda.Device(_DEVICES.get(device)) as current:
            stream = cupy.cuda.get_current_stream()

        def in_thread(xs: list[object]) -> list[object]:
            with cupy.cuda.Device(current.id), stream:
                stream.synchronize()  # `fn` may use another stream
                made = fn(xs)
                stream.synchronize()
            return made

        return in_thread

    def thread_context(self) -> Callable[[], object]:
        device, stream = cupy.cuda.Device(), cupy.cuda.get_current_stream()

        def apply() -> None:
            device.use()
            stream.use()

        return apply


transfers: Transfers = _Transfers()


def _send(x: Array, device: Device) -> Array:
    """Copy an array to another device in C order. On the host, the array is NumPy's."""
    if device == CPU:
        with x.device:
            return x.get()
    there = cupy.cuda.Device(_DEVICES[device])
    if isinstance(x, np.ndarray):
        with there:
            return _upload(x)
    with x.device:
        dense = cupy.ascontiguousarray(x)
        cupy.cuda.get_current_stream().synchronize()
    with there:
        moved = dense.copy()
        cupy.cuda.get_current_stream().synchronize()
    return moved


def _upload(host: HostArray) -> Array:
    # CuPy would pass a 0-d array as a number, which loses the sign of -0.0.
    return cupy.asarray(host.reshape(host.shape or 1), order="C", blocking=True).reshape(host.shape)
