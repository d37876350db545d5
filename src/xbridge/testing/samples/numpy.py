"""Samples of NumPy: any strides, any alignment, either byte order, writable or read-only.

Values are stored as opaque items of their size. No cast is involved, so the payload of a NaN survives. The
bytes between the elements hold an unusual pattern, so that reading them is noticed. The base of a view is an
ordinary array of the same dtype, as in a user's program, unless the layout rules that out: unaligned memory,
a map of a file, and strides that slicing does not give.
"""

from __future__ import annotations

import warnings
from functools import partial
from importlib.util import find_spec
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from xbridge.extend import CPU, DTYPES
from xbridge.testing.samples import LayoutCase

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge import Device
    from xbridge.protocol import Array, HostArray

    DType: TypeAlias = np.dtype[Any]
    Shape: TypeAlias = tuple[int, ...]
    Make: TypeAlias = Callable[[HostArray], HostArray]
    MakeAnywhere: TypeAlias = Callable[..., Array]

_POISON = b"\xa5"
"""The value of every byte between the elements."""


# -- layouts -------------------------------------------------------------------------------------


def opaque(values: HostArray) -> HostArray:
    """View the elements as opaque items."""
    return values.view(f"V{values.itemsize}")


def space(shape: Shape, dtype: DType) -> HostArray:
    """Allocate memory for items of a dtype."""
    array = np.empty(shape, dtype)
    opaque(array)[...] = np.void(_POISON * dtype.itemsize)
    return array


def every(part: slice, shape: Shape) -> tuple[Any, ...]:
    """Return an index of the same part of each axis, which never gives a scalar."""
    return (..., *(part for _ in shape))


Part = tuple[slice, "Callable[[int], int]"]
"""A part of each axis, and the size of the axis that has a part of a size."""

EVERY_SECOND: Part = (
    slice(None, None, 2),
    lambda n: 2 * n if n > 1 else n,
)  # 32 axes of one element stay small
BACKWARDS: Part = slice(None, None, -1), lambda n: n


def part_of(dense: MakeAnywhere, part: slice, size: Callable[[int], int]) -> MakeAnywhere:
    """Return a maker of parts of larger arrays, for a library whose dense arrays are made by a function."""

    def make(values: HostArray, device: Device = CPU) -> Array:
        whole = space(tuple(size(n) for n in values.shape), values.dtype)
        where = every(part, values.shape)
        opaque(whole)[where] = opaque(values)
        return dense(whole, device)[where]

    return make


def base_of_broadcast(values: HostArray) -> HostArray:
    """Select the first element along every second axis, which a broadcast repeats."""
    return values[tuple(slice(None, None if axis % 2 else 1) for axis in range(values.ndim))]


def base_of_overlapping(values: HostArray) -> HostArray:
    """Select the last element on every diagonal, which overlapping strides repeat."""
    line = np.zeros(sum(values.shape) + 1, values.dtype)
    line[np.add.reduce(np.indices(values.shape), 0)] = values
    return line


def _transposed(shape: Shape, dtype: DType) -> HostArray:
    """Make a view with the last axis first in memory: with three axes neither C nor Fortran."""
    return np.moveaxis(space((*shape[-1:], *shape[:-1]), dtype), 0, -1)


def _behind_first(shape: Shape, dtype: DType) -> HostArray:
    """Skip the first element of each axis with several elements, and of the first axis always."""
    before = [int(n > 1 or axis == 0) for axis, n in enumerate(shape)]
    wide = tuple(map(sum, zip(shape, before, strict=True)))
    part: tuple[Any, ...] = (..., *(slice(n, None) for n in before))
    view: HostArray = space(wide, dtype)[part]
    return view


def _beside_padding(shape: Shape, dtype: DType) -> HostArray:
    """Make strides that are not a multiple of the item size; for complex numbers they are aligned."""
    raw = space((*shape, dtype.itemsize + max(dtype.itemsize // 2, 1)), np.dtype(np.uint8))
    return raw[..., : dtype.itemsize].view(dtype)[..., 0]


def _unaligned(shape: Shape, dtype: DType) -> HostArray:
    raw = space((int(np.prod(shape, dtype=int)) * dtype.itemsize + 1,), np.dtype(np.uint8))
    return raw[1:].view(dtype).reshape(shape)


def _mapped(shape: Shape, dtype: DType) -> HostArray:
    """Map an unnamed file, which is deleted with its last view."""
    with TemporaryFile() as file:
        return np.memmap(file, f"V{dtype.itemsize}", "w+", shape=shape).view(dtype)


def _wild(shape: Shape, dtype: DType) -> HostArray:
    """Make arbitrary strides for an array without elements."""
    strides = tuple((-1) ** axis * (7 * axis + 3) for axis in range(len(shape)))
    return as_strided(opaque(space(shape, dtype)), shape, strides).view(dtype)


def _in(place: Callable[[Shape, DType], HostArray]) -> Make:
    """Return a function that stores values in an array that `place` allocates."""

    def make(values: HostArray) -> HostArray:
        array = place(values.shape, values.dtype)
        opaque(array)[...] = opaque(values)
        return array

    return make


def _broadcast(values: HostArray) -> HostArray:
    base = opaque(base_of_broadcast(values)).copy()
    strides = tuple(s if axis % 2 else 0 for axis, s in enumerate(base.strides))
    return as_strided(base, values.shape, strides).view(values.dtype)


def _overlapping(values: HostArray) -> HostArray:
    base = base_of_overlapping(opaque(values))
    return as_strided(base, values.shape, base.strides * values.ndim).view(values.dtype)


def as_readonly(x: HostArray) -> HostArray:
    """Make an array read-only."""
    x.flags.writeable = False
    return x


# -- cases ---------------------------------------------------------------------------------------


def anywhere(_dtype: str, _shape: Shape) -> bool:
    """Return True."""
    return True


def stretched(_dtype: str, shape: Shape) -> bool:
    """Return True if a stride matters."""
    return any(n > 1 for n in shape)


def repeated(_dtype: str, shape: Shape) -> bool:
    """Return True if a broadcast repeats an element along every second axis."""
    return 0 not in shape and any(n > 1 for n in shape[::2])


def slanted(_dtype: str, shape: Shape) -> bool:
    """Return True if the array has diagonals."""
    return 0 not in shape and sum(n > 1 for n in shape) > 1


def _case(make: Make, takes: Callable[[str, Shape], bool] = anywhere, *, folds: bool = False) -> LayoutCase:
    return LayoutCase(
        make,
        fold=(lambda values: make(values).copy()) if folds else None,
        takes=takes,
        as_readonly=as_readonly,
    )


cases: dict[str, LayoutCase] = {
    "C": _case(_in(space)),
    "Fortran": _case(_in(lambda shape, dtype: np.empty(shape, dtype, "F")), stretched),
    "transposed": _case(_in(_transposed), stretched),
    "strided": _case(part_of(lambda whole, _device=CPU: whole, *EVERY_SECOND), stretched),
    "reversed": _case(part_of(lambda whole, _device=CPU: whole, *BACKWARDS), stretched),
    "offset": _case(_in(_behind_first)),
    "broadcast": _case(_broadcast, repeated, folds=True),
    "overlapping": _case(_overlapping, slanted, folds=True),
    "odd strides": _case(_in(_beside_padding), stretched),
    "unaligned": _case(_in(_unaligned), lambda dtype, shape: DTYPES[dtype].bits > 8 and 0 not in shape),
    "byte-swapped": _case(
        lambda values: values.byteswap().view(values.dtype.newbyteorder()),
        lambda dtype, _: DTYPES[dtype].bits > 8,
    ),
    "read-only": LayoutCase(lambda values: as_readonly(_in(space)(values)), writable=False),
    "memmap": _case(_in(_mapped), lambda _, shape: 0 not in shape),
    "wild": _case(_in(_wild), lambda _, shape: 0 in shape),
    "longlong": _case(
        lambda values: _in(space)(values).view("q" if values.dtype.kind == "i" else "Q"),
        lambda dtype, _: dtype in ("int64", "uint64"),
    ),
}
"""0-d and empty arrays are not layouts: shapes cover them."""


# -- unsupported arrays --------------------------------------------------------------------------


class Metres(np.ndarray[Any, np.dtype[Any]]):
    """An array subclass like that of a library of units."""


class Mapped(np.memmap[Any, np.dtype[Any]]):
    """A subclass of a memory map."""


def _characters() -> HostArray:
    """Make an array of the class for strings, which NumPy will remove."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return np.char.array(["a"])


def _small() -> dict[str, Callable[[], HostArray]]:
    """Return makers of arrays of the small dtypes without a canonical name."""
    if not find_spec("ml_dtypes"):
        return {}
    import ml_dtypes  # noqa: PLC0415 -- only where it is installed

    kinds = [getattr(ml_dtypes, word) for word in ("int1", "uint1") if hasattr(ml_dtypes, word)]
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
    """Copy by NumPy, which copies bits within one dtype."""
    return np.array(x, dtype=x.dtype.newbyteorder("="), order="C", subok=False)


def write(x: HostArray, /) -> None:
    """Invert every bit; of a bool, its value."""
    items = opaque(x.view(np.ndarray))
    raw = items.reshape(-1).copy().view(np.uint8) ^ np.uint8(1 if x.dtype == np.bool_ else 0xFF)
    items[...] = raw.view(items.dtype).reshape(x.shape)
