"""Reader of `__array_interface__`, which checks the interface against its buffer.

NumPy trusts the interface: it does not compare the shape and strides with the buffer, and does not keep the
buffer from being resized under the array.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from xbridge._core.protocol import HostArray
from xbridge._host.memory import Window, layout_of
from xbridge.errors import Chained, UnsupportedArrayError, XBridgeError, type_of


def unreadable_error(
    x: object, reason: str, hint: str = "", error: type[XBridgeError] = UnsupportedArrayError
) -> XBridgeError:
    """Return the error for an exporter whose memory cannot be read."""
    return error.build(f"read {type_of(x)}", reason, hint)


def chain_export_errors(x: object) -> Chained:
    """Return a context in which an exception of an exporter becomes the cause of an `XBridgeError`."""
    return Chained(lambda error: unreadable_error(x, f"its export failed with {error!r}"))


def from_interface(x: object, interface: Any) -> HostArray:
    """Return a view of the memory that the interface of `x` describes, writable if the interface is."""
    with chain_export_errors(x):
        interface = {**interface}
        data = interface.get("data")
        buffer = None if isinstance(data, tuple) else memoryview(x if data is None else data)  # type: ignore[arg-type] # it may not be a buffer
        if buffer is not None:
            interface["data"] = buffer
        host: HostArray = np.asarray(Window(interface, x))
    if interface.get("mask") is not None:
        raise unreadable_error(x, "its mask would be lost")
    if buffer is not None and host.size:
        low, high = layout_of(host).span()
        start = interface.get("offset") or 0
        if start + low < 0 or start + high > buffer.nbytes:
            raise unreadable_error(
                x, f"its shape and strides reach out of its buffer of {buffer.nbytes} bytes"
            )
    return host
