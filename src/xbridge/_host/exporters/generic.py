"""The adapter for libraries without one of their own, by attributes that arrays and data frames share."""

from __future__ import annotations

from typing import Any

from xbridge.errors import FOREIGN_ERRORS


class Adapter:
    """Questions about the values of an exporter. The adapter of a library overrides what differs there."""

    def columns(self, x: Any) -> list[tuple[object, object]] | None:
        """Return the labels and the dtypes of the columns of a table; None if `x` names none."""
        for name in ("schema", "dtypes"):  # of data frames, after the examples of Arrow and pandas
            found = _value_of(x, name)
            if callable(getattr(found, "items", None)):
                return list(found.items())
        return None

    def plain(self, x: Any) -> Any:  # noqa: ARG002 -- for other adapters
        """Return the values of an object that says by its type alone that it exports just them; else None."""
        return None

    def dtype(self, x: Any) -> object:
        """Return the dtype of an object that is not a table, which Arrow calls its type."""
        dtype = getattr(x, "dtype", None)
        return _value_of(x, "type") if dtype is None else dtype

    def value_dtypes(self, dtype: Any) -> list[object]:  # noqa: ARG002 -- for other adapters
        """Return the dtypes of the values in a nested or encoded dtype; nothing for any other dtype."""
        return []

    def count_missing(self, x: Any) -> int:
        """Return the number of missing values, if an export may have numbers in their places."""
        # Looked up in the class, because an attribute of the object may be an item by that label.
        count = getattr(x, "null_count", 0) if hasattr(type(x), "null_count") else 0
        return count if isinstance(count, int) else 0

    def cast_hint(self, x: Any, dtype: str) -> str | None:
        """Return the call that casts all values to `dtype`, if the object has one itself."""
        return f"x.astype({dtype!r})" if _has_astype(x) else None

    def numbers_hint(self, x: Any) -> str | None:  # noqa: ARG002 -- for other adapters
        """Return the call that selects the columns of numbers in a table; None if there is none."""
        return None

    def codes_hint(self, x: Any) -> str | None:
        """Return the call that gives the integers of time values; None for other values."""
        is_time = str(self.dtype(x)).startswith(("datetime64", "timedelta64"))
        return "x.astype('int64')" if is_time and _has_astype(x) else None

    def parts(self, x: Any) -> list[Any] | None:  # noqa: ARG002 -- for other adapters
        """Return the columns of a table, or a column itself, in a list; None if they cannot be cast."""
        return None

    def as_floats(self, x: Any) -> Any:
        """Return a column of numbers as float64, with NaN where a value is missing."""
        return x


def has_attribute(x: object, *names: str) -> bool:
    """Return True if an object or its class has one of some attributes, without a call of `__getattr__`."""
    for base in type(x).__mro__:
        members = vars(base)
        for name in names:
            if name in members:
                return True
    if type(x).__dictoffset__ == 0:
        return False
    try:
        own = object.__getattribute__(x, "__dict__")
    except FOREIGN_ERRORS:  # a proxy finds no object that it stands for
        return False
    return type(own) is dict and not own.keys().isdisjoint(names)  # a class has a mapping, of its objects'


def _value_of(x: Any, name: str) -> Any:
    """Return an attribute of the class of an object, or what its method of that name returns, or None."""
    found = getattr(x, name, None) if hasattr(type(x), name) else None
    return found() if callable(found) and not isinstance(found, type) else found


def _has_astype(x: object) -> bool:
    return any("astype" in vars(base) for base in type(x).__mro__)
