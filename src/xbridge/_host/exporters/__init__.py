"""Adapters of libraries whose tables and columns export memory and are not arrays.

An adapter says what an object announces about its values, and which call casts them. `generic` is for any
library, and those that need an adapter of their own have a module here. `INDEX` names them by the package
that types come from. So a library is imported only for an object of it, when it is there already.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from xbridge._core.dtypes import DTYPES, of_python
from xbridge._host.exporters.generic import Adapter

if TYPE_CHECKING:
    from collections.abc import Sequence

INDEX = ("pandas", "polars", "pyarrow")
"""The packages that have an adapter, in the module of that name here."""

_GENERIC = Adapter()

_MOST_LABELS = 8
"""The most columns that a hint lists."""

_ALIASES = {"boolean": "bool", "halffloat": "float16", "float": "float32", "double": "float64"}
"""Names of dtypes that differ from NumPy's. `float` is Arrow's float32; should another library mean float64,
the narrower one is the safe promise."""


def adapter_for(x: object) -> Adapter:
    """Return the adapter of the library that the type of an object, or one of its bases, comes from."""
    for base in type(x).__mro__:
        root = str(base.__module__).partition(".")[0]
        if root in INDEX:
            return _adapter_of(root)
    return _GENERIC


@cache
def _adapter_of(library: str) -> Adapter:
    made: Adapter = import_module(f"{__name__}.{library}").Adapter()
    return made


def columns_of(x: object) -> list[tuple[str, str]] | None:
    """Return a label and a dtype name for each kind of values in a table; None if `x` is not a table."""
    columns = adapter_for(x).columns(x)
    if columns is None:
        return None
    return [(f"column {label!r} is", name) for label, dtype in columns for name in names_of(dtype)]


def dtype_of(x: object) -> object:
    """Return the dtype that an object has, if it is not a table."""
    return adapter_for(x).dtype(x)


def name_of(dtype: object) -> str:
    """Return the name of a dtype in NumPy's terms: `int64` for `pandas.Int64Dtype`."""
    names = (getattr(dtype, "__name__", None), getattr(dtype, "name", None))
    name = next((word for word in names if isinstance(word, str)), str(dtype))
    return name.lower().partition("[")[0].rpartition(".")[2]


def hint_for_labels(call: str, labels: Sequence[object]) -> str | None:
    """Return the call that selects columns; None if there are none, or too many to read."""
    return call.format(labels) if 0 < len(labels) <= _MOST_LABELS else None


def names_of(dtype: object) -> list[str]:
    """Return the names of the dtypes that a dtype consists of: fields, elements, categories."""
    name = name_of(dtype)
    if name in DTYPES:
        return [name]
    inside = adapter_for(dtype).value_dtypes(dtype)
    if inside:
        return [word for part in inside for word in names_of(part)]
    return [of_python(dtype) or _ALIASES.get(name, name)]
