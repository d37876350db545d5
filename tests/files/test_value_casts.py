"""Casts of every pair of dtypes, at all ends, against exact fractions and the bits of the dtypes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from random import Random
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pytest
from inside import DTYPES

from xbridge._host.memory import check_cast, native_dtype
from xbridge.errors import ValueLossError
from xbridge.files.value_casts import cast_exactly, cast_to_nearest

pytest.importorskip("ml_dtypes")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from xbridge.files.value_casts import Cast
    from xbridge.protocol import HostArray

Number: TypeAlias = "Fraction | float"
"""An exact number, or one of the floats -0.0, inf, -inf and nan."""


@dataclass(frozen=True)
class Layout:
    """The bits of a floating dtype."""

    exponent: int
    mantissa: int
    bias: int
    special: str
    """`ieee`; `fn`: no infinity, and NaN is all ones; `fnuz`: NaN is in the place of -0.0; `e8m0`."""

    @property
    def size(self) -> int:
        """The number of bits without the sign."""
        return self.exponent + self.mantissa

    @property
    def is_signed(self) -> bool:
        return self.special != "e8m0"

    def value(self, pattern: int) -> Number:
        """The number that has these bits."""
        negative, size = divmod(pattern, 1 << self.size)
        sign = -1 if negative else 1
        exponent, mantissa = divmod(size, 1 << self.mantissa)
        last = (1 << self.exponent) - 1
        if self.special == "ieee" and exponent == last:
            return math.nan if mantissa else sign * math.inf
        if self.special in ("fn", "e8m0") and size == (1 << self.size) - 1:
            return math.nan
        if self.special == "fnuz" and negative and not size:
            return math.nan
        if negative and not size:
            return -0.0
        if exponent or self.special == "e8m0":
            mantissa += 1 << self.mantissa
        else:
            exponent = 1
        return sign * Fraction(mantissa) * Fraction(2) ** (exponent - self.bias - self.mantissa)

    def number(self, pattern: int) -> Fraction:
        """The finite number that has these bits."""
        found = self.value(pattern)
        assert isinstance(found, Fraction)
        return found

    @property
    def last(self) -> int:
        """The bits of the greatest number."""
        if self.special == "ieee":
            return ((1 << self.exponent) - 1 << self.mantissa) - 1
        return (1 << self.size) - (1 if self.special == "fnuz" else 2)

    @cached_property
    def greatest(self) -> Fraction:
        return self.number(self.last)


LAYOUTS = {
    "float8_e4m3fn": Layout(4, 3, 7, "fn"),
    "float8_e5m2": Layout(5, 2, 15, "ieee"),
    "float8_e4m3fnuz": Layout(4, 3, 8, "fnuz"),
    "float8_e5m2fnuz": Layout(5, 2, 16, "fnuz"),
    "float8_e8m0fnu": Layout(8, 0, 127, "e8m0"),
    "bfloat16": Layout(8, 7, 127, "ieee"),
    "float16": Layout(5, 10, 15, "ieee"),
    "float32": Layout(8, 23, 127, "ieee"),
    "float64": Layout(11, 52, 1023, "ieee"),
}

INTEGERS = {"bool": (0, 1)} | {
    f"{sign}int{bits}": (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}

REAL = (*INTEGERS, *LAYOUTS)


def nearest(x: Number, dtype: str) -> Number | None:
    """The nearest number of a dtype, of two the one whose last bit is zero; None if there is none."""
    if dtype in INTEGERS:
        if not isinstance(x, Fraction) and x != 0:
            return None
        rounded = Fraction(round(x))  # of Python: ties to even
        low, high = INTEGERS[dtype]
        return rounded if low <= rounded <= high else None
    layout = LAYOUTS[dtype]
    if not isinstance(x, Fraction):
        if math.isinf(x):
            return x if layout.special == "ieee" else None
        if x == 0:
            return {"fnuz": Fraction(0), "e8m0": None}.get(layout.special, x)
        return x
    if layout.special == "e8m0":
        is_power = x > 0 and x == Fraction(2) ** exponent_of(x)
        return x if is_power and Fraction(1, 2**127) <= x <= 2**127 else None
    if x == 0:
        return x
    last = Fraction(2) ** (max(exponent_of(abs(x)), 1 - layout.bias) - layout.mantissa)
    rounded = round(x / last) * last
    if abs(rounded) > layout.greatest:
        return None
    return -0.0 if rounded == 0 > x and layout.special != "fnuz" else rounded


def exponent_of(x: Fraction) -> int:
    """The greatest power of two that is at most a positive number."""
    guess = x.numerator.bit_length() - x.denominator.bit_length()
    return guess if Fraction(2) ** guess <= x else guess - 1


def has(x: Number, dtype: str) -> bool:
    """Whether a dtype has a number, which minus zero is and zero is not."""
    return same(nearest(x, dtype), x)


def same(x: Number | None, y: Number | None) -> bool:
    """Compare numbers: NaN is itself, and -0.0 is not zero."""
    if type(x) is not type(y):
        return False
    return x == y or (isinstance(x, float) and isinstance(y, float) and math.isnan(x) and math.isnan(y))


def is_finite(x: Number) -> bool:
    """Whether a number is neither an infinity nor NaN."""
    return isinstance(x, Fraction) or x == 0


def encoded(x: Number, dtype: str) -> int:
    """The bits of a number that a floating dtype has."""
    layout = LAYOUTS[dtype]
    if isinstance(x, float) and math.isnan(x):
        return 1 << layout.size if layout.special == "fnuz" else (1 << layout.size) - 1
    sign = int(math.copysign(1, x) < 0) << layout.size
    if isinstance(x, float):
        return sign | ((1 << layout.exponent) - 1 << layout.mantissa if math.isinf(x) else 0)
    low, high = 0, 1 << layout.size
    while high - low > 1:
        middle = (low + high) // 2
        value = layout.value(middle)
        beyond = not isinstance(value, Fraction) or value > abs(x)
        low, high = (low, middle) if beyond else (middle, high)
    return sign | low


def array_of(numbers: Iterable[Number], dtype: str) -> HostArray:
    """The numbers, made of integers and bits alone."""
    if dtype in INTEGERS:
        return np.array([int(x) for x in numbers], dtype)
    bits = np.dtype(f"u{native_dtype(dtype).itemsize}")
    return np.array([encoded(x, dtype) for x in numbers], bits).view(native_dtype(dtype))


def numbers_of(array: HostArray) -> list[Number]:
    """The numbers of an array, by their bits."""
    if array.dtype.name in INTEGERS:
        return [Fraction(int(x)) for x in array.tolist()]
    layout = LAYOUTS[array.dtype.name]
    return [layout.value(pattern) for pattern in array.view(f"u{array.itemsize}").tolist()]


@cache
def marks() -> tuple[Number, ...]:
    """The ends of every dtype, with what is beside, between and beyond them."""
    found: list[Number] = []
    for low, high in INTEGERS.values():
        found += [Fraction(end) + near for end in (low, high) for near in (-2, -1, 0, 1, 2)]
        found += [Fraction(2 * end + near, 2) for end in (low, high) for near in (-3, -1, 1, 3)]
    for layout in LAYOUTS.values():
        most, step = layout.greatest, layout.greatest - layout.number(layout.last - 1)
        least, normal = layout.number(int(layout.special != "e8m0")), layout.number(1 << layout.mantissa)
        ends = [most + step * Fraction(n, 8) for n in range(-9, 10)]
        starts = [least * Fraction(n, 8) for n in range(20)]
        starts += [normal + least * Fraction(n, 2) for n in range(-3, 4)]
        ones = [1 + Fraction(n, 8) / 2**layout.mantissa for n in range(-9, 18)]
        digits = [Fraction(2 ** (layout.mantissa + 1) + n) for n in range(-3, 4)]
        found += [sign * x for x in (*ends, *starts, *ones, *digits) for sign in (1, -1)]
    for power in (24, 31, 52, 53, 54, 55, 60, 62, 63, 64):
        beside = [2**power + near for near in (-3, -1, 1, 3, 512, 1025)]
        halfway = [2**power + 2 ** (power - 8) + near for near in (-1, 0, 1)]  # in bfloat16
        found += [Fraction(sign * n) for n in (*beside, *halfway) for sign in (1, -1)]
    draw = Random(0)
    found += [Fraction(draw.getrandbits(64) >> draw.randrange(64)) for _ in range(100)]
    return tuple(dict.fromkeys(found))


@cache
def samples(dtype: str) -> tuple[HostArray, list[Number]]:
    """Numbers of a dtype: all of a small one, else the marks and their neighbours, and some by chance."""
    if dtype in INTEGERS:
        numbers: list[Number] = [x for x in marks() if isinstance(x, Fraction) and has(x, dtype)]
        array = array_of(numbers, dtype)
        return array, numbers
    layout = LAYOUTS[dtype]
    patterns = 1 << layout.size + layout.is_signed
    if patterns <= 256:
        bits = list(range(patterns))
    else:
        rounded = [y for y in (nearest(x, dtype) for x in marks()) if y is not None]
        near = {encoded(x, dtype) for x in (*rounded, math.inf, -math.inf, -0.0, math.nan)}
        draw = Random(1)
        beside = {pattern + step for pattern in near for step in (-1, 1)}
        bits = sorted({x % patterns for x in near | beside} | {draw.randrange(patterns) for _ in range(100)})
    array = np.array(bits, f"u{native_dtype(dtype).itemsize}").view(native_dtype(dtype))
    return array, numbers_of(array)


def compared(cast: HostArray, kept: HostArray, expected: list[Number | None]) -> None:
    """Check which numbers a cast has kept, and each of those."""
    assert kept.tolist() == [x is not None for x in expected]
    found = numbers_of(cast)
    wrong = [(x, y) for x, y in zip(found, expected, strict=True) if y is not None and not same(x, y)]
    assert not wrong


@pytest.mark.parametrize("before", REAL)
def test_cast_exactly__keeps_what_the_other_dtype_has_and_refuses_the_rest(before: str) -> None:
    """Every number of a dtype that another has is the same number there, and no other number is taken."""
    array, numbers = samples(before)
    for after in REAL:
        cast, kept = cast_exactly(array, native_dtype(after))
        assert cast.dtype == native_dtype(after)
        compared(cast, kept, [x if has(x, after) else None for x in numbers])


@pytest.mark.parametrize("before", REAL)
def test_cast_to_nearest__gives_the_nearest_number_or_none(before: str) -> None:
    """A float becomes the nearest number of the other dtype, ties to even, unless it is beyond the ends."""
    array, numbers = samples(before)
    for after in REAL:
        cast, kept = cast_to_nearest(array, native_dtype(after))
        between_integers = before in INTEGERS and after in INTEGERS
        assert cast.dtype == native_dtype(after)
        compared(cast, kept, [nearest(x, after) for x in numbers])
        assert not between_integers or kept.tolist() == cast_exactly(array, native_dtype(after))[1].tolist()


@pytest.mark.parametrize("cast", [cast_exactly, cast_to_nearest])
def test_cast_exactly__keeps_each_part_of_a_complex_number(cast: Callable[..., Cast]) -> None:
    """A part is kept or refused whatever the other is: a NaN, an infinity, or a number that is lost."""
    parts = [1.5, -0.0, math.inf, -math.inf, math.nan, 0.1, 1e300]
    fits = {x for x in parts if x != 1e300 and (x != 0.1 or cast is cast_to_nearest)}
    pairs = [(a, b) for a in parts for b in parts]
    narrow, kept = cast(np.array(pairs).view("c16").reshape(-1), np.dtype("c8"))
    assert kept.tolist() == [a in fits and b in fits for a, b in pairs]
    with np.errstate(over="ignore"):
        expected = np.array(pairs).astype("f4")
    assert narrow.view("f4")[np.repeat(kept, 2)].tobytes() == expected[kept].tobytes()
    wide, kept = cast(narrow, np.dtype("c16"))
    assert kept.all()
    assert wide.view("f8").astype("f4").tobytes() == narrow.tobytes()
    whole, kept = cast(np.array([3, 2**53 + 1]), np.dtype("c16"))
    assert kept.tolist() == [True, cast is cast_to_nearest]
    assert whole.tolist() == [3, 2**53]


@pytest.mark.parametrize("before", REAL)
def test_cast_exactly__reads_the_bytes_of_another_machine(before: str) -> None:
    """The order of the bytes of the source changes no number."""
    array, _ = samples(before)
    swapped = array.astype(array.dtype.newbyteorder(">"))
    for after in ("int64", "bfloat16", "float64"):
        for cast in (cast_exactly, cast_to_nearest):
            found, expected = cast(swapped, native_dtype(after)), cast(array, native_dtype(after))
            assert [x.tobytes() for x in found] == [x.tobytes() for x in expected]


@pytest.mark.parametrize("before", REAL)
def test_check_cast__raises_if_a_number_is_lost(before: str) -> None:
    """What passes has exact integers, and no finite float becomes infinite or NaN."""
    array, numbers = samples(before)
    for after in REAL:
        if (before in INTEGERS) != (after in INTEGERS) and after in INTEGERS:
            continue  # no option casts a float to an integer unasked
        wide = array.astype("f4") if "float8" in before else array  # ml_dtypes lacks casts of float8_e8m0fnu
        with np.errstate(all="ignore"):
            found = numbers_of(wide.astype(native_dtype(after)))
        for at, (x, y) in enumerate(zip(numbers, found, strict=True)):
            if not has(x, after) if before in INTEGERS else is_finite(x) and not is_finite(y):
                with pytest.raises(ValueLossError):
                    check_cast(array[at : at + 1], after)


def test_cast_exactly__every_dtype_is_covered() -> None:
    """A new dtype needs an oracle."""
    assert {*REAL, "complex64", "complex128"} == set(DTYPES)
