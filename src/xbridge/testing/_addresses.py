"""Addresses of arrays, as their backends report them, and the overlap of two arrays.

No memory is read, so memory of a device can be compared too. A scalar and an empty array have no address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xbridge.testing._diff import resolve
from xbridge.testing._raw_memory import in_place

if TYPE_CHECKING:
    from xbridge.protocol import Array


def overlap(a: Array, b: Array) -> bool:
    """Return True if two arrays have a byte in common."""
    entered = resolve(a, "locate"), resolve(b, "locate")
    one, other = (in_place(backend.memory_layout(x)) for backend, x in entered)
    return bool(np.shares_memory(one, other))


def places(*arrays: Array) -> list[str]:
    """Return a line on each array and its address range."""
    lines = []
    for backend, x in (resolve(array, "locate") for array in arrays):
        info, layout = backend.array_info(x), backend.memory_layout(x)
        low, high = (layout.address + end for end in layout.span())
        what = f"{backend.name} {info.dtype} array of shape {info.shape} on {info.device}"
        lines.append(f"  {what}: bytes {low:#x} to {high:#x}, strides {layout.strides}")
    return lines
