"""The canonical names of dtypes, and the facts that decide about casts between them.

The dtype objects of two libraries have nothing but their names in common. So the core works with names, those
of NumPy and ml_dtypes, and knows of each the kind, the width, and the range of integers that are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class DType(NamedTuple):
    """The facts about a dtype. Of a complex one, all but the width are those of its parts."""

    kind: str
    bits: int
    """The width of an item. In NumPy's memory it takes a byte at least."""
    digits: int = 0
    """The digits of a floating dtype: every integer up to 2**digits is exact, unless it reaches 2**most."""
    least: int = 0
    """The exponent of two of the least positive number of a floating dtype."""
    dlpack_code: int = 0
    """DLPack's code of the kind, for a dtype of whole bytes that NumPy gets from ml_dtypes."""
    rounds_as_numpy: bool = True
    """Whether libraries round to the dtype, and treat what is out of its range, as NumPy does."""
    is_signed: bool = True
    """False for a floating dtype with neither a sign nor a zero, whose numbers are powers of two."""
    most: int = 1024
    """Every number of a floating dtype is less than 2**most; 1024, as for float64, is no limit of its own."""

    @property
    def is_extended(self) -> bool:
        """True if NumPy lacks the dtype, and gets it from ml_dtypes."""
        return self.dlpack_code != 0 or self.is_packed

    @property
    def is_packed(self) -> bool:
        """True if libraries store several items in a byte, where NumPy takes a byte for each."""
        return self.bits < 8

    @property
    def is_finite(self) -> bool:
        """True for a floating dtype that has neither NaN nor infinity."""
        return self.kind == "float" and self.is_packed

    @property
    def itemsize(self) -> int:
        """The bytes that an item takes in memory."""
        return max(self.bits, 8) // 8


DTYPES = {
    "bool": DType("bool", 8),
    "int8": DType("int", 8),
    "int16": DType("int", 16),
    "int32": DType("int", 32),
    "int64": DType("int", 64),
    "uint8": DType("uint", 8),
    "uint16": DType("uint", 16),
    "uint32": DType("uint", 32),
    "uint64": DType("uint", 64),
    "float8_e3m4": DType("float", 8, 5, -6, 7, rounds_as_numpy=False, most=4),
    "float8_e4m3": DType("float", 8, 4, -9, 8, rounds_as_numpy=False, most=8),
    "float8_e4m3b11fnuz": DType("float", 8, 4, -13, 9, rounds_as_numpy=False, most=5),
    "float8_e4m3fn": DType("float", 8, 4, -9, 10, rounds_as_numpy=False, most=9),
    "float8_e5m2": DType("float", 8, 3, -16, 12, rounds_as_numpy=False),
    "float8_e4m3fnuz": DType("float", 8, 4, -10, 11, rounds_as_numpy=False),
    "float8_e5m2fnuz": DType("float", 8, 3, -17, 13, rounds_as_numpy=False),
    "float8_e8m0fnu": DType("float", 8, 1, -127, 14, rounds_as_numpy=False, is_signed=False),
    "bfloat16": DType("float", 16, 8, -133, 4),
    "float16": DType("float", 16, 11, -24),
    "float32": DType("float", 32, 24, -149),
    "float64": DType("float", 64, 53, -1074),
    "complex64": DType("complex", 64, 24, -149),
    "complex128": DType("complex", 128, 53, -1074),
    "int2": DType("int", 2),
    "int4": DType("int", 4),
    "uint2": DType("uint", 2),
    "uint4": DType("uint", 4),
    "float4_e2m1fn": DType("float", 4, 2, -1, rounds_as_numpy=False, most=3),
    "float6_e2m3fn": DType("float", 6, 4, -3, rounds_as_numpy=False, most=3),
    "float6_e3m2fn": DType("float", 6, 3, -4, rounds_as_numpy=False, most=5),
}

UNNAMED = ("default", "nearest")
"""Values of the option `dtype` that name no dtype: the array and the target decide which one is meant."""

_NUMERIC = {
    **DTYPES,
    "longdouble": DType("float", 128, 113, -16494),
    "clongdouble": DType("complex", 256, 113, -16494),
    "complex32": DType("complex", 32, 11, -24),
    "bcomplex32": DType("complex", 32, 8, -133),
}
"""All numeric dtypes: the canonical ones, and those of few libraries, which have no canonical name.

A long double has the width and digits of its largest form; on some machines it has fewer.
"""

_PYTHON: dict[object, str] = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}


def is_numeric(name: str) -> bool:
    """Return True if the name means numbers, with or without a canonical name."""
    return name in _NUMERIC


def of_python(dtype: object) -> str | None:
    """Return the dtype that a number type of Python stands for in NumPy; None for another object."""
    return _PYTHON.get(dtype) if isinstance(dtype, type) else None


def category(name: str) -> str:
    """Return `bool`, `int` (signed or not), `float`, `complex`, or `other` for a library's own dtype."""
    kind = _look_up(name).kind
    return "int" if kind == "uint" else kind


def is_inexact(name: str) -> bool:
    """Return True if gradients can flow through the dtype."""
    return category(name) in ("float", "complex")


def keeps_complex(name: str) -> bool:
    """Return True if a cast from a complex dtype does not just drop the imaginary part.

    A cast to bool tests whether the number is zero, and an object dtype keeps the number.
    """
    return category(name) == "complex" or name in ("bool", "object")


def exact_integers(name: str) -> tuple[int, int]:
    """Return the range in which every integer is a value of the dtype."""
    meaning = DTYPES[name]
    if meaning.kind == "bool":
        return 0, 1
    if not meaning.is_signed:
        return 1, 2
    if meaning.kind == "int":
        return -(1 << meaning.bits - 1), (1 << meaning.bits - 1) - 1
    if meaning.kind == "uint":
        return 0, (1 << meaning.bits) - 1
    limit = min(1 << meaning.digits, (1 << meaning.most) - 1)
    return -limit, limit


def holds_integers(name: str, low: int, high: int) -> bool:
    """Return True if every integer from `low` to `high` is a value of the dtype."""
    least, most = exact_integers(name)
    return least <= low and high <= most


def holds_every(narrow: str, wide: str) -> bool:
    """Return True if every value of one dtype is a value of the other; False for a library's own dtype."""
    if narrow == wide:
        return True
    if wide not in DTYPES or not DTYPES[wide].is_signed:
        return False
    given, other = _look_up(narrow), DTYPES[wide]
    if "bool" in (given.kind, other.kind):
        return given.kind == "bool"
    if category(narrow) == "int":
        return holds_integers(wide, *exact_integers(narrow))
    if (given.kind, other.kind) == ("float", "complex"):
        return 2 * given.bits <= other.bits
    ranges = given.least >= other.least and given.most <= other.most and given.digits <= other.digits
    return given.kind == other.kind and given.bits < other.bits and ranges


def no_wider(name: str, default: str) -> str:
    """Return `name`, narrowed to the default of its kind if it is wider than that."""
    meaning, limit = DTYPES[name], DTYPES[default]
    if meaning.bits <= limit.bits:
        return name
    return f"uint{limit.bits}" if meaning.kind == "uint" else default


def nearest(name: str, has: Callable[[str], bool]) -> str:
    """Return the dtype nearest to `name` among those that a target has.

    The first choice is `name` itself, the second the narrowest dtype of its kind that holds all its values,
    and the third the widest of its kind. Among dtypes of one width, one that is signed or unsigned like
    `name` is preferred, then one with more digits. The result is `name` if there is none of its kind.
    """
    if has(name):
        return name
    alike = [word for word in DTYPES if category(word) == category(name) and has(word)]
    holding = [word for word in alike if holds_every(name, word)]
    kind, sign = _look_up(name).kind, 1 if holding else -1

    def rank(word: str) -> tuple[int, bool, int]:
        meaning = DTYPES[word]
        return sign * meaning.bits, meaning.kind != kind, -meaning.digits

    return min(holding or alike, key=rank, default=name)


def _look_up(name: str) -> DType:
    """Return the facts about a dtype; its kind is `other` if the name is a library's own."""
    return _NUMERIC.get(name) or DType("other", 0)
