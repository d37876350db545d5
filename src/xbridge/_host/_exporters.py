"""Admit what is no registered library's array: scalars, anybody's exporter, typed buffers.

The protocols are asked in the order of what they tell: DLPack, `__array_interface__`, `__array__`, the
buffer protocol. An exporter's memory is writable to us only where the protocol says so, and `__array__`
says nothing of whose memory it returns.
"""

from __future__ import annotations

from mmap import mmap
from typing import TYPE_CHECKING, Any

import numpy as np

from xbridge._host._dlpack import from_dlpack
from xbridge._host._memory import freeze, layout_of
from xbridge.errors import FOREIGN_ERRORS, CopyError, UnsupportedArrayError

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge._protocol import HostArray

_LITERALS = (bool, int, float, complex, list, tuple, range)


def admit(x: Any, *, must_share: bool) -> HostArray:
    """A host array for `x`; with `must_share`, over the memory of `x`."""
    if isinstance(x, np.generic):
        host, shares = np.asarray(x), False
    elif _offers(x, "__dlpack__") and _offers(x, "__dlpack_device__"):
        host, shares = from_dlpack(x)
    elif _offers(x, "__array_interface__"):
        host, shares = _from_interface(x), True
    elif _offers(x, "__array__"):
        return _from_array_method(x, must_share=must_share)
    else:
        host, shares = _read(_buffer(x), np.asarray), True
    if must_share and not shares and host.size:
        raise _apart(x, "it hands out a copy")
    return freeze(host) if host.flags.writeable and layout_of(host).repeats() else host


def _offers(x: Any, protocol: str) -> bool:
    return _read(x, lambda x: getattr(x, protocol, None)) is not None


def _from_interface(x: Any) -> HostArray:
    if _read(x, lambda x: x.__array_interface__.get("mask")) is not None:
        raise UnsupportedArrayError.because(
            f"read a {type(x).__name__}", "its mask would be lost", "filling it in its own library first"
        )
    host: HostArray = _read(x, np.asarray)
    return host


def _from_array_method(x: Any, *, must_share: bool) -> HostArray:
    if must_share:
        try:
            host = x.__array__(copy=False)
        except FOREIGN_ERRORS as error:
            raise _apart(x, f"__array__(copy=False) failed with {error!r}") from error
    else:
        host = _read(x, lambda x: x.__array__())
    if type(host) not in (np.ndarray, np.memmap, np.matrix):
        raise UnsupportedArrayError.because(
            f"read a {type(x).__name__}",
            f"its __array__ returned a {type(host).__name__}",
            "converting it in its own library first",
        )
    return host if host.dtype.hasobject else freeze(host.view(np.ndarray))


def _buffer(x: object) -> memoryview:
    if isinstance(x, _LITERALS):
        raise UnsupportedArrayError.because(
            f"convert a {type(x).__name__}",
            "numbers and lists are no arrays",
            "asarray(x, backend=...)",
        )
    try:
        view = memoryview(x)  # type: ignore[arg-type] # whether it is a buffer is the question
    except ValueError as error:
        raise UnsupportedArrayError.because(
            f"read a {type(x).__name__}",
            f"its export failed with {error!r}",
            "a buffer that is still there",
        ) from error
    except TypeError as error:
        raise UnsupportedArrayError.because(
            f"convert a {type(x).__name__}",
            "no backend owns the type and it exports no memory",
            "list(x) if it holds numbers, or an array",
        ) from error
    if isinstance(x, (bytes, bytearray, mmap)):
        raise UnsupportedArrayError.because(
            f"convert {type(x).__name__}", "plain bytes have no dtype", "numpy.frombuffer(x, dtype)"
        )
    return view


def _read(x: Any, how: Callable[[Any], Any]) -> Any:
    try:
        return how(x)
    except FOREIGN_ERRORS as error:
        raise UnsupportedArrayError.because(
            f"read a {type(x).__name__}",
            f"its export failed with {error!r}",
            "converting it in its own library first",
        ) from error


def _apart(x: object, why: str) -> CopyError:
    return CopyError.because(f"share the memory of a {type(x).__name__}", why, "copy=None")
