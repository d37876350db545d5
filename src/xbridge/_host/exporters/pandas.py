"""Adapter for pandas: data frames, series, indexes and extension arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from pandas.api.extensions import ExtensionArray, ExtensionDtype

from xbridge._core.dtypes import DTYPES, holds_every, is_inexact
from xbridge._core.protocol import HostArray
from xbridge._host.exporters import Adapter, adapter_for, hint_for_labels, names_of
from xbridge._host.memory import NATIVE, native_dtype

_COLUMNS = (pd.Series, pd.Index, ExtensionArray)
_Masked: Any = pd.BooleanDtype.__base__
"""The class of dtypes with NumPy's numbers and a mask."""


class _PandasAdapter(Adapter):
    """pandas exports NaN, NaT or an object for a missing value. All of its objects have `astype`."""

    def numbers(self, x: Any, dtype: str | None) -> tuple[HostArray, bool] | None:
        """Return a column, or a data frame of NumPy's dtypes, with or without masks."""
        is_column = isinstance(x, _COLUMNS)
        if is_column and _is_numeric(x.dtype):
            return x.to_numpy(), False
        parts = [x] if is_column else _blocks_of(x)
        natives = {_native_of(part.dtype) for part in parts}
        if not parts or None in natives:
            return self._decode(x, dtype) if is_column else None
        if len(natives) == 1 and all(isinstance(part.dtype, np.dtype) for part in parts):
            return x.to_numpy(), False
        has_gaps = any(map(self.count_missing, parts))
        target = _find_dtype(parts, dtype, has_gaps=has_gaps)
        if target is None:
            return None
        is_new, options = has_gaps or len(natives) > 1, {"na_value": np.nan} if has_gaps else {}
        with np.errstate(all="ignore"):
            return np.ascontiguousarray(x.to_numpy(target, copy=is_new, **options)), is_new

    def _decode(self, column: Any, dtype: str | None) -> tuple[HostArray, bool] | None:
        """Return a column that holds Arrow's values, categories or sparse values."""
        if isinstance(column.dtype, pd.ArrowDtype):
            values = _array_of(column).__arrow_array__()
            return adapter_for(values).numbers(values, dtype)
        names = [] if dtype is None else names_of(column.dtype)  # an export may have another dtype
        if len(names) != 1 or names[0] not in DTYPES:
            return None
        has_gaps = self.count_missing(column) > 0
        if not has_gaps or is_inexact(names[0]):
            return column.to_numpy(names[0], copy=has_gaps), has_gaps
        return np.asarray(column.astype("float64")), True

    def table(self, x: Any) -> list[tuple[object, Any]] | None:
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

    def count_missing(self, column: Any) -> int:
        """Return the number of missing values, if a dtype of pandas' own may hide some in an export.

        Those inside of Arrow's values count too.
        """
        dtype = getattr(column, "dtype", None)
        if not isinstance(dtype, ExtensionDtype):  # NaN is exported as it is
            return 0
        values = _array_of(column)
        if not isinstance(dtype, pd.ArrowDtype):
            return int(np.count_nonzero(values.isna()))
        values = values.__arrow_array__()
        return adapter_for(values).count_missing(values)

    def hint(self, x: Any) -> str | None:
        if isinstance(x, pd.DataFrame):
            return _hint_for_frame(x)
        hint, dtype = super().hint(x), getattr(x, "dtype", None)
        if isinstance(dtype, pd.PeriodDtype):
            hint = "x.astype('int64')"
        elif isinstance(dtype, pd.CategoricalDtype):
            hint = "x.cat.codes" if isinstance(x, pd.Series) else "x.codes"
        # A missing time is stored as the lowest integer, and the code of a missing category is -1.
        return hint.replace("x.", "x.dropna().") if hint and x.isna().any() else hint


def _hint_for_frame(x: pd.DataFrame) -> str | None:
    numbers = {label: column for label, column in x.items() if column.dtype.kind in "biuf"}
    hint = hint_for_labels("x[{}]", [*numbers])
    if not (hint and x.columns.is_unique and all(isinstance(label, (str, int)) for label in numbers)):
        return None
    if _have_common_dtype([*numbers.values()]):
        return hint
    return f"{hint}.astype(float)" if all(map(_are_floats, numbers.values())) else None


def _have_common_dtype(columns: list[Any]) -> bool:
    """Return True if columns of numbers have a dtype with all values of each."""
    if any(column.dtype.kind != "f" and column.isna().any() for column in columns):
        return False
    names = {name for column in columns for name in names_of(column.dtype)}
    common = np.result_type(*names).name
    return all(holds_every(name, common) for name in names)


def _are_floats(column: Any) -> bool:
    """Return True if no number of a column is rounded as a float64. A missing one is NaN."""
    given = column[column.notna()]
    # Numbers of Python are compared exactly, whereas an array casts its integers to float64 first.
    return bool((given.astype(object) == given.astype(float).astype(object)).all())


def _blocks_of(x: Any) -> list[Any]:
    """Return the arrays that hold the columns of a data frame; nothing for any other object."""
    # To ask a column at a time takes 20 times as long.
    blocks = getattr(getattr(x, "_mgr", None), "blocks", ()) if isinstance(x, pd.DataFrame) else ()
    return [block.values for block in blocks]  # noqa: PD011 -- of a block


def _array_of(column: Any) -> Any:
    return column if isinstance(column, ExtensionArray) else column.array


def _is_numeric(dtype: Any) -> bool:
    """Return True for NumPy's dtypes of numbers, of any precision and byte order."""
    return isinstance(dtype, np.dtype) and dtype.kind in "biufc"


def _native_of(dtype: Any) -> Any:
    """Return NumPy's dtype of the numbers, if a dtype is that or adds a mask to it; else None."""
    native = dtype.numpy_dtype if isinstance(dtype, _Masked) else dtype
    return native if _is_numeric(native) else None


def _find_dtype(parts: list[Any], dtype: str | None, *, has_gaps: bool) -> np.dtype[Any] | None:
    """Return the dtype to which pandas casts numbers without losing parts or NaN; None if none is known."""
    own: np.dtype[Any]
    own, *others = {_native_of(part.dtype) for part in parts}
    if not others and (not has_gaps or own.kind == "f"):
        return own
    if dtype is None:
        return None
    target = native_dtype(dtype)
    if not others:
        return target if is_inexact(dtype) and target in NATIVE else np.dtype(float)
    has_nan = has_gaps or any(part.dtype.kind == "f" and np.isnan(part).any() for part in parts)
    # A missing value overwrites both parts of a complex number that is NaN.
    keeps_all = not any(part.dtype.kind == "c" for part in parts) and (is_inexact(dtype) or not has_nan)
    return target if keeps_all and target in NATIVE else None


adapter = _PandasAdapter()
