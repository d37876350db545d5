"""What lies in memory, byte by byte, by routes that pass xbridge by.

Arrays are read where they say that they lie, whatever their library, dtype, flags or history. So equality
here means equal bits, and sharing means one address in common.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from xbridge.protocol import MemoryLayout
from xbridge.testing import _raw_memory

Host = np.ndarray[Any, np.dtype[Any]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_TOP = -1 if sys.byteorder == "little" else 0


def in_place(x: Any) -> Bytes:
    """The bytes of each element on a last axis, where they are, writable."""
    if isinstance(x, np.ndarray):
        address, strides = x.ctypes.data, x.strides
    else:
        address, strides = x.data_ptr(), tuple(stride * x.itemsize for stride in x.stride())
    return _raw_memory.in_place(MemoryLayout(address, tuple(x.shape), strides, x.itemsize))


def bits(x: Any) -> Bytes:
    """The bytes of each element in native order, with pending negations done."""
    is_host = isinstance(x, np.ndarray)
    parts = 1 + (x.dtype.kind == "c" if is_host else x.is_complex())
    words = in_place(x).copy().reshape((*x.shape, parts, x.itemsize // parts))
    if is_host:
        words = words if x.dtype.isnative else words[..., ::-1]
    elif x.is_conj() or x.is_neg():
        words[..., _TOP] ^= np.uint8(0x80 if x.is_neg() else 0)
        words[..., 1:, _TOP] ^= np.uint8(0x80 if x.is_conj() else 0)
    return np.ascontiguousarray(words.reshape((*x.shape, x.itemsize)))


def same_bits(x: Any, y: Any) -> bool:
    """Whether two arrays have one shape and hold the same bits."""
    return bool(x.shape == y.shape and np.array_equal(bits(x), bits(y)))


def touched(x: Any) -> Host:
    """The address of every byte of an array, sorted."""
    if 0 in x.shape:
        return np.empty(0, np.intp)
    place = in_place(x)
    addresses = np.asarray(place.ctypes.data)
    for n, stride in zip(place.shape, place.strides, strict=True):
        addresses = np.add.outer(addresses, np.arange(n) * stride)
    return np.unique(addresses)


def overlaps(x: Any, y: Any) -> bool:
    """Whether two arrays have a byte in common."""
    return bool(np.intersect1d(touched(x), touched(y)).size)


def write(x: Any) -> None:
    """Change every element by its library's own assignment, which may refuse."""
    if isinstance(x, np.ndarray):
        x.view(f"V{x.itemsize}")[...] = _changed(x, in_place(x)).view(f"V{x.itemsize}")[..., 0]
    else:
        x.copy_(tensor_of(_changed(x, bits(x)), x.dtype))


def tensor_of(raw: Bytes, dtype: Any) -> Any:
    """A new tensor of the shape and bits of `raw`, whose last axis is the bytes of one element."""
    import torch

    return torch.from_numpy(raw.reshape(-1)).clone().view(dtype).reshape(raw.shape[:-1])


def _changed(x: Any, raw: Bytes) -> Bytes:
    """Other bytes of the same dtype: a truth value is 0 or 1, anything else may be anything."""
    mask = 1 if "bool" in str(x.dtype) else 0xFF
    return np.ascontiguousarray(raw ^ np.uint8(mask)).reshape(raw.shape)
