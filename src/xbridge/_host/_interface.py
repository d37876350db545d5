"""Read `__array_interface__` once, and hold what it says of a buffer against the buffer.

NumPy believes the interface: it neither compares the shape and strides with the buffer that they speak of,
nor keeps the buffer from being resized under the array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xbridge._host._memory import layout_of
from xbridge.errors import Chained, UnsupportedArrayError

if TYPE_CHECKING:
    from xbridge._protocol import HostArray
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


def _refused(x: object, why: str, do: str = "converting it in its own library first") -> XBridgeError:
    return UnsupportedArrayError.because(f"read a {type(x).__name__}", why, do)
