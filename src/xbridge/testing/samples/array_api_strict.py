"""Samples of array-api-strict: every layout of NumPy in native byte order, wrapped without a copy.

Arrays on other devices are read and written by the library's own operations, never through NumPy, although
its DLPack would allow that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import array_api_strict
import numpy as np

from xbridge.extend import CPU
from xbridge.testing.samples import numpy as host

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xbridge import Device
    from xbridge.protocol import Array, HostArray
    from xbridge.testing.samples.model import LayoutCase


def _wrapped(case: LayoutCase) -> LayoutCase:
    """Return the same case for the dtypes that the library has."""

    def make(values: HostArray, device: Device = CPU) -> Array:
        there = array_api_strict.Device("CPU_DEVICE" if device == CPU else str(device))
        return array_api_strict.asarray(case.make(values), copy=False, device=there)

    def takes(dtype: str, shape: tuple[int, ...]) -> bool:
        return hasattr(array_api_strict, dtype) and case.takes(dtype, shape)

    return case._replace(make=make, takes=takes, as_readonly=_as_readonly, make_on_device=make)


def _as_readonly(x: Array) -> Array:
    """Make a second, read-only array over the same memory."""
    return array_api_strict.asarray(host.as_readonly(x._array.view()), copy=False, device=x.device)  # noqa: SLF001 -- an array on another device exports no memory


cases: Mapping[str, LayoutCase] = {
    name: _wrapped(case) for name, case in host.cases.items() if name != "byte-swapped"
}

refused: Mapping[str, Callable[[], Array]] = {}


def read(x: Array, /) -> HostArray:
    """Move the array to the host by the library, and copy it by NumPy."""
    return host.read(np.asarray(x.to_device(array_api_strict.Device("CPU_DEVICE"))))


def write(x: Array, /) -> None:
    """Set every element to its bits inverted."""
    values = read(x)
    host.write(values)
    x[...] = array_api_strict.asarray(values, device=x.device)
