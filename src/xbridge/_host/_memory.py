"""Copy, cast, freeze and compare host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xbridge._dtypes import DTYPES, exact_integers
from xbridge._host._fill import filled
from xbridge._protocol import Layout
from xbridge.errors import MissingLibraryError, ValueLossError

if TYPE_CHECKING:
    from xbridge._protocol import HostArray

_WORK = 1000
"""Candidate solutions that NumPy may try before a pair of layouts is compared byte by byte."""


def native_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of a canonical name, or of NumPy's own words; through ml_dtypes where need be."""
    if name in DTYPES and not hasattr(np, name):
        try:
            import ml_dtypes  # noqa: PLC0415 -- 100 ms, and only these dtypes need it
        except ImportError as error:
            raise MissingLibraryError.because(
                f"hold {name} in host memory",
                "NumPy knows it through ml_dtypes, which is not installed",
                "pip install ml_dtypes, or dtype='float32'",
            ) from error

        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return extended
    return np.dtype(name)


def copy(host: HostArray) -> HostArray:
    """One pass into fresh memory: dense, native byte order, the same axis order."""
    return filled(host, host.dtype.newbyteorder("="))


def cast(host: HostArray, dtype: str) -> HostArray:
    """NumPy's own cast, in one pass into fresh memory. What it overflows, it overflows in silence."""
    return filled(host, native_dtype(dtype))


def freeze(host: HostArray) -> HostArray:
    """A read-only view, which cannot be made writable again."""
    return _reinterpret(host, writable=False)


def thaw(host: HostArray) -> HostArray:
    """A view that says it is writable, for a reader who will not write."""
    return _reinterpret(host, writable=True)


def _reinterpret(host: HostArray, *, writable: bool) -> HostArray:
    layout = Layout(address(host), host.shape, host.strides, host.itemsize, writable)
    return look(layout, owner=host).view(host.dtype)


def check(host: HostArray, dtype: str) -> HostArray:
    """The array itself, if its integers survive a cast to the dtype and nothing finite becomes infinite."""
    target = native_dtype(dtype)
    if host.size == 0:
        return host
    if host.dtype.kind in "iu":
        low, high = exact_integers(dtype)
        lost = int(host.min()) < low or int(host.max()) > high
    else:
        lost = host.dtype.kind != "b" and _overflows(host, target)
    if lost:
        raise ValueLossError.narrowing(host.dtype.name, dtype)
    return host


def _overflows(host: HostArray, target: np.dtype[Any]) -> bool:
    """Whether a finite value becomes infinite in a narrower floating dtype."""
    parts = (host.real, host.imag) if host.dtype.kind == "c" else (host,)
    with np.errstate(all="ignore"):
        for part in parts:
            narrow = target.type(0).real.dtype
            ends = np.array([np.fmin.reduce(part, axis=None), np.fmax.reduce(part, axis=None)])
            if np.isfinite(ends.astype(narrow)).all() or np.isnan(ends).any():
                continue
            finite = part[np.isfinite(part)]
            if finite.size and np.isinf(np.array([finite.min(), finite.max()]).astype(narrow)).any():
                return True
    return False


def overlap(a: Layout, b: Layout) -> bool:
    """Whether two arrays in one address space have a byte in common. Reads neither.

    Bounding ranges and NumPy's solver settle nearly every pair at once. Where the solver gives up, the
    bytes of one are marked on a map and looked up for the other: exact, and linear in what they span.
    """
    if 0 in a.shape or 0 in b.shape:
        return False
    try:
        return bool(np.shares_memory(look(a), look(b), max_work=_WORK))  # type: ignore[arg-type] # any int
    except np.exceptions.TooHardError:
        (low_a, high_a), (low_b, high_b) = a.span(), b.span()
        start = min(a.address + low_a, b.address + low_b)
        size = max(a.address + high_a, b.address + high_b) - start
        marks = np.zeros(size, np.bool_)
        _bytes_of(marks, a, start)[...] = True
        return bool(_bytes_of(marks, b, start).any())


class _Range:
    """An address range in NumPy's eyes, that keeps its owner for as long as somebody looks at it."""

    def __init__(self, layout: Layout, owner: object) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{layout.itemsize}",
            "data": (layout.address, not layout.writable),
            "shape": layout.shape,
            "strides": layout.strides,
        }


def look(layout: Layout, owner: object = None) -> HostArray:
    """A layout as an array of raw bytes. Whoever reads it must know that the memory is there."""
    return np.asarray(_Range(layout, owner))


def address(host: HostArray) -> int:
    """Of the first element."""
    return int(host.__array_interface__["data"][0])


def _bytes_of(marks: HostArray, layout: Layout, start: int) -> HostArray:
    """The bytes of a layout on a map of the memory that begins at `start`."""
    return np.lib.stride_tricks.as_strided(
        marks[layout.address - start :], (*layout.shape, layout.itemsize), (*layout.strides, 1)
    )
