"""Where arrays lie, by the addresses that their libraries give, and whether two of them meet there.

No memory is read, so that of a device is as good as the host's. A scalar and an empty array lie nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xbridge.testing._diff import resolve
from xbridge.testing._raw_memory import in_place

if TYPE_CHECKING:
    from xbridge._core.protocol import Array, HostArray
    from xbridge.testing._raw_memory import Bytes

WORK = 10_000
"""Candidate solutions that NumPy may try before addresses are compared one by one."""


def overlap(a: Array, b: Array) -> bool:
    """Whether a byte of one lies at the address of a byte of the other."""
    entered = resolve(a, "locate"), resolve(b, "locate")
    one, other = (in_place(backend.memory_layout(x)) for backend, x in entered)
    try:
        return bool(np.shares_memory(one, other, max_work=WORK))  # type: ignore[arg-type] # any int
    except np.exceptions.TooHardError:
        return bool(np.intersect1d(_addresses(one), _addresses(other)).size)


def _addresses(place: Bytes) -> HostArray:
    """Every one of them; NumPy gives up only on arrays that are small and strange."""
    addresses = np.asarray(place.ctypes.data)
    for n, stride in zip(place.shape, place.strides, strict=True):
        addresses = np.unique(np.add.outer(addresses, np.arange(n) * stride))
    return addresses


def places(*arrays: Array) -> list[str]:
    """A line on each array and on where it lies."""
    lines = []
    for backend, x in (resolve(array, "locate") for array in arrays):
        info, layout = backend.array_info(x), backend.memory_layout(x)
        low, high = (layout.address + end for end in layout.span())
        what = f"{backend.name} {info.dtype} array of shape {info.shape} on {info.device}"
        lines.append(f"  {what}: bytes {low:#x} to {high:#x}, strides {layout.strides}")
    return lines
