"""Raw bytes at an address, read without any converter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from xbridge.protocol import HostArray, MemoryLayout

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"


class _AddressRange:
    """Writable memory at an address. The caller keeps its owner alive."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "data": (address, False),
            "shape": shape,
            "strides": strides,
        }


class _ReadOnly:
    """The memory of an array, which it keeps alive, without the right to write."""

    def __init__(self, x: HostArray) -> None:
        address, _ = x.__array_interface__["data"]
        self._owner = x
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{x.itemsize}",
            "data": (address, True),
            "shape": x.shape,
            "strides": x.strides,
        }


def read_only(x: HostArray) -> HostArray:
    """Return a read-only view, which nobody can make writable again."""
    return np.asarray(_ReadOnly(x)).view(x.dtype)


def in_place(layout: MemoryLayout) -> Bytes:
    """View the bytes of each element on a last axis, in place and writable; new bytes if unallocated."""
    shape = (*layout.shape, layout.itemsize)
    if layout.is_unallocated():
        return np.empty(shape, np.uint8)
    return np.asarray(_AddressRange(layout.address, shape, (*layout.strides, 1)))
