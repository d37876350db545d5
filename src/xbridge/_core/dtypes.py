"""Canonical dtype names, and what each one means.

A name is all that two libraries have in common, so the core reasons about names: which kind, how wide,
up to which integer every value is exact. The names are NumPy's and ml_dtypes'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class DType(NamedTuple):
    """What a canonical name means."""

    kind: str
    bits: int
    digits: int = 0
    """Of a floating dtype: every integer from -2**digits to 2**digits is exact."""


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
    "float8_e4m3fn": DType("float", 8, 4),
    "float8_e5m2": DType("float", 8, 3),
    "float8_e4m3fnuz": DType("float", 8, 4),
    "float8_e5m2fnuz": DType("float", 8, 3),
    "float8_e8m0fnu": DType("float", 8, 1),
    "bfloat16": DType("float", 16, 8),
    "float16": DType("float", 16, 11),
    "float32": DType("float", 32, 24),
    "float64": DType("float", 64, 53),
    "complex64": DType("complex", 64, 24),
    "complex128": DType("complex", 128, 53),
}

UNNAMED = ("default", "nearest")
"""What stands for a dtype that depends on the array and on the target."""

_PARTIAL = {
    "longdouble": DType("float", 128, 113),
    "clongdouble": DType("complex", 256, 113),
    "complex32": DType("complex", 32, 11),
}
"""Libraries' own numbers that have no canonical name, because hardly anybody else has them.

A long double is as wide as it is anywhere: on some machines it is less.
"""

_OTHER = DType("other", 0)

_INSTEAD = {
    "longdouble": "float64",
    "clongdouble": "complex128",
    "complex32": "complex64",
    "complex64": "complex128",
    "complex128": "complex64",
}

_PYTHON: dict[object, str] = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}


def is_numeric(name: str) -> bool:
    """Return True if the name means numbers of some library, with or without a canonical name."""
    return name in DTYPES or name in _PARTIAL


def of_python(dtype: object) -> str | None:
    """The name that Python's own number type stands for, with NumPy's meaning."""
    return _PYTHON.get(dtype) if isinstance(dtype, type) else None


def category(name: str) -> str:
    """`bool`, `int` (signed or not), `float`, `complex`, or `other` for a library's own dtype."""
    kind = _meaning(name).kind
    return "int" if kind == "uint" else kind


def is_inexact(name: str) -> bool:
    """Whether gradients can flow through the dtype."""
    return category(name) in ("float", "complex")


def instead(name: str) -> str:
    """What to type where a dtype does not exist."""
    near = _INSTEAD.get(name, "float32" if name in DTYPES else "")
    return f"dtype={near!r}" if near else "casting it in its own library first"


def exact_integers(name: str) -> tuple[int, int]:
    """The range in which every integer is a value of the dtype."""
    meaning = DTYPES[name]
    if meaning.kind == "int":
        return -(1 << meaning.bits - 1), (1 << meaning.bits - 1) - 1
    if meaning.kind == "uint":
        return 0, (1 << meaning.bits) - 1
    return -(1 << meaning.digits), 1 << meaning.digits


def holds_integers(name: str, low: int, high: int) -> bool:
    """Return True if every integer from `low` to `high` is a value of the dtype."""
    least, most = exact_integers(name)
    return least <= low and high <= most


def holds_every(narrow: str, wide: str) -> bool:
    """Whether every number of one dtype is one of the other; of a library's own dtypes nobody knows."""
    if narrow == wide:
        return True
    if wide not in DTYPES or wide == "float8_e8m0fnu":  # it has no zero
        return False
    given, other = _meaning(narrow), DTYPES[wide]
    if "bool" in (given.kind, other.kind):
        return given.kind == "bool"
    if category(narrow) == "int":
        return holds_integers(wide, *exact_integers(narrow))
    if (given.kind, other.kind) == ("float", "complex"):
        return 2 * given.bits <= other.bits
    reaches = (narrow, wide) != ("float8_e8m0fnu", "float16")
    return given.kind == other.kind and given.bits < other.bits and reaches


def no_wider(name: str, default: str) -> str:
    """`name`, narrowed to the default of its kind where it is wider than that."""
    meaning, limit = DTYPES[name], DTYPES[default]
    if meaning.bits <= limit.bits:
        return name
    return f"uint{limit.bits}" if meaning.kind == "uint" else default


def nearest(name: str, has: Callable[[str], bool]) -> str:
    """`name` if it is there; else the narrowest of its kind that holds its every value; else the widest.

    Among those of one width, one that has a sign like `name`, and then the one of more digits. `name` if no
    dtype of its kind is there.
    """
    if has(name):
        return name
    alike = [word for word in DTYPES if category(word) == category(name) and has(word)]
    holding = [word for word in alike if holds_every(name, word)]
    kind, sign = _meaning(name).kind, 1 if holding else -1

    def rank(word: str) -> tuple[int, bool, int]:
        meaning = DTYPES[word]
        return sign * meaning.bits, meaning.kind != kind, -meaning.digits

    return min(holding or alike, key=rank, default=name)


def _meaning(name: str) -> DType:
    """What any name means, a library's own word as well."""
    return DTYPES.get(name) or _PARTIAL.get(name) or _OTHER
