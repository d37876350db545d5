"""Adapter for exporters of any library, by the attributes that arrays and data frames share."""

from __future__ import annotations

from typing import Any


class Adapter:
    """What objects of a library say about their values. A library's own adapter overrides what differs."""

    def columns(self, x: Any) -> list[tuple[object, object]] | None:
        """Return the labels and the dtypes of the columns of a table; None if `x` is not a table."""
        dtypes: Any = getattr(x, "dtypes", None)  # of data frames, after the example of pandas
        return list(dtypes.items()) if callable(getattr(dtypes, "items", None)) else None

    def dtype(self, x: Any) -> object:
        """Return the dtype of an object that is not a table, which Arrow calls its type."""
        return getattr(x, "dtype", getattr(x, "type", None))

    def value_dtypes(self, dtype: Any) -> list[object]:  # noqa: ARG002 -- for other adapters
        """Return the dtypes of the values in a nested or encoded dtype; nothing for any other dtype."""
        return []

    def count_missing(self, x: Any) -> int:
        """Return how many values are missing, if an export may have numbers for them."""
        # It is looked up in the class: an attribute of a column may be an item with that label.
        count = getattr(x, "null_count", 0) if hasattr(type(x), "null_count") else 0
        return count if isinstance(count, int) else 0

    def cast_hint(self, x: Any, dtype: str) -> str | None:
        """Return the call that casts all values to `dtype`, or to a float at least as wide."""
        return f"x.astype({dtype!r})" if _has_astype(x) else None

    def numbers_hint(self, x: Any) -> str | None:
        """Return the call that reads the numbers of an object whose values are not all numbers."""
        if not _has_astype(x):
            return None
        return "x.astype(float) if it spells numbers, or asarray(x.tolist()) if it holds lists"

    def codes_hint(self, x: Any) -> str | None:
        """Return the call that reads the integers which stand for times; None for other values."""
        is_time = str(self.dtype(x)).startswith(("datetime64", "timedelta64"))
        return "x.astype('int64')" if is_time and _has_astype(x) else None

    def cast_table(self, x: Any, dtype: str) -> object:  # noqa: ARG002 -- for other adapters
        """Return a table that exports objects with all columns in one dtype; None if that has no use."""
        return None


def _has_astype(x: object) -> bool:
    return any("astype" in vars(base) for base in type(x).__mro__)
