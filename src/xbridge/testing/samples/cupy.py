"""Samples of CuPy: the strides of NumPy in the memory of a GPU, reversed and broadcast ones included.

Bytes are sent as bytes and then viewed as their dtype, so that nothing computes on the values. The host does
not wait for the transfer: a reader must be ordered after it on the stream.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import cupy
import numpy as np

from xbridge.extend import CPU
from xbridge.testing.samples import LayoutCase
from xbridge.testing.samples import numpy as host

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge import Device
    from xbridge.protocol import Array, HostArray

    Shape: TypeAlias = tuple[int, ...]
    Make: TypeAlias = Callable[..., Array]


def dense(values: HostArray, device: Device = CPU) -> Array:
    """Make a new C-ordered array; a CPU device means the current GPU."""
    with nullcontext() if device == CPU else cupy.cuda.Device(device.index):
        raw = cupy.asarray(values.reshape(-1).view(np.uint8).copy())
        return raw.view(values.dtype).reshape(values.shape)


def read(x: Array, /) -> HostArray:
    """Transfer the bytes by CuPy; on the host, copy the NumPy array."""
    if isinstance(x, np.ndarray):
        return np.array(x, order="C")
    with x.device:
        return np.array(x.get(), order="C")


def write(x: Array, /) -> None:
    """Set every element to other bits."""
    mask = np.uint8(1 if x.dtype == bool else 0xFF)
    changed = read(x).reshape(-1).view(np.uint8) ^ mask
    with x.device:
        x[...] = dense(changed.view(x.dtype).reshape(x.shape))


_part = partial(host.part_of, dense)


def _repeated(values: HostArray, device: Device = CPU) -> Array:
    line = dense(host.base_of_broadcast(values).copy(), device)
    with line.device:
        return cupy.broadcast_to(line, values.shape)


def _case(make: Make, takes: Callable[[str, Shape], bool] = host.anywhere) -> LayoutCase:
    return LayoutCase(make, takes=takes, make_on_device=make)


cases: dict[str, LayoutCase] = {
    "contiguous": _case(dense),
    "transposed": _case(
        lambda values, device=CPU: dense(values.T.copy(), device).transpose(), host.stretched
    ),
    "last axis first": _case(
        lambda values, device=CPU: dense(np.moveaxis(values, -1, 0).copy(), device).transpose(
            (*range(1, values.ndim), 0)
        ),
        lambda _, shape: len(shape) > 2,
    ),
    "strided": _case(_part(*host.EVERY_SECOND), host.stretched),
    "offset": _case(_part(slice(1, None), lambda n: n + 1)),
    "backwards": _case(_part(*host.BACKWARDS), host.stretched),
    "repeated": LayoutCase(
        _repeated,
        lambda values: read(_repeated(values)),
        host.repeated,
        writable=False,
        make_on_device=_repeated,
    ),
}


class _Marked(cupy.ndarray):  # type: ignore[misc] # CuPy has no types
    """A subclass of CuPy's array."""


refused: dict[str, Callable[[], Array]] = {
    "a subclass": lambda: dense(np.ones(2)).view(type=_Marked),
    "structured": lambda: dense(np.ones(2)).view(np.dtype([("re", "f4"), ("im", "f4")])),
}


__all__ = ["cases", "dense", "read", "refused", "write"]
