"""Adapters of libraries whose tables and columns export memory and are not arrays.

An adapter is a module with the functions of `Adapter`. It says what an object of its library announces about
its values, and which call casts them. `INDEX` names the adapters by the package that types come from, so that
a library is imported only if an object of it turns up, when it is imported already.
"""

# pyright: reportReturnType=false
# The methods of a protocol consist of their docstrings.

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

from xbridge._core.dtypes import DTYPES, of_python
from xbridge._host.exporters import generic

INDEX = ("pandas", "polars", "pyarrow")
"""The packages that have an adapter, which is the module of that name here."""

_ALIASES = {"boolean": "bool", "halffloat": "float16", "float": "float32", "double": "float64"}
"""Names of dtypes that differ from NumPy's. The narrower meaning of `float` is the safe one to promise."""


class Adapter(Protocol):
    """What `xbridge` asks of a library; `generic` answers for objects of any other library."""

    def columns(self, x: Any) -> list[tuple[object, object]] | None:
        """Return the labels and the dtypes of the columns of a table; None if `x` is not a table."""

    def dtype(self, x: Any) -> object:
        """Return the dtype of an object that is not a table; None if it has none."""

    def value_dtypes(self, dtype: Any) -> list[object]:
        """Return the dtypes of the values in a nested or encoded dtype; nothing for any other dtype."""

    def count_missing(self, x: Any) -> int:
        """Return how many values are missing, if an export has numbers for them."""

    def cast_hint(self, x: Any, dtype: str) -> str | None:
        """Return the call that casts all values to `dtype`, or to a float at least as wide."""

    def numbers_hint(self, x: Any) -> str | None:
        """Return the call that reads the numbers of an object whose values are not all numbers."""

    def cast_table(self, x: Any, dtype: str) -> object:
        """Return a table that exports objects with all columns in one dtype; None if that has no use."""


def adapter_for(x: object) -> Adapter:
    """Return the adapter of the library that the type of an object, or one of its bases, comes from."""
    for base in type(x).__mro__:
        root = str(base.__module__).partition(".")[0]
        if root in INDEX:
            adapter: Any = import_module(f"{__name__}.{root}")
            return adapter  # type: ignore[no-any-return] # a module has the functions of a protocol
    return generic


def columns_of(x: object) -> list[tuple[str, str]] | None:
    """Return a label and the name of a dtype for each kind of values in a table; None if `x` is not one."""
    columns = adapter_for(x).columns(x)
    if columns is None:
        return None
    return [(f"column {label!r} is", name) for label, dtype in columns for name in names_of(dtype)]


def dtype_of(x: object) -> object:
    """Return the dtype that an object has, if it is not a table."""
    return adapter_for(x).dtype(x)


def name_of(dtype: object) -> str:
    """Return the name of a dtype that libraries have in common: `int64` for `pandas.Int64Dtype`."""
    name = str(getattr(dtype, "__name__", dtype))
    return name.lower().partition("[")[0].rpartition(".")[2]


def names_of(dtype: object) -> list[str]:
    """Return the names of the dtypes that a dtype consists of: fields, elements, categories."""
    name = name_of(dtype)
    if name in DTYPES:
        return [name]
    inside = adapter_for(dtype).value_dtypes(dtype)
    if inside:
        return [word for part in inside for word in names_of(part)]
    return [of_python(dtype) or _ALIASES.get(name, name)]
