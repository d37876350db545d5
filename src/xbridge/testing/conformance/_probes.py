"""Looks at values and memory that pass the verbs under test by.

Values are read by the library's own means, and NumPy's arrays are asked themselves. Where memory lies a
backend has to be asked, for nobody else knows; that it tells the truth is the first thing that is tested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from xbridge._core.protocol import MemoryLayout
from xbridge.backends._registry import get
from xbridge.errors import XBridgeError
from xbridge.testing._raw_memory import in_place
from xbridge.testing.samples.lookup import samples_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array, Backend, HostArray


def read(backend: str, x: Array) -> HostArray:
    """The values of one of its arrays, by the library's own means."""
    return samples_of(backend).read(x)


def same_bits(found: HostArray, values: HostArray) -> bool:
    """Whether two host arrays have one dtype and shape, and the same bits."""
    alike = found.dtype == values.dtype and found.shape == values.shape
    return alike and found.tobytes() == values.tobytes()


def memory_of(backend: str, x: Array) -> MemoryLayout:
    """How an array lies in memory."""
    if isinstance(x, np.ndarray):
        address = int(x.__array_interface__["data"][0])
        return MemoryLayout(address, x.shape, x.strides, x.itemsize, x.flags.writeable)
    return get(backend).memory_layout(x)


def always_copies(module: Backend) -> bool:
    """Whether its arrays never look at memory of the host, as it says: it reads that into its own."""
    return "sharing" in module.gaps and not module.assumes_immutable


def host_memory_of(backend: str, x: Array) -> MemoryLayout:
    """The same, where its bytes can be looked at: on the host. Elsewhere an address leads nowhere."""
    if "host" in get(backend).gaps and not isinstance(x, np.ndarray):
        pytest.skip(f"nobody can look at the memory of {backend}: {get(backend).gaps['host']}")
    return memory_of(backend, x)


def default_device(backend: str) -> Device:
    """The device where the library's arrays are unless somebody says otherwise: the host, if it has that."""
    return get(backend).devices()[0]


def is_aligned(layout: MemoryLayout, alignment: int) -> bool:
    """Whether every element begins at a multiple of what its dtype asks for."""
    steps = [stride for stride, n in zip(layout.strides, layout.shape, strict=True) if n > 1]
    return all(place % alignment == 0 for place in (layout.address, *steps))


def byte_addresses(layout: MemoryLayout) -> HostArray:
    """The address of every byte, sorted."""
    if layout.is_unallocated():
        return np.empty(0, np.intp)
    addresses = np.asarray(layout.address)
    for n, stride in zip((*layout.shape, layout.itemsize), (*layout.strides, 1), strict=True):
        addresses = np.add.outer(addresses, np.arange(n) * stride)
    return np.unique(addresses)


def disjoint(a: MemoryLayout, b: MemoryLayout) -> bool:
    """Whether two arrays have no byte in common."""
    return not np.intersect1d(byte_addresses(a), byte_addresses(b)).size


def same_memory(a: MemoryLayout, b: MemoryLayout) -> bool:
    """Whether two arrays lie on the same bytes."""
    return np.array_equal(byte_addresses(a), byte_addresses(b))


def flip_bits(layout: MemoryLayout, dtype: str) -> None:
    """Change every element where it lies, whatever the library would say."""
    place = in_place(layout)
    place[...] = place.copy() ^ np.uint8(1 if dtype == "bool" else 0x55)


def refused_write(backend: str, x: Array) -> bool:
    """Try to write by the library's own means; whether it refuses."""
    try:
        samples_of(backend).write(x)
    except (ValueError, TypeError, RuntimeError):
        return True
    return False


def error_of(call: Callable[..., Any], /, *args: Any, **options: Any) -> XBridgeError | None:
    """What a call is refused with, in the form of all messages; None if it is not refused."""
    try:
        call(*args, **options)
    except XBridgeError as error:
        words = str(error)
        assert words.startswith("cannot ")
        assert "; try " in words
        assert not words.endswith("; try ")
        return error
    return None
