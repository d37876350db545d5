"""What arrays hold: a background, and a few elements set on it where mistakes hide.

Two draws make most arrays, whatever their size: a number that stands for the background, and a list of the
elements on it. The background is zeros, or a count, or any bits in a part of the array; the elements are
ones, signed zeros, infinities, quiet and signalling NaNs, subnormals and the ends of each range. So what
fails because of one of these shrinks to it among zeros, and what needs wild bits shrinks to few of them.
"""

# pyright: reportReturnType=false
# The methods of a protocol are their docstrings.

from __future__ import annotations

from functools import lru_cache
from hashlib import shake_128
from itertools import cycle, islice
from math import prod
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from hypothesis import strategies as st

from xbridge._core.dtypes import DTYPES, exact_integers
from xbridge._host.memory import native_dtype

if TYPE_CHECKING:
    from xbridge._core.protocol import HostArray

    Shape: TypeAlias = tuple[int, ...]
    Bounds: TypeAlias = tuple[float, float]

_MOST = 4
"""Elements that are set on a background."""

_SPECIALS = 16
_KINDS = 4
"""Of backgrounds: zeros, a count, and twice any bits."""

_SEEDS = 256
"""Stocks of wild bits."""

_READABLE = 16
"""The first of the stocks, to which it shrinks, hold numbers that are easy to read."""

_STOCK = 256
"""How many there are in one, at least."""

_SHARES = 16


class Palette(Protocol):
    """The numbers of a dtype, as bit patterns; a complex number is two."""

    zero: int
    """The simplest."""
    specials: tuple[int, ...]
    """Some of interest, the simplest first; kindred dtypes have the like at the same place."""

    def consecutive(self, count: int) -> HostArray:
        """As many, one after the other."""

    def wild(self, seed: int, count: int) -> HostArray:
        """As many of any sort; the first of them are the same for the same seed."""


def draw_contents(draw: st.DrawFn, dtype: str, shape: Shape, bounds: Bounds | None) -> HostArray:
    """A dense native array of any bits that are values of the dtype, or within bounds."""
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


def _spill(draw: st.DrawFn, codes: HostArray, palette: Palette) -> None:
    """Lay wild bits on a part of the array.

    Each number that shrinks alone leaves fewer of them, or moves them towards the start as they are.
    """
    end = _share(draw(numbers(_SHARES)), codes.size)
    length = min(_share(draw(numbers(_SHARES)), codes.size), end)
    last, seed = draw(numbers(_STOCK)), draw(numbers(_SEEDS))
    stock = palette.wild(seed, max(codes.size, _STOCK))
    codes[end - length : end] = stock.take(range(last - length + 1, last + 1), mode="wrap")


def _share(eighths: int, count: int) -> int:
    """From one to all of a number of elements, and often all."""
    return min(count * eighths // 8, count - 1) + 1


@lru_cache(maxsize=512)
def _places(count: int) -> st.SearchStrategy[list[int]]:
    """Where to set which special element."""
    return st.lists(numbers(count * _SPECIALS), max_size=_MOST)


@lru_cache(maxsize=512)
def numbers(count: int) -> st.SearchStrategy[int]:
    """So many numbers, from 0 on."""
    return st.integers(0, count - 1)


@lru_cache(maxsize=512)
def _palette(dtype: str, bounds: Bounds | None) -> Palette:
    return Bits(dtype) if bounds is None else Between(dtype, bounds)


class Bits:
    """Every bit pattern."""

    zero = 0

    def __init__(self, dtype: str) -> None:
        self._part = _part(native_dtype(dtype))
        self._code = f"u{self._part.itemsize}"
        self._exact = min(exact_integers(dtype)[1], 1 << 31) if self._part.kind != "b" else 1
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
        """From 1 on, as far as the dtype is exact, and again."""
        return (np.arange(count) % self._exact + 1).astype(self._part).view(self._code)

    def wild(self, seed: int, count: int) -> HostArray:
        """Any bits, or round numbers; a truth value is 0 or 1."""
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
        """In steps of one from the simplest to the upper bound, and again."""
        steps = int(self._high - self._least) + 1
        return self._codes([self._least + n % steps for n in range(1, count + 1)])

    def wild(self, seed: int, count: int) -> HostArray:
        """Evenly from one bound to the other; first whole numbers and eighths."""
        noise, low, high = _noise(seed, count, "u8"), self._low, self._high
        if self._whole:
            return self._codes([low + n % (high - low + 1) for n in noise.tolist()])
        share = noise / 2.0**64
        values = low * (1 - share) + high * share
        if seed < _READABLE:
            values = values - np.fmod(values, 1 if seed < _READABLE / 2 else 1 / 8)
        return self._codes(np.clip(values, low, high))


def _part(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of a real or imaginary part."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def _noise(seed: int, count: int, code: str) -> HostArray:
    """Bits that depend on a seed alone, on any machine."""
    width = np.dtype(code).itemsize
    drawn = shake_128(bytes([seed])).digest(count * width)
    return np.frombuffer(drawn, f"<u{width}").astype(code)
