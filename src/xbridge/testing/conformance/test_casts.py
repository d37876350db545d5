"""Casts: the library's own, or NumPy's if both agree; a cast to an unnamed dtype keeps every value.

Libraries agree on the result for a value that fits: it is exact, or rounded to the nearest, or truncated
towards zero to an integer. They differ for values that do not fit, so these tests do not cast any.
"""

from __future__ import annotations

from itertools import permutations, product
from typing import TYPE_CHECKING

import numpy as np

from xbridge import dtype_of, to_backend
from xbridge.errors import ValueLossError
from xbridge.extend import DTYPES, category, get_backend, is_inexact, native_dtype
from xbridge.testing.conformance._cases import (
    FULL_SHAPE,
    common_dtypes,
    edge_values,
    error_of,
    plain_array,
    read,
    same_bits,
    same_values,
    swept_dtypes,
    variants,
)
from xbridge.testing.samples.lookup import samples_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xbridge import Device
    from xbridge.protocol import HostArray

_WHOLE_NUMBERS = (*range(-5, 6), 100, -100, 127, 255)
_LARGE_NUMBERS = (2**24 + 1, 2**53 + 1, 2**62 + 1)
_POWERS = (7, 8, 15, 16, 31, 32, 63, 64)
_ENDS_OF_INTEGERS = tuple(sign * 2**n + step for n, sign, step in product(_POWERS, (1, -1), (-1, 0, 1)))
_FRACTIONS = (-0.0, 0.5, -0.5, 1.5, 2.5, -2.75, 0.1, 1 / 3, 1e-3, 3e4)
_TIES = (1 + 2**-9, 1 + 3 * 2**-9, 1 + 2**-11, 1 + 3 * 2**-12, 1 + 2**-24, 1 + 3 * 2**-24)
_ENDS = (float("inf"), float("-inf"), float("nan"))


def representable(dtype: str, other: str) -> tuple[HostArray, HostArray]:
    """Return values of a dtype that fit another one, and the same values cast by NumPy."""
    source, target = native_dtype(dtype), native_dtype(other)
    numbers: list[complex] = [
        n for n in (*_WHOLE_NUMBERS, *_LARGE_NUMBERS, *_ENDS_OF_INTEGERS) if _fits(n, dtype)
    ]
    if is_inexact(dtype):
        numbers += [*_FRACTIONS, *_TIES, *_ENDS]
    if category(dtype) == "complex":
        numbers += [complex(n.real, -n.real) for n in numbers]
    with np.errstate(all="ignore"):
        values = np.array(numbers).astype(source)
        values = values[[_fits(n, other) for n in values.tolist()]]
        there = values.astype(target)
        if _rounds_twice(dtype, other):
            exact = there.astype("c16") == values.astype("c16")
            values, there = values[exact], there[exact]
    return values, there


def _fits(n: complex, dtype: str) -> bool:
    """Return True if a number is within the range of a dtype."""
    if category(dtype) == "int":
        range_ = np.iinfo(dtype)
        return isinstance(n, (int, float)) and range_.min <= n <= range_.max
    if category(dtype) == "bool":
        return abs(n) < float("inf")
    return DTYPES[dtype].bits > 16 or not 6e4 < abs(n) < float("inf")


def _rounds_twice(dtype: str, other: str) -> bool:
    """Return True if libraries cast in two steps, or differ in their rounding."""
    one, two = DTYPES[dtype], DTYPES[other]
    return not (one.rounds_as_numpy and two.rounds_as_numpy) or (one.bits > 32 and two.bits < 32)


def casts(backend: str) -> Iterator[tuple[str, str, HostArray, HostArray]]:
    """Yield every pair of dtypes with a cast, with the values before and after it."""
    for dtype in swept_dtypes(backend):
        for other in swept_dtypes(backend):
            drops = category(dtype) == "complex" and category(other) not in ("complex", "bool")
            if not drops and (DTYPES[dtype].rounds_as_numpy or DTYPES[other].rounds_as_numpy):
                yield dtype, other, *representable(dtype, other)


# -- to a named dtype ----------------------------------------------------------------------------


def test_a_cast_within_the_library_rounds_like_numpy(backend: str) -> None:
    for dtype, other, values, there in casts(backend):
        x = plain_array(backend, values)
        for cast in (to_backend(x, backend, dtype=other), get_backend(backend).astype(x, other)):
            assert dtype_of(cast) == other
            assert same_values(read(backend, cast), there), f"{dtype} to {other}"
        assert same_bits(read(backend, x), values), "the source was changed"


def test_declared_host_casts_match_numpy_bit_for_bit(backend: str) -> None:
    module = get_backend(backend)
    for device in module.devices():
        for dtype, other in _host_casts(backend, device):
            with np.errstate(all="ignore"):
                small = edge_values(other if category(other) == category(dtype) else dtype, (40,)).astype(
                    dtype
                )
                close = np.array([tie + end for tie in _TIES for end in (2**-40, 0, -(2**-40))]).astype(dtype)
                for values in (small, close, *(edge_values(dtype, (40,), turn) for turn in range(4))):
                    x = plain_array(backend, values)
                    x = x if module.array_info(x).device == device else module.to_device(x, device)
                    own = read(backend, module.astype(x, other))
                    assert same_values(own, values.astype(other)), f"{dtype} to {other} on {device}"


def _host_casts(backend: str, device: Device) -> Iterator[tuple[str, str]]:
    """Yield the casts on a device that the backend declares to match NumPy."""
    module = get_backend(backend)
    for dtype, other in permutations(swept_dtypes(backend), 2):
        own = not module.host_only and module.cast_matches_numpy(dtype, other, device)
        said = own or (dtype, other) in module.host_casts
        if said and not (module.unsupported_dtype(dtype, device) or module.unsupported_dtype(other, device)):
            yield dtype, other


# -- to an unnamed dtype -------------------------------------------------------------------------


def narrowings(backend: str) -> Iterator[tuple[str, str]]:
    """Yield each dtype with each narrower dtype of its kind."""
    for dtype in swept_dtypes(backend):
        for other in common_dtypes(backend):
            wide, narrow = DTYPES[dtype], DTYPES[other]
            alike = wide.kind == narrow.kind and wide.rounds_as_numpy and narrow.rounds_as_numpy
            if alike and narrow.bits < wide.bits:
                yield dtype, other


def _exact_and_lossy(dtype: str, other: str) -> tuple[list[complex], list[list[complex]]]:
    """Return values that fit a narrower dtype, and lists with one value that does not."""
    if category(dtype) == "int":
        low, high = int(np.iinfo(other).min), int(np.iinfo(other).max)
        least = int(np.iinfo(dtype).min)
        return [low, high, 0, 1], [
            [high + 1, 0],
            [0, 0, high + 1],
            [low, low - 1] if least < low else [high + 1],
        ]
    small, large = (300.0, 1e6) if other == "float16" else (1e30, 1e39)
    kept = [0.1, -small, float("inf"), float("nan"), 0.0]
    with np.errstate(over="ignore"):
        if not np.isfinite(np.array(large).astype(native_dtype(dtype))):
            return [*kept], []
    lost: list[list[complex]] = [[large, 0.0], [0.0, -large, float("nan")]]
    return [*kept], [*lost, [complex(0, -large), 0j]] if category(dtype) == "complex" else lost


def test_check_cast_raises_if_a_value_would_be_lost(backend: str) -> None:
    module = get_backend(backend)
    for dtype, other in narrowings(backend):
        kind = native_dtype(dtype)
        kept, lost = _exact_and_lossy(dtype, other)
        for numbers in (kept, [], *kept):
            x = module.materialize(plain_array(backend, np.array(numbers, kind)))
            assert module.check_cast(x, other) is x, f"every value fits from {dtype} to {other}"
        for numbers in (*lost, *([*[0] * (1 << 12), one[0]] for one in lost[:1])):
            x = module.materialize(plain_array(backend, np.array(numbers, kind)))
            refused = error_of(module.check_cast, x, other)
            assert isinstance(refused, ValueLossError), f"{numbers} in {dtype}, unasked to {other}"


def test_check_cast_detects_loss_in_every_layout_and_on_every_device(backend: str) -> None:
    module, cases = get_backend(backend), samples_of(backend).cases
    lossy = {DTYPES[pair[0]].kind: pair for pair in narrowings(backend) if _exact_and_lossy(*pair)[1]}
    for device, (dtype, other), layout in product(module.devices(), lossy.values(), cases):
        there = not (module.unsupported_dtype(dtype, device) or module.unsupported_dtype(other, device))
        if not (there and cases[layout].takes(dtype, FULL_SHAPE)):
            continue
        values = np.full(FULL_SHAPE, _exact_and_lossy(dtype, other)[1][0][0], native_dtype(dtype))
        for sample in variants(backend, layout, values, device):
            nowhere = module.memory_layout(sample.array).is_unallocated()
            x = module.materialize(sample.array) if nowhere else sample.array
            assert isinstance(error_of(module.check_cast, x, other), ValueLossError), (layout, device)
