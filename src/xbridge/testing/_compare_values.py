"""Comparisons of the values of two arrays: by their bits, or as numbers within a tolerance.

NumPy compares an int64 with a float64 as two float64, and there 2**53 + 1 equals 2**53. Here an integer is
the sum of two halves, each exact in float64. So numbers of any two dtypes compare exactly.
"""

from __future__ import annotations

from numbers import Real
from sys import float_info
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from xbridge.errors import OptionError
from xbridge.extend import DTYPES, is_inexact

if TYPE_CHECKING:
    from xbridge.protocol import HostArray

Bools: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"

_WIDE = {"bool": "uint64", "uint": "uint64", "int": "int64", "float": "float64", "complex": "complex128"}
_TOLERANCES = {
    "float64": (1e-7, 1e-7),
    "float32": (1.3e-6, 1e-5),
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "complex128": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5),
    **{
        name: (2.0 ** (1 - it.digits), 2.0**it.least)
        for name, it in DTYPES.items()
        if it.kind == "float" and it.bits <= 8 and it.is_signed
    },
}
"""The relative and absolute tolerance of each dtype: those of `torch.testing`; for float8, one step."""


class Tolerance(NamedTuple):
    """The tolerance of a comparison."""

    relative: float
    absolute: float
    equal_nan: bool

    @classmethod
    def of(
        cls,
        *dtypes: str,
        rtol: float | None = None,
        atol: float | None = None,
        ulp: float | None = None,
        equal_nan: bool,
    ) -> Tolerance:
        """Return the given tolerances, or those of the coarser dtype; an exact dtype has none."""
        if ulp is not None and (rtol is not None or atol is not None):
            raise OptionError.build("compare with rtol or atol and ulp", "one of them decides", "ulp=4")
        for name, asked in {"rtol": rtol, "atol": atol, "ulp": ulp}.items():
            if asked is not None and not (isinstance(asked, Real) and 0 <= asked <= float_info.max):
                raise OptionError.build(
                    f"compare with {name}={asked!r}", "a tolerance is a number from 0 up", f"{name}=1e-6"
                )
        usual = [_TOLERANCES.get(dtype, (0.0, 0.0)) for dtype in dtypes]
        if ulp is not None:
            known = [DTYPES[dtype] for dtype in dtypes if is_inexact(dtype)]
            usual = [(ulp * 2.0 ** (1 - it.digits), ulp * 2.0**it.least) for it in known] or usual
        relative, absolute = map(max, zip(*usual, strict=True))
        return cls(
            float(relative if rtol is None else rtol), float(absolute if atol is None else atol), equal_nan
        )

    def agree(self, actual: HostArray, expected: HostArray) -> Bools:
        """Return a mask of the values that are close to those expected."""
        error = _distance(_wide(actual), _wide(expected))
        with np.errstate(all="ignore"):
            near = np.isfinite(error) & (error <= self.absolute + self.relative * _size(expected))
        close: Bools = near | (error == 0)
        return close | (np.isnan(actual) & np.isnan(expected)) if self.equal_nan else close

    def explain(self, actual: HostArray, expected: HostArray, wrong: Bools) -> list[str]:
        """Return lines on the tolerance and the largest errors."""
        error = _distance(_wide(actual), _wide(expected))
        with np.errstate(all="ignore"):
            errors = {"absolute": error, "relative": error / _size(expected)}
        allowed = f"  allowed: {self.absolute} + {self.relative} * abs(expected), equal_nan={self.equal_nan}"
        return [allowed, *(_largest(kind, np.where(wrong, error, 0.0)) for kind, error in errors.items())]


def _largest(kind: str, error: HostArray) -> str:
    """Return a line on the largest error; NaN counts as the largest."""
    worst = np.unravel_index(int(np.nan_to_num(error, nan=np.inf).argmax()), error.shape)
    return f"  largest {kind} error: {error[worst]} at {tuple(map(int, worst))}"


def words(values: HostArray) -> HostArray:
    """View the bits of each number; the last axis has one entry, or two for a complex number."""
    parts = 1 + (values.dtype.kind == "c")
    return values.reshape(-1).view(f"u{values.itemsize // parts}").reshape((*values.shape, parts))


def less(a: HostArray, b: HostArray) -> Bools:
    """Return a mask of the numbers below others; NaN is below nothing."""
    (high_a, low_a), (high_b, low_b) = _halves(_wide(a)), _halves(_wide(b))
    with np.errstate(all="ignore"):
        below: Bools = np.where(high_a == high_b, low_a < low_b, (high_a - high_b) + (low_a - low_b) < 0)
    return below


def same_bits(a: HostArray, b: HostArray) -> Bools:
    """Return a mask of equal bits, or of equal numbers if the dtypes differ."""
    if a.dtype != b.dtype:
        return same_numbers(a, b)
    return np.asarray((words(a) == words(b)).all(axis=-1))


def same_numbers(a: HostArray, b: HostArray) -> Bools:
    """Return a mask of equal numbers, or NaN in both, part by part."""
    a, b = _wide(a), _wide(b)
    pairs = ((np.real(a), np.real(b)), (np.imag(a), np.imag(b)))
    real, imag = ((_distance(x, y) == 0) | (np.isnan(x) & np.isnan(y)) for x, y in pairs)
    same: Bools = real & imag
    return same


def _size(values: HostArray) -> HostArray:
    """Return absolute values in float64."""
    return _distance(_wide(values), np.zeros((), np.uint64))


def _wide(values: HostArray) -> HostArray:
    """Cast to the widest dtype of the kind, which holds every value of it."""
    with np.errstate(all="ignore"):
        return values.astype(_WIDE[DTYPES[values.dtype.name].kind])


def _distance(a: HostArray, b: HostArray) -> HostArray:
    """Return the distance of numbers: 0 only if they are equal, NaN if it is undefined."""
    (high_a, low_a), (high_b, low_b) = _halves(a), _halves(b)
    with np.errstate(all="ignore"):
        distance: HostArray = np.abs((high_a - high_b) + (low_a - low_b))
    return np.where((high_a == high_b) & (low_a == low_b), 0.0, distance)


def _halves(values: HostArray) -> tuple[HostArray, HostArray]:
    """Return two arrays whose sum is `values`, each exact in float64."""
    if values.dtype.kind not in "iu":
        return values, np.zeros(values.shape)
    low = values & np.asarray(0xFFFF_FFFF, values.dtype)
    return (values - low).astype(np.float64), low.astype(np.float64)
