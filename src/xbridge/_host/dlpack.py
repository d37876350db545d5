"""Reader of DLPack capsules, the one exchange protocol with dtype, device, strides and a read-only flag.

NumPy's own importer refuses bfloat16 and float8. Others ignore the read-only flag, or abort on a negative
stride. So the C structure is read here, field by field, and checked before any memory is read. The capsule is
borrowed: as long as a view of its memory exists, it has the name of a used capsule. So no other consumer
takes it, and its own destructor frees the memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from xbridge._core.devices import CUDA, CUDA_MANAGED, ROCM
from xbridge._core.dtypes import DTYPES
from xbridge._core.protocol import HostArray, MemoryLayout, c_strides
from xbridge._host.memory import native_dtype, raw_view
from xbridge.errors import Chained, DeviceError, DTypeError, UnsupportedArrayError, XBridgeError, type_of

_HOST = (1, 0)
_HOST_DEVICES = (1, 3, 11)  # plain host memory, and pinned by CUDA and by ROCm
_KINDS = {CUDA: "cuda", ROCM: "rocm", CUDA_MANAGED: "cuda"}
_READ_ONLY, _IS_COPIED = 1, 2
_VERSION = (1, 1)
_MOST_AXES = 64
_NAMES = {0: "int", 1: "uint", 2: "float", 5: "complex", 6: "bool"}
_EXTENDED = {(it.dlpack_code, it.bits): name for name, it in DTYPES.items() if it.dlpack_code}


class _Tensor(ctypes.Structure):
    _fields_: ClassVar = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    """The C struct DLManagedTensorVersioned. The older DLManagedTensor begins with the tensor instead."""

    _fields_: ClassVar = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_api, _function = ctypes.pythonapi, ctypes.PYFUNCTYPE
_is_valid = _function(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer = _function(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_name = _function(ctypes.c_void_p, ctypes.py_object)(("PyCapsule_GetName", _api))
_rename = _function(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(("PyCapsule_SetName", _api))


class _Borrowed:
    """The owner of a capsule, under the name of a used one, which lives as long as views of its memory."""

    used = ctypes.create_string_buffer(b"used_dltensor_versioned")

    def __init__(self, capsule: object) -> None:
        self.capsule, self.name = capsule, _name(capsule)
        _rename(capsule, ctypes.addressof(self.used))

    def __del__(self, rename: Callable[[object, int], int] = _rename) -> None:
        rename(self.capsule, self.name)


def _export_error(x: object, reason: str, error: type[XBridgeError] = UnsupportedArrayError) -> XBridgeError:
    # Without another protocol, `numpy.asarray` makes an object of the exporter.
    others = any(hasattr(type(x), word) for word in ("__array_interface__", "__array__"))
    return error.build(f"read {type_of(x)} through DLPack", reason, "numpy.asarray(x)" if others else "")


def from_dlpack(x: Any, *, fetch: bool, must_share: bool = False) -> tuple[HostArray, bool]:
    """Return a view of an exporter's host memory, and True if it is the exporter's own memory.

    The view is writable only if a versioned capsule allows it. With `fetch`, an exporter with device memory
    is asked for a copy on the host. With `must_share`, no error advises to ask for one. An error has a cause
    if the exporter raised, which may still export by another protocol.
    """

    def failed(error: Exception) -> XBridgeError:
        return _export_error(x, f"the export failed with {error!r}")

    with Chained(failed):
        device, number = map(int, x.__dlpack_device__())
    near = device in _HOST_DEVICES
    if not near and not fetch:
        raise _not_on_host_error(x, device, number, "" if must_share else "device='cpu'")
    with Chained(failed if near else lambda _: _not_on_host_error(x, device, number)):
        capsule = _request_capsule(x) if near else x.__dlpack__(max_version=_VERSION, dl_device=_HOST)
    tensor, flags = _read_capsule(x, capsule)
    if tensor.device_type not in _HOST_DEVICES:
        raise _export_error(x, "its capsule contradicts itself")
    host = _view_memory(x, capsule, tensor, writable=not flags & _READ_ONLY)
    return host, near and not flags & _IS_COPIED


def _read_capsule(x: object, capsule: object) -> tuple[_Tensor, int]:
    """Return the tensor of a capsule, and its flags. An older version has none: it is read-only."""
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise _export_error(x, f"it speaks DLPack {managed.major}")
        return managed.tensor, managed.flags
    if _is_valid(capsule, b"dltensor"):
        return _Tensor.from_address(_pointer(capsule, b"dltensor")), _READ_ONLY
    if type(capsule).__name__ == "PyCapsule":
        reason = "__dlpack__ returned a capsule that was used before, or that is not one of DLPack's"
        raise _export_error(x, reason)
    raise _export_error(x, f"__dlpack__ returned {type(capsule).__name__}")


def _not_on_host_error(x: object, device: int, number: int, hint: str = "") -> DeviceError:
    place = f"{_KINDS[device]}:{number}" if device in _KINDS else f"DLPack device type {device}"
    reason = f"its memory is on {place}, and its library is not registered"
    return DeviceError.build(f"read {type_of(x)} through DLPack", reason, hint)


def _request_capsule(x: Any) -> object:
    """Request a capsule. If the exporter does not take a version, ask again without it."""
    try:
        return x.__dlpack__(max_version=_VERSION)
    except (NotImplementedError, TypeError) as error:
        # Python and pybind11 speak of arguments that are not taken; another error is the exporter's own.
        is_about_arguments = any(word in str(error) for word in ("argument", "keyword"))
        if isinstance(error, TypeError) and not is_about_arguments:
            raise
    return x.__dlpack__()


def _view_memory(x: object, capsule: object, tensor: _Tensor, *, writable: bool) -> HostArray:
    """Return a view of the memory of a tensor in a capsule; raise if it describes no possible array."""
    if not 0 <= tensor.ndim <= _MOST_AXES:
        raise _export_error(x, "its capsule contradicts itself")
    if tensor.ndim and not tensor.shape:
        raise _export_error(x, "its capsule has no shape")
    dtype = native_dtype(_dtype_name(x, tensor))
    size, shape = tensor.bits // 8, tuple(tensor.shape[: tensor.ndim])
    if min(shape, default=1) < 0 or not (tensor.data or 0 in shape):
        raise _export_error(x, "its capsule has no memory")
    strides = c_strides(shape, size)
    if tensor.strides:
        strides = tuple(step * size for step in tensor.strides[: tensor.ndim])
    try:
        if 0 in shape:
            return np.empty(shape, dtype)
        layout = MemoryLayout(tensor.data + tensor.byte_offset, shape, strides, size, writable)
        return raw_view(layout, owner=_Borrowed(capsule)).view(dtype)
    except (ValueError, OverflowError) as error:
        raise _export_error(x, f"its capsule spans no memory of this machine: {error}") from None


def _dtype_name(x: object, tensor: _Tensor) -> str:
    name = _EXTENDED.get((tensor.code, tensor.bits))
    if name is None:
        kind = _NAMES.get(tensor.code, "opaque")
        name = "bool" if (kind, tensor.bits) == ("bool", 8) else f"{kind}{tensor.bits}"
    if tensor.lanes != 1 or name not in DTYPES or DTYPES[name].is_packed:
        reason = f"NumPy has no dtype for type code {tensor.code} of {tensor.bits} bits, {tensor.lanes} lanes"
        raise _export_error(x, reason, DTypeError)
    return name
