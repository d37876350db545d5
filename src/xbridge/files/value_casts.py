"""Casts that compare every value: exact ones, and those to the nearest value.

NumPy's cast does not report what it changes. It wraps integers, and the number that it gives for a float that
an integer dtype lacks differs between machines. ml_dtypes casts by way of float32, which rounds twice. So a
float is cast by way of float32 or float64, whichever has all values of its dtype, and compared. From float64,
float32 is rounded to odd first, which keeps the sum of both roundings that of one.

A complex number is two numbers: each part is kept or rounded on its own, also beside a NaN.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from xbridge.extend import DTYPES
from xbridge.protocol import HostArray

Cast: TypeAlias = tuple[HostArray, HostArray]
"""The values in the new dtype, and a mask of those that are right."""


def cast_values(values: HostArray, dtype: np.dtype[Any], *, rounds: bool = False) -> Cast:
    """Cast a dense axis of numbers, and return a mask of those that the dtype has. NaN stays NaN.

    With `rounds`, floats become the nearest floats, ties to even, unless they are beyond the ends of the
    dtype.
    """
    with np.errstate(all="ignore"):
        if dtype.kind != "c":
            return _cast_real(values, dtype, rounds=rounds)
        part = dtype.type(0).real.dtype
        if values.dtype.kind != "c":
            cast, kept = _cast_real(values, part, rounds=rounds)
            return cast.astype(dtype), kept
        cast, kept = _cast_real(values.view(np.real(values).dtype), part, rounds=rounds)
        return cast.view(dtype), kept[::2] & kept[1::2]


def _cast_real(values: HostArray, dtype: np.dtype[Any], *, rounds: bool) -> Cast:
    is_float = DTYPES[dtype.name].kind == "float"
    if DTYPES[values.dtype.name].kind == "float":
        wide = values.astype(np.float32 if values.itemsize <= 4 else np.float64)
        if not is_float:
            return _to_integers(wide, dtype)
        cast, kept = _to_floats(wide, dtype)
        if rounds and DTYPES[dtype.name].is_signed:  # of powers of two, none is even
            kept |= np.isfinite(wide) & np.isfinite(cast)
        return cast, kept
    whole = values.astype(np.int16) if values.itemsize == 1 else values  # not every dtype compares
    if not is_float:
        low, high = _range_of(dtype)
        return whole.astype(dtype), (whole >= low) & (whole <= high)
    wide = whole.astype(np.float64)
    back, is_held = _to_integers(wide, whole.dtype)
    cast, kept = _to_floats(wide, dtype)
    return cast, kept & is_held & (back == whole)


def _range_of(dtype: np.dtype[Any]) -> tuple[int, int]:
    kind, bits = DTYPES[dtype.name][:2]
    bits = 1 if kind == "bool" else bits - (kind == "int")
    return -(1 << bits) if kind == "int" else 0, (1 << bits) - 1


def _to_integers(wide: HostArray, dtype: np.dtype[Any]) -> Cast:
    low, high = _range_of(dtype)
    cast = wide.astype(dtype)
    is_inside = (wide >= float(low)) & (wide < float(high + 1))  # each is zero or a power of two
    return cast, is_inside & _same_bits(cast.astype(wide.dtype), wide)


def _to_floats(wide: HostArray, dtype: np.dtype[Any]) -> Cast:
    cast = (wide if dtype.isbuiltin == 1 else _to_odd(wide)).astype(dtype)
    back = cast.astype(wide.dtype)
    return cast, _same_bits(back, wide) | (np.isnan(back) & np.isnan(wide))


def _to_odd(wide: HostArray) -> HostArray:
    """Cast to float32. Of the two around a number between them, take the one whose last bit is 1."""
    near = wide.astype(np.float32)
    is_odd = near.view(np.uint32) % 2 == 1
    beside = np.nextafter(near, np.where(wide > near, np.inf, -np.inf).astype(np.float32))
    return np.where(is_odd | (near == wide) | np.isnan(wide), near, beside)


def _same_bits(a: HostArray, b: HostArray) -> HostArray:
    """Compare bits, which distinguish -0.0 from 0.0."""
    bits = f"u{a.itemsize}"
    same: HostArray = a.view(bits) == b.view(bits)
    return same
