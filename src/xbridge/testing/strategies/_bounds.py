"""Elements that the caller gives: bounds, or a strategy whose numbers the dtype must hold exactly.

A number that the dtype would round is an error that names it: a test of rounded numbers is not the test that
the caller wrote.
"""

from __future__ import annotations

from sys import float_info
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from xbridge.errors import DTypeError, OptionError
from xbridge.extend import category, native_dtype

if TYPE_CHECKING:
    Bounds: TypeAlias = tuple[float, float]
    Bound: TypeAlias = float | np.number[Any]
    Elements: TypeAlias = st.SearchStrategy[Any] | tuple[Bound, Bound] | None
    Checked: TypeAlias = st.SearchStrategy[Any] | Bounds | None


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
