"""Values of arrays: a background, and a few special elements on it.

A few draws make an array of any size: two that select the background, and one for each special element. The
background is zeros, or random numbers of few digits, or random bits, in a part of the array. The special
elements are ones, signed zeros, infinities, quiet and signalling NaNs, subnormals and the ends of ranges. A
failure because of one of them shrinks to it among zeros, and one because of random bits to few of them.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import shake_128
from itertools import cycle, islice
from math import prod
from sys import float_info
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from xbridge.errors import DTypeError, OptionError
from xbridge.extend import DTYPES, category, native_dtype

if TYPE_CHECKING:
    from xbridge.protocol import HostArray

    Shape: TypeAlias = tuple[int, ...]
    Bounds: TypeAlias = tuple[float, float]
    Bound: TypeAlias = float | np.number[Any]
    Elements: TypeAlias = st.SearchStrategy[Any] | tuple[Bound, Bound] | None
    Checked: TypeAlias = st.SearchStrategy[Any] | Bounds | None

_MOST = 4
"""The largest number of special elements."""

_SPECIALS = 16

_SHARES = 16
"""The number of eighths of an array that the background may fill: most often all of it."""

_SEEDS = 256
"""The number of backgrounds: zeros, and blocks of random numbers."""

_READABLE = 128
"""The number of the first backgrounds, to which examples shrink, with numbers that are easy to read."""

_EIGHTHS = sorted(np.arange(-72, 73) / 8, key=lambda n: (n % 1 != 0, abs(n), n < 0))
"""Numbers of few digits, the simplest first."""


def draw_contents(draw: st.DrawFn, dtype: str, shape: Shape, bounds: Bounds | None) -> HostArray:
    """Draw a dense native array of any bits that are values of the dtype, or within bounds."""
    whole = native_dtype(dtype)
    part, palette = _part(whole), _palette(dtype, bounds)
    count = prod(shape) * (whole.itemsize // part.itemsize)
    codes = palette.background(draw(numbers(_SEEDS)), count)
    codes[count * draw(numbers(_SHARES)) // 8 + 1 :] = palette.zero
    places = _SPECIALS * count
    for _ in range(_MOST):
        place = draw(numbers(2 * places + 1)) - 1  # outside of the array half of the time
        if 0 <= place < places:
            index, special = divmod(place, _SPECIALS)
            codes[index] = palette.specials[special]
    return codes.view(whole).reshape(shape)


def draw_elements(draw: st.DrawFn, dtype: str, shape: Shape, elements: st.SearchStrategy[Any]) -> HostArray:
    """Draw a dense native array whose elements all come from a strategy, the first of which repeat."""
    few = np.empty(min(prod(shape), _SPECIALS), native_dtype(dtype))
    for place in range(few.size):
        few[place] = exactly(draw(elements), dtype)
    at = np.arange(prod(shape))
    at[_SPECIALS:] = _noise(0, at.size)[_SPECIALS:] % _SPECIALS
    return few[at].reshape(shape)


def quieten(values: HostArray) -> None:
    """Replace every NaN by the quiet one without a sign and a payload, part by part."""
    whole: Any = values
    parts = (whole.real, whole.imag) if values.dtype.kind == "c" else (values,)
    with np.errstate(invalid="ignore"):  # ml_dtypes computes on signalling NaNs
        for part in parts:
            part[np.isnan(part)] = np.nan


@lru_cache(maxsize=512)
def numbers(count: int) -> st.SearchStrategy[int]:
    """Strategy of the integers below `count`."""
    return st.integers(0, count - 1)


class _Palette:
    """The numbers of a dtype, or those within bounds, as bits; those of a complex number are two."""

    def __init__(self, dtype: str, bounds: Bounds | None) -> None:
        self._part = _part(native_dtype(dtype))
        self._code, self._bounds = f"u{self._part.itemsize}", bounds
        special = np.array(_specials(self._part, DTYPES[dtype].digits), self._code)
        with np.errstate(all="ignore"):
            near = np.array(_EIGHTHS).astype(self._part)
            readable = near[near.astype(float) == _EIGHTHS].view(self._code)
            if bounds is not None:
                ends = np.array([np.array(end).astype(self._part) for end in bounds])  # not as two floats
                special, readable = (
                    x[(ends[0] <= x.view(self._part)) & (x.view(self._part) <= ends[1])]
                    for x in (special, readable)
                )
                special = np.array([*special, *ends.view(self._code)], self._code)
        self.zero, *others = special.tolist()
        self.specials = tuple(islice(cycle(others or [self.zero]), _SPECIALS))
        self._readable: HostArray = readable if readable.size else special

    def background(self, seed: int, count: int) -> HostArray:
        """Return the simplest number, or random ones."""
        if seed == 0:
            return np.full(count, self.zero, self._code)
        noise = _noise(seed, count)
        if seed < _READABLE:
            return self._readable.take(noise % self._readable.size)
        if self._bounds is None:
            return (noise % 2 if self._part.kind == "b" else noise).astype(self._code)
        low, high = self._bounds
        if self._part.kind in "biu":
            low, high = int(low), int(high)
            return np.array([(low + n % (high - low + 1)) % (1 << 64) for n in noise.tolist()], "u8").astype(
                self._code
            )
        share = noise / 2.0**64
        return np.clip(low * (1 - share) + high * share, low, high).astype(self._part).view(self._code)


_palette = lru_cache(maxsize=512)(_Palette)


def _specials(part: np.dtype[Any], digits: int) -> list[int]:
    """Return the bits of numbers of interest, the simplest first."""
    sign = 1 << 8 * part.itemsize - 1
    if part.kind == "b":
        return [0, 1]
    if part.kind in "iu":
        return [0, 1, 2, 3, 2 * sign - 1, sign - 1, sign, sign + 1, sign - 2, 2 * sign - 2]
    with np.errstate(all="ignore"):
        simple = np.array([1, 2, 3, 0.5, -1, np.nan, np.inf]).astype(part).view(f"u{part.itemsize}").tolist()
    infinity, normal = simple[-1], 1 << digits - 1
    around = [infinity ^ sign, sign, infinity - 1, infinity + 1, sign - 1, 2 * sign - 1]
    return [code % (2 * sign) for code in (0, *simple, *around, 1, normal - 1, normal)]


def _part(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a real or imaginary part."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def _noise(seed: int, count: int) -> HostArray:
    """Return 64 bits for each number that depend on a seed alone, on any machine."""
    return np.frombuffer(shake_128(bytes([seed])).digest(8 * count), "<u8")


# -- elements that the caller gives --------------------------------------------------------------
# A number that the dtype would round is an error that names it: a test of rounded numbers is not the test
# that the caller wrote.


def read_elements(elements: object) -> Checked:
    """Return the given elements after the checks that need no dtype."""
    if elements is None or isinstance(elements, st.SearchStrategy):
        return elements
    if isinstance(elements, tuple) and len(elements) == 2:
        low, high = (bound.item() if isinstance(bound, np.generic) else bound for bound in elements)
        if _is_finite(low) and _is_finite(high) and low <= high:
            return low, high
    raise OptionError.build(
        f"draw arrays with elements={elements!r}",
        "elements are a strategy of numbers, or a tuple of two finite bounds in order",
        "elements=(-1, 1)",
    )


def _is_finite(bound: object) -> bool:
    return isinstance(bound, int | float) and abs(bound) <= float_info.max


def bounds_in(dtype: str, bounds: Bounds | None) -> Bounds | None:
    """Return bounds as values of the dtype, floating ones rounded inward; raise if there are none."""
    if bounds is None:
        return None
    if category(dtype) not in ("float", "complex"):
        for bound in bounds:
            exactly(bound, dtype)
        return bounds
    part = native_dtype({"complex64": "float32", "complex128": "float64"}.get(dtype, dtype))
    ends = []
    for bound, inward in zip(bounds, (np.inf, -np.inf), strict=True):
        with np.errstate(all="ignore"):
            end = np.asarray(bound).astype(part)
            is_outside = (float(end) - bound) * inward < 0
            ends.append(float(np.nextafter(end, np.asarray(inward).astype(part)) if is_outside else end))
    low, high = ends
    if not bounds[0] <= low <= high <= bounds[1]:  # also for NaN
        raise _rounded(bounds, dtype)
    return low, high


def has_bounds(dtype: str, elements: Checked) -> bool:
    """Return True if the dtype has numbers within the bounds."""
    try:
        bounds_in(dtype, elements if isinstance(elements, tuple) else None)
    except DTypeError:
        return False
    return True


def exactly(number: Any, dtype: str) -> Any:
    """Convert a number to the dtype exactly; a number of that dtype keeps its bits."""
    native = native_dtype(dtype)
    if isinstance(number, np.generic) and number.dtype == native:
        return number
    try:
        with np.errstate(all="ignore"):
            made = np.asarray(number).astype(native)
        value = {"bool": int, "int": int, "float": float, "complex": complex}[category(dtype)](made)
    except (OverflowError, TypeError, ValueError) as error:
        raise _rounded(number, dtype) from error
    if value != number and not (value != value and number != number):  # noqa: PLR0124 -- a NaN
        raise _rounded(number, dtype)
    return made[()]


def _rounded(number: object, dtype: str) -> DTypeError:
    return DTypeError.build(
        f"put the element {number!r} into an array of {dtype}",
        f"no {dtype} is equal to it",
        f"dtypes= of those that have it, elements=(-1, 1), or a strategy of numbers that {dtype} has",
    )
