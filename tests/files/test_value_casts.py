"""Casts of every pair of dtypes, at all ends, against exact fractions.

What a floating dtype has is said by its `finfo`; its numbers are read by casts that are exact.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache, partial
from random import Random
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pytest
from inside import DTYPES, native_dtype

from xbridge.files.value_casts import cast_values

ml_dtypes = pytest.importorskip("ml_dtypes")

if TYPE_CHECKING:
    from xbridge.protocol import HostArray

Number: TypeAlias = "Fraction | float"
"""An exact number, or one of the floats -0.0, inf, -inf and nan."""

INTEGERS = {"bool": (0, 1)} | {
    f"{sign}int{bits}": (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}
FLOATS = {
    name: ml_dtypes.finfo(native_dtype(name))
    for name in (
        *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
        *("bfloat16", "float16", "float32", "float64"),
    )
}
WITHOUT_INFINITY = tuple(name for name in FLOATS if name.endswith(("fn", "fnuz", "fnu")))
REAL = (*INTEGERS, *FLOATS)


def nearest(x: Number, dtype: str) -> Number | None:
    """The nearest number of a dtype, of two the one whose last bit is zero; None if there is none."""
    if dtype in INTEGERS:
        if not isinstance(x, Fraction) and x != 0:
            return None
        rounded = Fraction(round(x))  # of Python: ties to even
        low, high = INTEGERS[dtype]
        return rounded if low <= rounded <= high else None
    has_minus_zero = "fnuz" not in dtype
    if not isinstance(x, Fraction):
        if math.isinf(x):
            return None if dtype in WITHOUT_INFINITY else x
        if x == 0 and dtype == "float8_e8m0fnu":
            return None
        return Fraction(0) if x == 0 and not has_minus_zero else x
    if dtype == "float8_e8m0fnu":
        is_power = x > 0 and x == Fraction(2) ** exponent_of(x)
        return x if is_power and Fraction(1, 2**127) <= x <= 2**127 else None
    if x == 0:
        return x
    info = FLOATS[dtype]
    last = Fraction(2) ** (max(exponent_of(abs(x)), int(info.minexp)) - int(info.nmant))
    rounded = round(x / last) * last
    if abs(rounded) > Fraction(float(info.max)):
        return None
    return -0.0 if rounded == 0 > x and has_minus_zero else rounded


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


def numbers_of(array: HostArray) -> list[Number]:
    """The numbers of an array."""
    is_small = array.dtype.name in FLOATS and array.itemsize <= 2
    values = (array.astype("f4") if is_small else array).tolist()
    is_number = [math.isfinite(x) and (x != 0 or math.copysign(1, x) > 0) for x in values]
    return [Fraction(x) if exact else x for x, exact in zip(values, is_number, strict=True)]


@cache
def marks() -> tuple[Fraction, ...]:
    """The ends of every dtype, with what is beside, between and beyond them."""
    found: list[Fraction] = []
    for low, high in INTEGERS.values():
        found += [Fraction(end) + near for end in (low, high) for near in (-2, -1, 0, 1, 2)]
        found += [Fraction(2 * end + near, 2) for end in (low, high) for near in (-3, -1, 1, 3)]
    for info in FLOATS.values():
        digits, most = int(info.nmant), Fraction(float(info.max))
        step, least = Fraction(2) ** (exponent_of(most) - digits), Fraction(2) ** (int(info.minexp) - digits)
        ends = [most + step * Fraction(n, 8) for n in range(-9, 10)]
        starts = [least * Fraction(n, 8) for n in range(20)]
        starts += [least * 2**digits + least * Fraction(n, 2) for n in range(-3, 4)]
        ones = [1 + Fraction(n, 8) / 2**digits for n in range(-9, 18)]
        wholes = [Fraction(2 ** (digits + 1) + n) for n in range(-3, 4)]
        found += [sign * x for x in (*ends, *starts, *ones, *wholes) for sign in (1, -1)]
    for power in (24, 31, 52, 53, 54, 55, 60, 62, 63, 64):
        beside = [2**power + near for near in (-3, -1, 1, 3, 512, 1025)]
        halfway = [2**power + 2 ** (power - 8) + near for near in (-1, 0, 1)]  # in bfloat16
        found += [Fraction(sign * n) for n in (*beside, *halfway) for sign in (1, -1)]
    return tuple(dict.fromkeys(found))


@cache
def samples(dtype: str) -> tuple[HostArray, list[Number]]:
    """Numbers of a dtype: all of a small one, else the marks and their neighbours, and some by chance."""
    if dtype in INTEGERS:
        whole = [int(x) for x in marks() if has(x, dtype)]
        return np.array(whole, dtype), [Fraction(x) for x in whole]
    native = native_dtype(dtype)
    unsigned = np.dtype(f"u{native.itemsize}")
    if native.itemsize == 1:
        array = np.arange(256, dtype=unsigned).view(native)
    else:
        rounded = [float(y) for y in (nearest(x, dtype) for x in marks()) if y is not None]
        near = np.array([*rounded, math.inf, -math.inf, -0.0, math.nan]).astype(native).view(unsigned)
        chance = np.array([Random(n).getrandbits(8 * native.itemsize) for n in range(20)], unsigned)
        array = np.unique(np.concatenate([near, near - 1, near + 1, chance])).view(native)
    return array, numbers_of(array)


def compared(cast: HostArray, kept: HostArray, expected: list[Number | None]) -> None:
    """Check which numbers a cast has kept, and each of those."""
    assert kept.tolist() == [x is not None for x in expected]
    found = numbers_of(cast)
    wrong = [(x, y) for x, y in zip(found, expected, strict=True) if y is not None and not same(x, y)]
    assert not wrong


@pytest.mark.parametrize("before", REAL)
def test_cast_values__keeps_what_the_other_dtype_has_and_refuses_the_rest(before: str) -> None:
    """Every number of a dtype that another has is the same number there, and no other number is taken."""
    array, numbers = samples(before)
    for after in REAL:
        cast, kept = cast_values(array, native_dtype(after))
        assert cast.dtype == native_dtype(after)
        compared(cast, kept, [x if has(x, after) else None for x in numbers])


@pytest.mark.parametrize("before", REAL)
def test_cast_values__gives_the_nearest_number_or_none(before: str) -> None:
    """A float becomes the nearest one, ties to even, unless it is too large, in one rounding."""
    array, numbers = samples(before)
    for after in REAL:
        cast, kept = cast_values(array, native_dtype(after), rounds=True)
        is_exact = before in INTEGERS or after in INTEGERS
        assert cast.dtype == native_dtype(after)
        compared(cast, kept, [nearest(x, after) if not is_exact or has(x, after) else None for x in numbers])


@pytest.mark.parametrize("rounds", [False, True])
def test_cast_values__keeps_each_part_of_a_complex_number(*, rounds: bool) -> None:
    """A part is kept or refused whatever the other is: a NaN, an infinity, or a number that is lost."""
    cast = partial(cast_values, rounds=rounds)
    parts = [1.5, -0.0, math.inf, -math.inf, math.nan, 0.1, 1e300]
    fits = {x for x in parts if x != 1e300 and (x != 0.1 or rounds)}
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
    assert kept.tolist() == [True, False]
    assert whole[0] == 3


def test_cast_values__every_dtype_is_covered() -> None:
    """A new dtype needs an oracle; for those of less than a byte, every value is tried."""
    packed = {word for word, facts in DTYPES.items() if facts.is_packed}
    assert {*REAL, "complex64", "complex128"} == DTYPES.keys() - packed
    for word in packed:
        values = np.arange(1 << DTYPES[word].bits, dtype="u1").view(native_dtype(word))
        for other in ("float32", "int8", "uint8"):
            cast, kept = cast_values(values, np.dtype(other))
            fits = values.astype("f4") == values.astype("f4").astype(other)
            assert kept.tolist() == [
                bool(fit and (other == "float32" or x or not np.signbit(x)))
                for fit, x in zip(fits, values.astype("f4"), strict=True)
            ]
            back, is_back = cast_values(cast[kept], native_dtype(word))
            assert is_back.all()
            assert back.tobytes() == values[kept].tobytes()
