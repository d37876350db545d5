"""Reader of `__array_interface__`, which checks the interface against its buffer.

NumPy trusts the interface: it does not compare the shape and strides with the buffer, and does not keep the
buffer from being resized under the array. The memory of a CUDA array interface cannot be read on the host, so
only the form of that interface is checked.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from xbridge._core.dtypes import DTYPES
from xbridge._core.protocol import HostArray, MemoryLayout, c_strides, is_aligned
from xbridge._host.memory import Window, layout_of
from xbridge.errors import Chained, DTypeError, UnsupportedArrayError, XBridgeError, type_of


def unreadable_error(
    x: object,
    reason: str,
    hint: str = "converting it in its own library first",
    error: type[XBridgeError] = UnsupportedArrayError,
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
        raise unreadable_error(x, "its mask would be lost", "filling it in its own library first")
    if buffer is not None and host.size:
        low, high = layout_of(host).span()
        start = interface.get("offset") or 0
        if start + low < 0 or start + high > buffer.nbytes:
            raise unreadable_error(
                x, f"its shape and strides reach out of its buffer of {buffer.nbytes} bytes"
            )
    return host


def read_cuda_interface(x: object, interface: Any) -> tuple[dict[str, Any], str, MemoryLayout]:
    """Read a CUDA array interface once: return it checked, with the name of its dtype and its layout."""
    with chain_export_errors(x):
        fields: dict[str, Any] = {**interface}
        dtype = np.dtype(fields["typestr"])
        shape, strides = tuple(fields["shape"]), fields.get("strides")
        address, readonly = fields["data"]
        steps = c_strides(shape, dtype.itemsize) if strides is None else tuple(strides)
    whole = {type(number) for number in (address, *shape, *steps)}
    if whole != {int} or len(steps) != len(shape) or type(readonly) is not bool:
        raise unreadable_error(x, "its interface is not of the form that it announces")
    if min(shape, default=1) < 0 or not (address > 0 or 0 in shape):
        raise unreadable_error(x, "its interface names no memory")
    if fields.get("mask") is not None:
        raise unreadable_error(x, "its mask would be lost", "filling it in its own library first")
    stream = fields.get("stream")
    if stream is not None and (type(stream) is not int or stream < 1):
        raise unreadable_error(x, f"its stream {stream!r} is not valid")
    if dtype.name not in DTYPES:
        reason, hint = f"{dtype} is not a numeric dtype", "casting it in its own library first"
        raise unreadable_error(x, reason, hint, DTypeError)
    if not dtype.isnative:
        raise unreadable_error(x, "its bytes are in foreign order")
    aligned = is_aligned(address, steps, dtype.itemsize)
    layout = MemoryLayout(address, shape, steps, dtype.itemsize, not readonly, aligned)
    # Libraries refuse read-only memory, or warn about it. The memory is only read here.
    given = {"shape": shape, "strides": strides and steps, "data": (address, False)}
    return {**fields, **given}, dtype.name, layout
