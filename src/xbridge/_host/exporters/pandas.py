"""Adapter for pandas: data frames, series, indexes and extension arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from pandas.api.extensions import ExtensionArray, ExtensionDtype

from xbridge._core.dtypes import is_inexact, keeps_complex
from xbridge._core.protocol import HostArray
from xbridge._host.exporters import Adapter, adapter_for, hint_for_labels, names_of
from xbridge._host.memory import NATIVE, native_dtype

_UNITS = frozenset(("unit", "units"))
_Masked: Any = pd.BooleanDtype.__base__
"""The class of dtypes with NumPy's numbers and a mask."""


class _PandasAdapter(Adapter):
    """pandas exports NaN, NaT or an object for a missing value. All of its objects have `astype`."""

    def plain(self, x: Any) -> Any:
        """Return the values of a series or a data frame of one of NumPy's numeric dtypes."""
        dtypes = _dtypes_of(x)
        if len(dtypes) != 1 or not _UNITS.isdisjoint(vars(x)):  # which the check of an export refuses
            return None
        (dtype,) = dtypes
        if dtype in NATIVE:
            return x.to_numpy()
        is_whole = type(x) is pd.Series and isinstance(dtype, _Masked) and not self.count_missing(x)
        return x.to_numpy(dtype.numpy_dtype) if is_whole else None

    def cast(self, x: Any, dtype: str) -> HostArray | None:
        """Return a series or a data frame in a dtype of NumPy's that has NaN for what is missing."""
        dtypes = _dtypes_of(x)
        natives = _natives_of(dtypes)
        drops_parts = not keeps_complex(dtype) and any(native.kind == "c" for native in natives)
        has_nan = is_inexact(dtype) and native_dtype(dtype) in NATIVE
        if not natives or drops_parts or not has_nan or not _UNITS.isdisjoint(vars(x)):
            return None
        options = {} if natives == dtypes else {"na_value": np.nan}
        with np.errstate(all="ignore"):
            host: HostArray = x.to_numpy(native_dtype(dtype), copy=True, **options)
        return host

    def table(self, x: Any) -> list[tuple[object, Any]] | None:
        """Return the columns of a data frame, or the levels of an index."""
        if isinstance(x, pd.MultiIndex):
            labels = [f"level_{i}" if name is None else name for i, name in enumerate(x.names)]
            return [(label, x.get_level_values(i)) for i, label in enumerate(labels)]
        return list(x.items()) if isinstance(x, pd.DataFrame) else None

    def value_dtypes(self, dtype: Any) -> list[object]:
        """Return the dtype of categories, of sparse values, or of Arrow's values."""
        if isinstance(dtype, pd.CategoricalDtype):
            return [] if dtype.categories is None else [dtype.categories.dtype]
        if isinstance(dtype, pd.ArrowDtype):
            return [dtype.pyarrow_dtype]
        return [dtype.subtype] if isinstance(dtype, pd.SparseDtype) else []

    def is_flat(self, column: Any) -> bool:
        """Return True for a series, an index or an array, unless Arrow nests its values."""
        is_nested = isinstance(column.dtype, pd.ArrowDtype) and column.dtype.type in (list, dict)
        return isinstance(column, (pd.Series, pd.Index, ExtensionArray)) and not is_nested

    def count_missing(self, column: Any) -> int:
        """Return the number of missing values, if a dtype of pandas' own may hide some in an export.

        Those inside of Arrow's values count too.
        """
        dtype = getattr(column, "dtype", None)
        if not isinstance(dtype, ExtensionDtype):  # NaN is exported as it is
            return 0
        values: Any = column if isinstance(column, ExtensionArray) else column.array
        if not isinstance(dtype, pd.ArrowDtype):
            return int(np.count_nonzero(values.isna()))
        values = values.__arrow_array__()
        return adapter_for(values).count_missing(values)

    def numbers(self, column: Any) -> HostArray:
        """Return a column in its dtype; as float64 if integers are missing."""
        (name,) = names_of(column.dtype)
        is_float = keeps_complex(name) and name != "bool"
        has_gaps = not is_float and self.count_missing(column)
        return np.asarray(column.astype("float64") if has_gaps else column.to_numpy(name))

    def numbers_hint(self, x: Any) -> str | None:
        """Return the columns of real numbers of a data frame."""
        if not isinstance(x, pd.DataFrame) or not x.columns.is_unique:
            return None
        numbers = [label for label, column in x.items() if column.dtype.kind in "biuf"]
        is_plain = all(isinstance(label, (str, int)) for label in numbers)
        return hint_for_labels("x[{}].astype('float64')", numbers) if is_plain else None

    def codes_hint(self, x: Any) -> str | None:
        """Return the call that reads the codes of categories, or the integers of times."""
        dtype = getattr(x, "dtype", None)
        hint = "x.astype('int64')" if isinstance(dtype, pd.PeriodDtype) else super().codes_hint(x)
        if isinstance(dtype, pd.CategoricalDtype):
            hint = "x.cat.codes" if isinstance(x, pd.Series) else "x.codes"
        # A missing time is stored as the lowest integer, and the code of a missing category is -1.
        return hint.replace("x.", "x.dropna().") if hint and x.isna().any() else hint


def _dtypes_of(x: Any) -> set[Any]:
    """Return the dtypes of a series or of the blocks of a data frame; nothing for any other object."""
    if type(x) is pd.Series:
        return {x.dtype}
    if type(x) is not pd.DataFrame:
        return set()
    # `x.dtypes` makes a series of them, which takes 20 times as long.
    return {block.dtype for block in getattr(getattr(x, "_mgr", None), "blocks", ())}


def _natives_of(dtypes: set[Any]) -> set[Any]:
    """Return NumPy's dtypes for its own and for those of masked arrays; nothing if there are others."""
    natives = {each.numpy_dtype if isinstance(each, _Masked) else each for each in dtypes}
    return natives if natives <= NATIVE else set()


adapter = _PandasAdapter()
