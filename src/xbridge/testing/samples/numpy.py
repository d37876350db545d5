"""NumPy: any strides, any alignment, either byte order, with or without leave to write.

Values are laid as opaque items of their size and then viewed as their dtype, so that no cast stands between
them and the array: the payload of a NaN survives. What lies between the elements is no number that anybody
would expect, so that reading it shows.
"""

from __future__ import annotations

import warnings
from functools import partial
from importlib.util import find_spec
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from xbridge._core.dtypes import DTYPES
from xbridge.testing.samples.model import LayoutCase

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge._core.protocol import HostArray

    Shape: TypeAlias = tuple[int, ...]
    Lay: TypeAlias = Callable[[HostArray], HostArray]

_POISON = b"\xa5"
"""What every byte is that belongs to no element."""


# -- where elements can lie ----------------------------------------------------------------------


def opaque(values: HostArray) -> HostArray:
    """The elements as items that nobody interprets."""
    return values.view(f"V{values.itemsize}")


def space(shape: Shape, itemsize: int) -> HostArray:
    """Memory for opaque items."""
    return np.full(shape, _POISON * itemsize, f"V{itemsize}")


def every(part: slice, shape: Shape) -> tuple[Any, ...]:
    """The same part of each axis; never a scalar."""
    return (..., *(part for _ in shape))


def base_of_broadcast(values: HostArray) -> HostArray:
    """What is left of values that repeat along every second axis: the first along it."""
    return values[tuple(slice(None, None if axis % 2 else 1) for axis in range(values.ndim))]


def base_of_overlapping(values: HostArray) -> HostArray:
    """What is left of values that repeat along every diagonal: the last on it."""
    line = np.zeros(sum(values.shape) + 1, values.dtype)
    line[np.add.reduce(np.indices(values.shape), 0)] = values
    return line


def _fortran(shape: Shape, itemsize: int) -> HostArray:
    return space(shape[::-1], itemsize).T.copy("F")


def _transposed(shape: Shape, itemsize: int) -> HostArray:
    """A view with the last axis first in memory: from three axes on neither C nor Fortran."""
    return np.moveaxis(space((*shape[-1:], *shape[:-1]), itemsize), 0, -1)


def _every_second(shape: Shape, itemsize: int) -> HostArray:
    wide = tuple(2 * n if n > 1 else n for n in shape)  # else 32 axes of one element would fill the memory
    view: HostArray = space(wide, itemsize)[every(slice(None, None, 2), shape)]
    return view


def _behind_first(shape: Shape, itemsize: int) -> HostArray:
    """From the second on along each axis that has one, and along the first axis anyway."""
    before = [int(n > 1 or axis == 0) for axis, n in enumerate(shape)]
    wide = tuple(map(sum, zip(shape, before, strict=True)))
    part: tuple[Any, ...] = (..., *(slice(n, None) for n in before))
    view: HostArray = space(wide, itemsize)[part]
    return view


def _backwards(shape: Shape, itemsize: int) -> HostArray:
    view: HostArray = space(shape, itemsize)[every(slice(None, None, -1), shape)]
    return view


def _beside_padding(shape: Shape, itemsize: int) -> HostArray:
    """Strides that are no multiple of an item; of complex numbers, aligned ones."""
    raw = space((*shape, itemsize + max(itemsize // 2, 1)), 1).view(np.uint8)
    return raw[..., :itemsize].view(f"V{itemsize}")[..., 0]


def _unaligned(shape: Shape, itemsize: int) -> HostArray:
    raw = space((int(np.prod(shape, dtype=int)) * itemsize + 1,), 1)
    return raw[1:].view(f"V{itemsize}").reshape(shape)


def _mapped(shape: Shape, itemsize: int) -> HostArray:
    """A file that has no name any more; it goes with the last view of it."""
    with TemporaryFile() as file:
        return np.memmap(file, f"V{itemsize}", "w+", shape=shape)


def _wild(shape: Shape, itemsize: int) -> HostArray:
    """No element, so any stride will do."""
    strides = tuple((-1) ** axis * (7 * axis + 3) for axis in range(len(shape)))
    return as_strided(space(shape, itemsize), shape, strides)


def _in(place: Callable[[Shape, int], HostArray]) -> Lay:
    """Lay values in such memory."""

    def lay(values: HostArray) -> HostArray:
        items = place(values.shape, values.itemsize)
        items[...] = opaque(values)
        return items.view(values.dtype)

    return lay


def _broadcast(values: HostArray) -> HostArray:
    base = opaque(base_of_broadcast(values)).copy()
    strides = tuple(s if axis % 2 else 0 for axis, s in enumerate(base.strides))
    return as_strided(base, values.shape, strides).view(values.dtype)


def _overlapping(values: HostArray) -> HostArray:
    base = base_of_overlapping(opaque(values))
    return as_strided(base, values.shape, base.strides * values.ndim).view(values.dtype)


def _swapped(values: HostArray) -> HostArray:
    return values.byteswap().view(values.dtype.newbyteorder())


def _second_name(values: HostArray) -> HostArray:
    """NumPy's other 64-bit integers, which are a dtype of their own."""
    return _in(space)(values).view("q" if values.dtype.kind == "i" else "Q")


def as_readonly(x: HostArray) -> HostArray:
    """Take the leave to write away."""
    x.flags.writeable = False
    return x


# -- what every library may be given -------------------------------------------------------------


def anywhere(_dtype: str, _shape: Shape) -> bool:
    """Whatever it is."""
    return True


def stretched(_dtype: str, shape: Shape) -> bool:
    """Where there is a stride to speak of."""
    return any(n > 1 for n in shape)


def repeated(_dtype: str, shape: Shape) -> bool:
    """Where an element lies along every second axis again."""
    return 0 not in shape and any(n > 1 for n in shape[::2])


def slanted(_dtype: str, shape: Shape) -> bool:
    """Where there are diagonals."""
    return 0 not in shape and sum(n > 1 for n in shape) > 1


def _several_bytes(dtype: str, shape: Shape) -> bool:
    return DTYPES[dtype].bits > 8 and 0 not in shape


def _way(lay: Lay, takes: Callable[[str, Shape], bool] = anywhere, *, folds: bool = False) -> LayoutCase:
    return LayoutCase(
        lay, fold=(lambda values: lay(values).copy()) if folds else None, takes=takes, as_readonly=as_readonly
    )


ways: dict[str, LayoutCase] = {
    "C": _way(_in(space)),
    "Fortran": _way(_in(_fortran), stretched),
    "transposed": _way(_in(_transposed), stretched),
    "strided": _way(_in(_every_second), stretched),
    "reversed": _way(_in(_backwards), stretched),
    "offset": _way(_in(_behind_first)),
    "broadcast": _way(_broadcast, repeated, folds=True),
    "overlapping": _way(_overlapping, slanted, folds=True),
    "odd strides": _way(_in(_beside_padding), stretched),
    "unaligned": _way(_in(_unaligned), _several_bytes),
    "byte-swapped": _way(_swapped, lambda dtype, _: DTYPES[dtype].bits > 8),
    "read-only": LayoutCase(lambda values: as_readonly(_in(space)(values)), writable=False),
    "memmap": _way(_in(_mapped), lambda _, shape: 0 not in shape),
    "wild": _way(_in(_wild), lambda _, shape: 0 in shape),
    "longlong": _way(_second_name, lambda dtype, _: dtype in ("int64", "uint64")),
}
"""A shape of no axis, or of no element, is no way to lie: shapes say that."""


# -- what must not leave -------------------------------------------------------------------------


class Metres(np.ndarray[Any, np.dtype[Any]]):
    """What a library of units would make of an array."""


class Mapped(np.memmap[Any, np.dtype[Any]]):
    """What somebody made of a memory map."""


def _characters() -> HostArray:
    """An array of the class for strings, which NumPy will remove."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return np.char.array(["a"])


def _small() -> dict[str, Callable[[], HostArray]]:
    """Numbers of less than a byte, which have no canonical name."""
    if not find_spec("ml_dtypes"):
        return {}
    import ml_dtypes  # noqa: PLC0415 -- only where it is installed

    words = ("int4", "uint2", "float8_e3m4", "float6_e2m3fn", "float4_e2m1fn")
    kinds = [getattr(ml_dtypes, word) for word in words if hasattr(ml_dtypes, word)]
    return {kind.__name__: partial(np.zeros, 2, kind) for kind in kinds}


refused: dict[str, Callable[[], HostArray]] = {
    "masked": lambda: np.ma.masked_array(np.ones(2), mask=[True, False]),
    "nothing masked": lambda: np.ma.masked_array(np.ones(2)),
    "masked, 0-d": lambda: np.ma.masked_array(np.array(1.0)),
    "the masked constant": lambda: np.ma.masked,
    "a masked record": lambda: np.ma.array([(1, 2)], dtype="i4,i4", mask=[(True, False)])[0],
    "a masked subclass": lambda: np.ones(2).view(type("Mine", (np.ma.MaskedArray,), {})),
    "units": lambda: np.ones(2).view(Metres),
    "units, 0-d": lambda: np.array(1.0).view(Metres),
    "a mapped subclass": lambda: np.ones(2).view(Mapped),
    "records": lambda: np.rec.array([(1, 2.0)], dtype="i4,f4"),
    "characters": _characters,
    "objects": lambda: np.array([None, 1]),
    "strings": lambda: np.array(["1", "2"]),
    "bytes": lambda: np.array([b"1"]),
    "new strings": lambda: np.array(["1"], np.dtypes.StringDType()),
    "dates": lambda: np.array(["2020"], "M8[Y]"),
    "durations": lambda: np.array([1], "m8[s]"),
    "structures": lambda: np.zeros(2, [("a", "i4"), ("b", "f4")]),
    "raw bytes": lambda: np.zeros(2, "V2"),
    **_small(),
}


# -- reading and writing -------------------------------------------------------------------------


def read(x: HostArray, /) -> HostArray:
    """NumPy's own copy; within one dtype it copies bits."""
    return np.array(x, dtype=x.dtype.newbyteorder("="), order="C", subok=False)


def write(x: HostArray, /) -> None:
    """Invert every bit; a truth value becomes the other one."""
    items = opaque(x.view(np.ndarray))
    raw = items.reshape(-1).copy().view(np.uint8) ^ np.uint8(1 if x.dtype == np.bool_ else 0xFF)
    items[...] = raw.view(items.dtype).reshape(x.shape)
