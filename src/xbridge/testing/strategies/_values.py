"""Values of arrays: a background, and a few special elements on it.

Two draws make most arrays of any size: a number that selects the background, and a list of the special
elements. The background is zeros, or a count, or random bits in a part of the array. The special elements are
ones, signed zeros, infinities, quiet and signalling NaNs, subnormals and the ends of each range. So a failure
because of one of them shrinks to it among zeros, and a failure because of random bits shrinks to few of them.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import shake_128
from itertools import cycle, islice
from math import prod
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from hypothesis import strategies as st

from xbridge.extend import DTYPES, native_dtype

if TYPE_CHECKING:
    from xbridge.protocol import HostArray

    Shape: TypeAlias = tuple[int, ...]
    Bounds: TypeAlias = tuple[float, float]

_MOST = 4
"""The largest number of special elements."""

_SPECIALS = 16
_KINDS = 4
"""Kinds of backgrounds: zeros, a count, and twice random bits."""

_SEEDS = 256
"""The number of blocks of random bits."""

_READABLE = 16
"""The number of first blocks, to which examples shrink, with numbers that are easy to read."""

_STOCK = 256
"""The least number of elements in a block."""

_SHARES = 16


def draw_contents(draw: st.DrawFn, dtype: str, shape: Shape, bounds: Bounds | None) -> HostArray:
    """Draw a dense native array of any bits that are values of the dtype, or within bounds."""
    palette = _palette(dtype, bounds)
    whole = native_dtype(dtype)
    part = _part(whole)
    count = prod(shape) * (whole.itemsize // part.itemsize)
    places = draw(_places(max(count, 1)))
    kind = draw(numbers(_KINDS))
    codes = palette.consecutive(count) if kind == 1 else np.full(count, palette.zero, f"u{part.itemsize}")
    if kind > 1:
        _spill(draw, codes, palette)
    for place in places if count else ():
        index, special = divmod(place, _SPECIALS)
        codes[index] = palette.specials[special]
    return codes.view(whole).reshape(shape)


def quieten(values: HostArray) -> None:
    """Replace every NaN by the quiet one without a sign and a payload, part by part."""
    whole: Any = values
    parts = (whole.real, whole.imag) if values.dtype.kind == "c" else (values,)
    with np.errstate(invalid="ignore"):  # ml_dtypes computes on signalling NaNs
        for part in parts:
            part[np.isnan(part)] = np.nan


def _most_exact(dtype: str) -> int:
    """Return the number up to which every positive integer is a value of the dtype."""
    meaning = DTYPES[dtype]
    if meaning.kind in ("int", "uint"):
        return int(np.iinfo(dtype).max)
    return 1 << meaning.digits  # a bool has no digits


def _spill(draw: st.DrawFn, codes: HostArray, palette: Bits | Between) -> None:
    """Write random bits to a part of the array.

    Each number that shrinks leaves fewer of them, or moves the same ones towards the start. The first of the
    block precedes itself, so that a small array has no others that a smaller number loses.
    """
    end = _share(draw(numbers(_SHARES)), codes.size)
    length = min(_share(draw(numbers(_SHARES)), codes.size), end)
    last, seed = draw(numbers(_STOCK)), draw(numbers(_SEEDS))
    stock = palette.wild(seed, max(codes.size, _STOCK))
    mode: Literal["clip", "wrap"] = "clip" if codes.size <= _STOCK else "wrap"
    codes[end - length : end] = stock.take(range(last - length + 1, last + 1), mode=mode)


def _share(eighths: int, count: int) -> int:
    """Return a number from 1 to `count`, and often `count`."""
    return min(count * eighths // 8, count - 1) + 1


@lru_cache(maxsize=512)
def _places(count: int) -> st.SearchStrategy[list[int]]:
    """Strategy of positions combined with the indices of special elements."""
    return st.lists(numbers(count * _SPECIALS), max_size=_MOST)


@lru_cache(maxsize=512)
def numbers(count: int) -> st.SearchStrategy[int]:
    """Strategy of the integers below `count`."""
    return st.integers(0, count - 1)


@lru_cache(maxsize=512)
def _palette(dtype: str, bounds: Bounds | None) -> Bits | Between:
    return Bits(dtype) if bounds is None else Between(dtype, bounds)


class Bits:
    """Every bit pattern of a dtype; a complex number is two.

    `zero` is the simplest number, and `specials` are others of interest, the simplest first; similar dtypes
    have similar ones at the same index.
    """

    zero = 0

    def __init__(self, dtype: str) -> None:
        self._part = _part(native_dtype(dtype))
        self._code = f"u{self._part.itemsize}"
        self._exact = min(_most_exact(dtype), 1 << 31) if self._part.kind != "b" else 1
        self.specials = tuple(islice(cycle(self._some(DTYPES[dtype].digits)), _SPECIALS))
        powers = np.array([0.0, *(sign * 2.0**n for n in range(-3, 13) for sign in (1, -1))])
        with np.errstate(all="ignore"):
            here = powers.astype(self._part)
            self._round: HostArray = here[here.astype(float) == powers].view(self._code)

    def _some(self, digits: int) -> list[int]:
        part, sign = self._part, 1 << 8 * self._part.itemsize - 1
        if part.kind == "b":
            return [1]
        if part.kind in "iu":
            return [1, 2, 3, 2 * sign - 1, sign - 1, sign, sign + 1, sign - 2, 2 * sign - 2]
        with np.errstate(all="ignore"):
            simple = np.array([1, 2, 3, 0.5, -1, np.nan, np.inf]).astype(part).view(self._code).tolist()
        infinity, normal = simple[-1], 1 << digits - 1
        around = [infinity ^ sign, sign, infinity - 1, infinity + 1, sign - 1, 2 * sign - 1]
        return [code % (2 * sign) for code in (*simple, *around, 1, normal - 1, normal)]

    def consecutive(self, count: int) -> HostArray:
        """Count from 1 to the largest exact integer of the dtype, and repeat."""
        return (np.arange(count) % self._exact + 1).astype(self._part).view(self._code)

    def wild(self, seed: int, count: int) -> HostArray:
        """Return random bits, or round numbers; a bool is 0 or 1."""
        if seed < _READABLE:
            return self._round.take(_noise(seed, count, "u4") % self._round.size)
        codes = _noise(seed, count, self._code)
        return codes & 1 if self._part.kind == "b" else codes


class Between:
    """The numbers between two bounds, which are values of the dtype themselves."""

    def __init__(self, dtype: str, bounds: Bounds) -> None:
        self._part = _part(native_dtype(dtype))
        self._whole = self._part.kind in "biu"
        low, high = map(int if self._whole else float, bounds)
        self._low, self._high = low, high
        self._least = min(max(0, low), high)
        known = (1, 2, 3, -1, low, high) if self._whole else (1, 2, 3, 0.5, -1, -0.0, low, high)
        self.zero, *codes = self._codes([self._least, *(n for n in known if low <= n <= high)]).tolist()
        self.specials = tuple(islice(cycle(codes), _SPECIALS))

    def _codes(self, values: Any) -> HostArray:
        code = f"u{self._part.itemsize}"
        if self._whole:
            return np.array([value % (1 << 64) for value in values], "u8").astype(code)
        return np.array(values, float).astype(self._part).view(code)

    def consecutive(self, count: int) -> HostArray:
        """Count from the simplest number to the upper bound, and repeat."""
        steps = int(self._high - self._least) + 1
        return self._codes([self._least + n % steps for n in range(1, count + 1)])

    def wild(self, seed: int, count: int) -> HostArray:
        """Return evenly distributed numbers within the bounds; the first blocks have integers and eighths."""
        noise, low, high = _noise(seed, count, "u8"), self._low, self._high
        if self._whole:
            return self._codes([low + n % (high - low + 1) for n in noise.tolist()])
        share = noise / 2.0**64
        values = low * (1 - share) + high * share
        if seed < _READABLE:
            values = values - np.fmod(values, 1 if seed < _READABLE / 2 else 1 / 8)
        return self._codes(np.clip(values, low, high))


def _part(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a real or imaginary part."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def _noise(seed: int, count: int, code: str) -> HostArray:
    """Bits that depend only on a seed, on any machine."""
    width = np.dtype(code).itemsize
    drawn = shake_128(bytes([seed])).digest(count * width)
    return np.frombuffer(drawn, f"<u{width}").astype(code)
