"""Comparisons of two arrays: by their facts and bits, or as numbers within a tolerance, with a report.

An array is read once into a `Look`, so that it can be compared with a later one. The values are read by the
library's own means, never by a conversion, because assertions about conversions must not depend on them.
Different values that print the same are shown by their bits.

NumPy compares an int64 with a float64 as two float64, and there 2**53 + 1 equals 2**53. Here an integer is
the sum of two halves, each exact in float64. So numbers of any two dtypes compare exactly.
"""

from __future__ import annotations

from numbers import Real
from sys import float_info
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from xbridge.errors import DTypeError, OptionError, UnsupportedArrayError, type_of, with_article
from xbridge.extend import DTYPES, HOST, backend_for, get_backend, is_inexact
from xbridge.testing._raw_memory import in_place
from xbridge.testing.samples.lookup import samples_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from xbridge import Device
    from xbridge.protocol import Array, Backend, HostArray

Bools: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"

_SHOWN = 5
"""The number of differing values that are shown."""


class Look(NamedTuple):
    """The facts of an array that can be compared."""

    backend: str
    dtype: str
    device: Device
    shape: tuple[int, ...]
    grad: bool
    """True if the array requires grad."""
    values: HostArray

    def __str__(self) -> str:
        tracked = ", requires grad" if self.grad else ""
        return f"{self.backend} {self.dtype} array of shape {self.shape} on {self.device}{tracked}"


def get_library(backend: str) -> str:
    """Return the name of a backend, or of the one that it stands for."""
    return HOST if backend == "numpy_readonly" else backend


def resolve(x: Array, asked: str) -> tuple[Backend, Array]:
    """Return the backend of an array and the array, of a NumPy scalar as 0-d; raise if it cannot be read."""
    backend = backend_for(type(x))
    if backend is None:
        raise UnsupportedArrayError.build(
            f"{asked} {type_of(x)}",
            "it is not an array of a known library",
            "xbridge.asarray(x, like=y) with the array that it belongs to",
        )
    if isinstance(x, backend.scalar_types):
        backend, x = get_backend(HOST), np.asarray(x)
    dtype, refused = backend.array_info(x).dtype, backend.unsupported(x, leaving=True)
    asked = f"{asked} {with_article(backend.name)} {dtype} array"
    if refused:
        raise refused.error.build(asked, refused.reason, refused.hint)
    if dtype not in DTYPES:
        raise DTypeError.build(asked, "not every library could have its values")
    return backend, x


def look(x: Array) -> Look:
    """Read an array of any library."""
    return look_in(*resolve(x, "compare"))


def look_in(backend: Backend, x: Array) -> Look:
    """Return the facts about an array that a comparison needs, and a copy of its values."""
    info = backend.array_info(x)
    values = samples_of(backend.name).read(x)
    return Look(backend.name, info.dtype, info.device, tuple(info.shape), info.requires_grad, values)


def differences(
    a: Look,
    b: Look,
    info: Iterable[str],
    agree: Callable[[HostArray, HostArray], Bools],
    *,
    names: tuple[str, str] = ("actual", "expected"),
    explain: Callable[[HostArray, HostArray, Bools], list[str]] | None = None,
) -> list[str]:
    """Return the lines of the report on two arrays: none if the facts are equal and the values agree.

    Values are compared as NumPy broadcasts them, unless the shape is one of the facts and differs. The lines
    of `explain` follow the first few wrong values.
    """
    unlike = [fact for fact in info if _fact(a, fact) != _fact(b, fact)]
    lines = []
    if "shape" not in unlike:
        try:
            x, y = np.broadcast_arrays(a.values, b.values)
        except ValueError:
            unlike.append("shape")
        else:
            wrong = ~np.asarray(agree(x, y))
            if wrong.any():
                lines = _table(names, x, y, wrong) + (explain(x, y, wrong) if explain else [])
                unlike.append(f"{wrong.sum()} of {wrong.size} values")
    if not unlike:
        return []
    heads = [f"  {name:<{max(map(len, names))}}  {each}" for name, each in zip(names, (a, b), strict=True)]
    return [f"the arrays differ in {_listed(unlike)}:", *heads, *lines]


def _fact(a: Look, fact: str) -> object:
    return get_library(a.backend) if fact == "backend" else getattr(a, fact)


def fail_if(lines: list[str], what: str = "") -> None:
    """Raise an AssertionError with the lines, if there are any."""
    __tracebackhide__ = True
    if lines:
        raise AssertionError("\n".join([f"{what}:", *lines] if what else lines))


def _table(names: tuple[str, str], x: HostArray, y: HostArray, wrong: Bools) -> list[str]:
    """Return a table of the first few wrong values, under the names of the arrays."""
    rows = [("at", *names, "")]
    for index in np.argwhere(wrong)[:_SHOWN].tolist():
        a, b = x[*index, ...], y[*index, ...]
        rows.append((str(tuple(index)), str(a), str(b), _hint(a, b)))
    wide = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"  {i:<{wide[0]}}  {a:<{wide[1]}}  {b:<{wide[2]}}  {hint}".rstrip() for i, a, b, hint in rows]
    more = int(wrong.sum()) + 1 - len(rows)
    return [*lines, f"  and {more} more"] if more else lines


def _hint(a: HostArray, b: HostArray) -> str:
    """Return a description of the difference between two values that print the same."""
    if not same_numbers(a, b):
        return f"exactly {a.item()!r} and {b.item()!r}" if str(a) == str(b) else ""
    if same_bits(a, b):
        return ""
    what = "NaNs" if np.isnan(a) else "bits" if a else "zeros"
    return f"different {what}: {_hex(a)} and {_hex(b)}"


def _hex(value: HostArray) -> str:
    """Return the bits of a number, part by part."""
    parts = words(value)
    return " ".join(f"0x{int(part):0{2 * parts.itemsize}x}" for part in parts)


def _listed(things: list[str]) -> str:
    return " and ".join([", ".join(things[:-1]), things[-1]] if things[1:] else things)


# -- values --------------------------------------------------------------------------------------

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


# -- addresses -----------------------------------------------------------------------------------


def overlap(a: Array, b: Array) -> bool:
    """Return True if two arrays have a byte in common. No memory is read, so it may be that of a device."""
    entered = resolve(a, "locate"), resolve(b, "locate")
    one, other = (in_place(backend.memory_layout(x)) for backend, x in entered)
    return bool(np.shares_memory(one, other))


def places(*arrays: Array) -> list[str]:
    """Return a line on each array and its address range."""
    lines = []
    for backend, x in (resolve(array, "locate") for array in arrays):
        info, layout = backend.array_info(x), backend.memory_layout(x)
        low, high = (layout.address + end for end in layout.span())
        what = f"{backend.name} {info.dtype} array of shape {info.shape} on {info.device}"
        lines.append(f"  {what}: bytes {low:#x} to {high:#x}, strides {layout.strides}")
    return lines
