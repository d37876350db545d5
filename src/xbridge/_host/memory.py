"""Copy, cast, freeze and compare host memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from xbridge._core.dtypes import DTYPES, exact_integers
from xbridge._core.protocol import MemoryLayout
from xbridge._host.fill import filled
from xbridge.errors import MissingLibraryError, ValueLossError

if TYPE_CHECKING:
    from xbridge._core.protocol import HostArray

_CODE = re.compile("[<>=|]?([biufc][0-9]{1,2}|[?bBhHiIlLqQpPefdgFDG])")
_WORK = 1000
"""Candidate solutions that NumPy may try before a pair of layouts is compared byte by byte."""


def native_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of a canonical name, or of NumPy's own words; through ml_dtypes where need be."""
    if name in DTYPES and not hasattr(np, name):
        try:
            import ml_dtypes  # noqa: PLC0415 -- 100 ms, and only these dtypes need it
        except ImportError as error:
            raise MissingLibraryError.build(
                f"hold {name} in host memory",
                "NumPy knows it through ml_dtypes, which is not installed",
                "pip install ml_dtypes, or dtype='float32'",
            ) from error

        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return extended
    return np.dtype(name)


def dtype_of_code(code: str) -> np.dtype[Any] | None:
    """The dtype behind one of NumPy's codes for numbers, such as `<f4` or `d`; None for any other word."""
    try:
        return np.dtype(code) if _CODE.fullmatch(code) else None
    except TypeError:  # of no such width
        return None


def copy(host: HostArray, order: Literal["C", "K"] = "K") -> HostArray:
    """One pass into fresh memory: dense, native byte order, the same axis order; C is to be taken over."""
    return filled(host, host.dtype.newbyteorder("="), order)


def astype(host: HostArray, dtype: str, order: Literal["C", "K"] = "K") -> HostArray:
    """NumPy's own cast, in one pass into fresh memory. What it overflows, it overflows in silence."""
    return filled(host, native_dtype(dtype), order)


def as_readonly(host: HostArray) -> HostArray:
    """A read-only view, which cannot be made writable again."""
    return _reinterpret(host, writable=False)


def as_writable(host: HostArray) -> HostArray:
    """A view that says it is writable, for a reader who will not write."""
    return _reinterpret(host, writable=True)


def _reinterpret(host: HostArray, *, writable: bool) -> HostArray:
    return look(layout_of(host)._replace(writable=writable), owner=host).view(host.dtype)


def check_cast(host: HostArray, dtype: str) -> HostArray:
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
    """Whether a finite value becomes infinite in a narrower floating dtype, by whoever's cast."""
    narrow = target.type(0).real.dtype
    # Some go to half precision by way of single, and what one step rounds down two may round up.
    ways = [np.dtype(np.float32), narrow] if narrow.itemsize < 4 else [narrow]
    with np.errstate(all="ignore"):
        for part in (np.real(host), np.imag(host)) if host.dtype.kind == "c" else (host,):
            ends = np.array([part.min(), part.max()])
            if not np.isfinite(ends).all():
                finite = part[np.isfinite(part)]
                ends = np.array([finite.min(), finite.max()]) if finite.size else np.zeros(1)
            for way in ways:
                ends = ends.astype(way)
            if np.isinf(ends).any():
                return True
    return False


def overlap(a: MemoryLayout, b: MemoryLayout) -> bool:
    """Whether two arrays in one address space have a byte in common. Reads neither.

    Bounding ranges and NumPy's solver settle nearly every pair at once. Where the solver gives up, the
    bytes of both are marked on maps and compared: exact, and bounded by the memory that the two span.
    """
    if a.is_unallocated() or b.is_unallocated():
        return False
    a, b = _moving(a), _moving(b)
    try:
        return bool(np.shares_memory(look(a), look(b), max_work=_WORK))  # type: ignore[arg-type] # any int
    except np.exceptions.TooHardError:
        (low_a, high_a), (low_b, high_b) = a.span(), b.span()
        start = min(a.address + low_a, b.address + low_b)
        size = max(a.address + high_a, b.address + high_b) - start
        return bool((_marks(a, start, size) & _marks(b, start, size)).any())


def _moving(layout: MemoryLayout) -> MemoryLayout:
    """The layout without axes along which the address stays. There may be more of them than NumPy has."""
    axes = [(n, s) for n, s in zip(layout.shape, layout.strides, strict=True) if n > 1 and s]
    return layout._replace(shape=tuple(n for n, _ in axes), strides=tuple(s for _, s in axes))


class _Range:
    """An address range in NumPy's eyes, that keeps its owner for as long as somebody looks at it."""

    def __init__(self, layout: MemoryLayout, owner: object) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{layout.itemsize}",
            "data": (layout.address, not layout.writable),
            "shape": layout.shape,
            "strides": layout.strides,
        }


def look(layout: MemoryLayout, owner: object = None) -> HostArray:
    """A layout as an array of raw bytes. Whoever reads it must know that the memory is there."""
    return np.asarray(_Range(layout, owner))


def layout_of(host: HostArray) -> MemoryLayout:
    """How host memory lies."""
    flags = host.flags
    address = int(host.__array_interface__["data"][0])
    return MemoryLayout(address, host.shape, host.strides, host.itemsize, flags.writeable, flags.aligned)


def _marks(layout: MemoryLayout, start: int, size: int) -> HostArray:
    """The bytes of a layout on a map of `size` bytes from `start`: one at first, then axis by axis."""
    marks = np.zeros(size, np.bool_)
    marks[layout.address + layout.span()[0] - start] = True
    for n, stride in [*zip(layout.shape, layout.strides, strict=True), (layout.itemsize, 1)]:
        done = 1
        while done < n and stride:
            more = min(done, n - done)
            marks[more * abs(stride) :] |= marks[: -more * abs(stride)].copy()
            done += more
    return marks
