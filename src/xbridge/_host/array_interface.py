"""Read `__array_interface__` once, and hold what it says of a buffer against the buffer.

NumPy believes the interface: it neither compares the shape and strides with the buffer that they speak of,
nor keeps the buffer from being resized under the array. The interface's sister for CUDA speaks of memory that
cannot be looked at here, so it is held against its own form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xbridge._core.dtypes import DTYPES
from xbridge._core.protocol import MemoryLayout, c_strides, is_aligned
from xbridge._host.memory import layout_of
from xbridge.errors import Chained, DTypeError, UnsupportedArrayError

if TYPE_CHECKING:
    from xbridge._core.protocol import HostArray
    from xbridge.errors import XBridgeError


class _Window:
    """The interface as it was read, with its owner."""

    def __init__(self, owner: object, interface: dict[str, Any]) -> None:
        self.owner = owner
        self.__array_interface__ = interface


def from_interface(x: object, interface: Any) -> HostArray:
    """A view of the memory that the interface of `x` describes, writable where it says so."""
    with Chained(lambda error: _refused(x, f"its export failed with {error!r}")):
        interface = {**interface}
        data = interface.get("data")
        buffer = None if isinstance(data, tuple) else memoryview(x if data is None else data)  # type: ignore[arg-type] # it may be none
        if buffer is not None:
            interface["data"] = buffer
        host: HostArray = np.asarray(_Window(x, interface))
    if interface.get("mask") is not None:
        raise _refused(x, "its mask would be lost", "filling it in its own library first")
    if buffer is not None and host.size:
        low, high = layout_of(host).span()
        start = interface.get("offset") or 0
        if start + low < 0 or start + high > buffer.nbytes:
            raise _refused(x, f"its shape and strides reach out of its buffer of {buffer.nbytes} bytes")
    return host


def cuda_layout(x: object, interface: Any) -> tuple[dict[str, Any], str, MemoryLayout]:
    """What a CUDA array interface says, read once: itself, the dtype's name, and how the memory lies."""
    with Chained(lambda error: _refused(x, f"its export failed with {error!r}")):
        said: dict[str, Any] = {**interface}
        dtype = np.dtype(said["typestr"])
        shape, strides = tuple(said["shape"]), said.get("strides")
        address, readonly = said["data"]
        steps = c_strides(shape, dtype.itemsize) if strides is None else tuple(strides)
    whole = {type(number) for number in (address, *shape, *steps)}
    if whole != {int} or len(steps) != len(shape) or type(readonly) is not bool:
        raise _refused(x, "its interface is not of the form that it announces")
    if min(shape, default=1) < 0 or not (address > 0 or 0 in shape):
        raise _refused(x, "its interface speaks of no memory")
    if said.get("mask") is not None:
        raise _refused(x, "its mask would be lost", "filling it in its own library first")
    stream = said.get("stream")
    if stream is not None and (type(stream) is not int or stream < 1):
        raise _refused(x, f"its stream {stream!r} is none")
    if dtype.name not in DTYPES:
        reason, hint = f"{dtype} is not a numeric dtype", "casting it in its own library first"
        raise _refused(x, reason, hint, DTypeError)
    if not dtype.isnative:
        raise _refused(x, "its bytes are in foreign order")
    aligned = is_aligned(address, steps, dtype.itemsize)
    layout = MemoryLayout(address, shape, steps, dtype.itemsize, not readonly, aligned)
    # Libraries refuse what may not be written, or warn of it; here it is only read.
    return {**said, "shape": shape, "strides": strides, "data": (address, False)}, dtype.name, layout


def _refused(
    x: object,
    reason: str,
    hint: str = "converting it in its own library first",
    error: type[XBridgeError] = UnsupportedArrayError,
) -> XBridgeError:
    return error.build(f"read a {type(x).__name__}", reason, hint)
