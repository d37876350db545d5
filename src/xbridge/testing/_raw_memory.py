"""Memory byte by byte, where somebody says that it lies: a route that passes every converter by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from xbridge._core.protocol import MemoryLayout

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"


class _Place:
    """An address, as memory that may be written: whoever uses it keeps the owner alive."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "data": (address, False),
            "shape": shape,
            "strides": strides,
        }


def in_place(layout: MemoryLayout) -> Bytes:
    """The bytes of each element on a last axis, where they are, writable; if they are nowhere, nobody's."""
    shape = (*layout.shape, layout.itemsize)
    if layout.is_unallocated():
        return np.empty(shape, np.uint8)
    return np.asarray(_Place(layout.address, shape, (*layout.strides, 1)))
