"""Adapter for exporters of all other libraries, by the attributes that arrays and data frames share."""

from __future__ import annotations

from typing import Any


def columns(x: Any) -> list[tuple[object, object]] | None:
    """Return the items of `dtypes`, which data frames have after the example of pandas."""
    dtypes: Any = getattr(x, "dtypes", None)
    return list(dtypes.items()) if callable(getattr(dtypes, "items", None)) else None


def dtype(x: Any) -> object:
    """Return `dtype`, or `type`, its name in Arrow."""
    return getattr(x, "dtype", getattr(x, "type", None))


def value_dtypes(dtype: object) -> list[object]:
    """Return nothing: what a nested dtype consists of is not known."""
    return []


def count_missing(x: Any) -> int:
    """Return `null_count`, its name in Arrow, if it is a number."""
    # It is looked up in the class: an attribute of a column may be an item with that label.
    count = getattr(x, "null_count", 0) if hasattr(type(x), "null_count") else 0
    return count if isinstance(count, int) else 0


def cast_hint(x: object, dtype: str) -> str | None:
    """Return a call of `astype`, if the class has it."""
    return f"x.astype({dtype!r})" if _has_astype(x) else None


def numbers_hint(x: object) -> str | None:
    """Return a call of `astype`, if the class has it."""
    return "x.astype(float) if it spells numbers, or x.tolist()" if _has_astype(x) else None


def cast_table(x: object, dtype: str) -> object:
    """Return None: whether a cast keeps what is missing is not known."""
    return None


def _has_astype(x: object) -> bool:
    return any("astype" in vars(base) for base in type(x).__mro__)
