"""Reads of values and memory that do not use the functions under test.

Values are read by the library's own means. NumPy arrays give their own addresses. For other arrays only the
backend knows the address, so the suite first tests that `memory_layout` is correct.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from xbridge.errors import XBridgeError
from xbridge.extend import get_backend
from xbridge.protocol import MemoryLayout
from xbridge.testing.samples import samples_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from xbridge import Device
    from xbridge.protocol import Array, Backend, HostArray


def read(backend: str, x: Array) -> HostArray:
    """Read the values of an array by the library's own means."""
    return samples_of(backend).read(x)


def same_bits(found: HostArray, values: HostArray) -> bool:
    """Return True if two host arrays have one dtype and shape, and the same bits."""
    alike = found.dtype == values.dtype and found.shape == values.shape
    return alike and found.tobytes() == values.tobytes()


def same_values(found: HostArray, values: HostArray) -> bool:
    """Return True if two arrays have one dtype and the same bits, except for the payloads of NaNs."""
    if found.dtype != values.dtype or found.shape != values.shape:
        return False
    parts = [(np.real(x), np.imag(x)) if x.dtype.kind == "c" else (x,) for x in (found, values)]
    for a, b in zip(*parts, strict=True):
        if not (np.array_equal(np.isnan(a), np.isnan(b)) and same_bits(a[~np.isnan(a)], b[~np.isnan(b)])):
            return False
    return True


def memory_of(backend: str, x: Array) -> MemoryLayout:
    """Return the memory layout of an array."""
    if isinstance(x, np.ndarray):
        address = int(x.__array_interface__["data"][0])
        return MemoryLayout(address, x.shape, x.strides, x.itemsize, x.flags.writeable)
    return get_backend(backend).memory_layout(x)


def always_copies(module: Backend) -> bool:
    """Return True if the backend declares that its arrays never share host memory."""
    return "sharing" in module.gaps and not module.assumes_immutable


def host_memory_of(backend: str, x: Array) -> MemoryLayout:
    """Return the memory layout of an array on the host. Skip if the library has no host memory."""
    if "host" in get_backend(backend).gaps and not isinstance(x, np.ndarray):
        pytest.skip(f"the memory of {backend} cannot be read: {get_backend(backend).gaps['host']}")
    return memory_of(backend, x)


def default_device(backend: str) -> Device:
    """Return the default device of the library: the host, if the library has it."""
    return get_backend(backend).devices()[0]


def is_aligned(layout: MemoryLayout, alignment: int) -> bool:
    """Return True if every element begins at a multiple of the alignment."""
    steps = [stride for stride, n in zip(layout.strides, layout.shape, strict=True) if n > 1]
    return all(place % alignment == 0 for place in (layout.address, *steps))


def byte_addresses(layout: MemoryLayout) -> HostArray:
    """Return the address of every byte, sorted."""
    if layout.is_unallocated():
        return np.empty(0, np.intp)
    addresses = np.asarray(layout.address)
    for n, stride in zip((*layout.shape, layout.itemsize), (*layout.strides, 1), strict=True):
        addresses = np.add.outer(addresses, np.arange(n) * stride)
    return np.unique(addresses)


def disjoint(a: MemoryLayout, b: MemoryLayout) -> bool:
    """Return True if two arrays have no byte in common."""
    return not np.intersect1d(byte_addresses(a), byte_addresses(b)).size


def same_memory(a: MemoryLayout, b: MemoryLayout) -> bool:
    """Return True if two arrays consist of the same bytes."""
    return np.array_equal(byte_addresses(a), byte_addresses(b))


def refused_write(backend: str, x: Array) -> bool:
    """Write by the library's own means, and return True if the library refuses."""
    try:
        samples_of(backend).write(x)
    except (ValueError, TypeError, RuntimeError):
        return True
    return False


def error_of(call: Callable[..., Any], /, *args: Any, **options: Any) -> XBridgeError | None:
    """Return the error that a call raises, after a check of its message; None if it returns."""
    try:
        call(*args, **options)
    except XBridgeError as error:
        words = str(error)
        assert words.startswith("cannot ")
        assert not words.endswith("; try ")
        return error
    return None
