"""Adapters of libraries whose tables and columns export memory and are not arrays.

An adapter says what an object announces about its values, and which call casts them. The class here is for
any library, by attributes that arrays and data frames share. `INDEX` names the packages whose types have an
adapter of their own, in the module of that name here. So a library is imported only for an object of it, when
it is there already.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from xbridge._core.dtypes import DTYPES, of_python
from xbridge.errors import FOREIGN_ERRORS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xbridge._core.protocol import HostArray

INDEX = ("pandas", "polars", "pyarrow")

_MOST_LABELS = 8

_ALIASES = {"boolean": "bool", "halffloat": "float16", "float": "float32", "double": "float64"}
"""Names of dtypes that differ from NumPy's. `float` is Arrow's float32; should another library mean float64,
the narrower one is the safe promise."""


class Adapter:
    """Questions about the values of an exporter. The adapter of a library overrides what differs there."""

    def numbers(self, x: Any, dtype: str | None) -> tuple[HostArray, bool] | None:  # noqa: ARG002 -- for other adapters
        """Return the numbers of a column, with NaN for what is missing; None if the export has to tell.

        True beside them says that their memory is new, because some are missing. They have the dtype of the
        column. Integers and truth values of which some are missing become floats, if a cast to a dtype
        follows. So may the numbers of a table, whose columns are in one array then.
        """
        return None

    def table(self, x: Any) -> list[tuple[object, Any]] | None:
        """Return the labels of a table, and its columns or what has their dtypes; None if `x` names none."""
        for name in ("schema", "dtypes"):  # of data frames, after the examples of Arrow and pandas
            found = _value_of(x, name)
            if callable(getattr(found, "items", None)):
                return [(label, SimpleNamespace(dtype=dtype)) for label, dtype in found.items()]
        return None

    def value_dtypes(self, dtype: Any) -> list[object]:  # noqa: ARG002 -- for other adapters
        """Return the dtypes of the values in a nested or encoded dtype; nothing for any other dtype."""
        return []

    def count_missing(self, column: Any) -> int:
        """Return the number of missing values, if an export may have numbers in their places."""
        # Looked up in the class, because an attribute of the object may be an item by that label.
        count = getattr(column, "null_count", 0) if hasattr(type(column), "null_count") else 0
        return count if isinstance(count, int) else 0

    def hint(self, x: Any) -> str | None:
        """Return the call that gives numbers of an object with other values; None if there is none.

        Those are the columns of numbers in a table, or the integers that stand for times or categories.
        """
        is_time = str(dtype_of(x)).startswith(("datetime64", "timedelta64"))
        return "x.astype('int64')" if is_time and has_astype(x) else None


_GENERIC = Adapter()


def adapter_for(x: object) -> Adapter:
    """Return the adapter of the library that the type of an object, or one of its bases, comes from."""
    for base in type(x).__mro__:
        root = str(base.__module__).partition(".")[0]
        if root in INDEX:
            return _adapter_of(root)
    return _GENERIC


def is_generic(x: object) -> bool:
    """Return True for an object that is neither of a library with an adapter nor a table."""
    return adapter_for(x) is _GENERIC and _GENERIC.table(x) is None


def is_of_library(x: object) -> bool:
    """Return True if the type of an object, not only a base of it, comes from a library with an adapter."""
    return str(type(x).__module__).partition(".")[0] in INDEX


@cache
def _adapter_of(library: str) -> Adapter:
    found: Adapter = import_module(f"{__name__}.{library}").adapter
    return found


def columns_of(x: object) -> list[Any]:
    """Return the columns of a table, or an object by itself that is none, or hands out no columns."""
    adapter = adapter_for(x)
    table = None if adapter is _GENERIC else adapter.table(x)
    return [x] if table is None else [column for _, column in table]


def dtype_of(x: Any) -> object:
    """Return the dtype of an object that is not a table, which Arrow calls its type; None if it has none."""
    dtype = getattr(x, "dtype", None)
    return _value_of(x, "type") if dtype is None else dtype


def name_of(dtype: object) -> str:
    """Return the name of a dtype in NumPy's terms: `int64` for `pandas.Int64Dtype`."""
    names = (getattr(dtype, "__name__", None), getattr(dtype, "name", None))
    name = next((word for word in names if isinstance(word, str)), str(dtype))
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


def hint_for_labels(call: str, labels: Sequence[object]) -> str | None:
    """Return the call that selects columns; None if there are none, or too many to read."""
    return call.format(labels) if 0 < len(labels) <= _MOST_LABELS else None


def has_attribute(x: object, *names: str) -> bool:
    """Return True if an object or its class has one of some attributes, without a call of `__getattr__`."""
    for base in type(x).__mro__:
        if not vars(base).keys().isdisjoint(names):
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


def has_astype(x: object) -> bool:
    return any("astype" in vars(base) for base in type(x).__mro__)
