"""Objects that have one export protocol and nothing else, and DLPack capsules made by hand.

The structures in a capsule are packed here byte by byte, from the specification, so that nothing of the
reader under test takes part in writing them.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rawmemory import Host

_TENSOR = "PiiiBBHPPQ"
"""data, device type and id, axes, type code, bits, lanes, shape, strides, byte offset."""

_NEW = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


class Exporter:
    """An object of a class of its own, with just these methods and properties."""

    def __new__(cls, **words: object) -> Self:
        """Give the class the words: protocols look them up there."""
        own = {word: staticmethod(it) if callable(it) else it for word, it in words.items()}
        return object.__new__(type("Exporter", (cls,), own))


def dlpack_only(x: Any) -> Exporter:
    """What has `x`'s DLPack export and nothing else."""
    return Exporter(__dlpack__=x.__dlpack__, __dlpack_device__=x.__dlpack_device__)


def interface_only(a: Host, **changes: object) -> Exporter:
    """What has `a`'s array interface and nothing else; it keeps `a` alive."""
    return Exporter(__array_interface__={**a.__array_interface__, **changes}, owner=a)


def array_only(a: object) -> Exporter:
    """What has `__array__` and nothing else."""
    return Exporter(__array__=lambda dtype=None, copy=None: a)


def capsule(  # every field of the structures
    a: Host,
    *,
    name: bytes = b"dltensor_versioned",
    version: tuple[int, int] = (1, 0),
    flags: int = 0,
    data: int | None = None,
    device: tuple[int, int] = (1, 0),
    announced: tuple[int, int] | None = None,
    axes: int | None = None,
    code: int | None = None,
    bits: int | None = None,
    lanes: int = 1,
    shape: tuple[int, ...] | None = None,
    no_shape: bool = False,
    strides: tuple[int, ...] | None = None,
    no_strides: bool = False,
    offset: int = 0,
) -> Exporter:
    """An exporter of a capsule that describes `a`, but for what is said otherwise."""
    shape = a.shape if shape is None else shape
    strides = tuple(s // a.itemsize for s in a.strides) if strides is None else strides
    lengths, steps = ((ctypes.c_int64 * len(numbers))(*numbers) for numbers in (shape, strides))
    head = struct.pack("IIPPQ", *version, 0, 0, flags) if name.endswith(b"versioned") else b""
    tensor = struct.pack(
        _TENSOR,
        a.ctypes.data if data is None else data,
        *device,
        len(shape) if axes is None else axes,
        _CODES[a.dtype.kind] if code is None else code,
        a.itemsize * 8 if bits is None else bits,
        lanes,
        0 if no_shape else ctypes.addressof(lengths),
        0 if no_strides else ctypes.addressof(steps),
        offset,
    )
    packed = ctypes.create_string_buffer(head + tensor)
    return Exporter(
        __dlpack__=lambda max_version=None: _NEW(ctypes.addressof(packed), name, None),
        __dlpack_device__=lambda: announced or device,
        owner=(a, lengths, steps, packed),
    )
