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


def read_only(x: HostArray) -> HostArray:
    """Return a read-only view, which nobody can make writable again."""
    return np.asarray(x.view(f"V{x.itemsize}").data.toreadonly()).view(x.dtype)


def in_place(layout: MemoryLayout) -> Bytes:
    """View the bytes of each element on a last axis, in place and writable; new bytes if unallocated."""
    shape = (*layout.shape, layout.itemsize)
    if layout.is_unallocated():
        return np.empty(shape, np.uint8)
    return np.asarray(_AddressRange(layout.address, shape, (*layout.strides, 1)))
