"""Adapter for pandas: data frames, series, indexes and extension arrays."""

from __future__ import annotations

from typing import Any

import pandas as pd
from pandas.api.extensions import ExtensionArray, ExtensionDtype

from xbridge._host.exporters import adapter_for, generic, hint_for_labels


class Adapter(generic.Adapter):
    """pandas exports NaN, NaT or an object for a missing value. All of its objects have `astype`."""

    def plain(self, x: Any) -> Any:
        """Return the values of a series or a data frame of one of NumPy's numeric dtypes."""
        dtypes = set()
        if type(x) is pd.Series:
            dtypes = {x.dtype}
        elif type(x) is pd.DataFrame:  # `dtypes` makes a series of them, which takes 20 times as long
            dtypes = {block.dtype for block in getattr(getattr(x, "_mgr", None), "blocks", ())}
        dtype = dtypes.pop() if len(dtypes) == 1 else None
        if isinstance(dtype, ExtensionDtype) or getattr(dtype, "kind", "O") not in "biufc":
            return None
        has_unit = not {"unit", "units"}.isdisjoint(vars(x))  # which the check of an export refuses
        return None if has_unit else x.to_numpy()

    def columns(self, x: Any) -> list[tuple[object, object]] | None:
        """Return the dtypes of a data frame, or of the levels of an index."""
        return list(x.dtypes.items()) if isinstance(x, (pd.DataFrame, pd.MultiIndex)) else None

    def value_dtypes(self, dtype: Any) -> list[object]:
        """Return the dtype of categories, of sparse values, or of Arrow's values."""
        if isinstance(dtype, pd.CategoricalDtype):
            return [] if dtype.categories is None else [dtype.categories.dtype]
        if isinstance(dtype, pd.ArrowDtype):
            return [dtype.pyarrow_dtype]
        return [dtype.subtype] if isinstance(dtype, pd.SparseDtype) else []

    def count_missing(self, x: Any) -> int:
        """Return the number of missing values, if a dtype of pandas' own may hide some in an export."""
        if isinstance(x, pd.MultiIndex):
            return 0
        # NaN is exported as it is
        return sum(_count_gaps(part) for part in _columns_of(x) if isinstance(part.dtype, ExtensionDtype))

    def parts(self, x: Any) -> list[Any] | None:
        """Return the columns of a data frame, the levels of an index, or a column; None if Arrow nests it."""
        if isinstance(x, pd.MultiIndex):
            return [x.get_level_values(i) for i in range(x.nlevels)]
        columns = _columns_of(x)
        dtypes = [column.dtype for column in columns]
        is_nested = any(isinstance(dtype, pd.ArrowDtype) and dtype.type in (list, dict) for dtype in dtypes)
        return None if is_nested else columns

    def as_floats(self, x: Any) -> Any:
        """Return a column as float64."""
        return x.astype("float64")

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


def _columns_of(x: Any) -> list[Any]:
    return [column for _, column in x.items()] if isinstance(x, pd.DataFrame) else [x]


def _count_gaps(column: Any) -> int:
    """Return the number of missing values in a column, also those inside of Arrow's values."""
    if not isinstance(column.dtype, pd.ArrowDtype):
        return int(column.isna().sum())
    values: Any = column if isinstance(column, ExtensionArray) else column.array
    values = values.__arrow_array__()
    return adapter_for(values).count_missing(values)
