"""Adapter for pandas: data frames, series, indexes and extension arrays."""

from __future__ import annotations

from typing import Any

import pandas as pd

from xbridge._host.exporters import generic


class Adapter(generic.Adapter):
    """pandas exports NaN, NaT or an object for a missing value. All of its objects have `astype`."""

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

    def cast_hint(self, x: Any, dtype: str) -> str | None:
        """Return a call of `astype`. An index of several levels has none, and is a data frame first."""
        if isinstance(x, pd.MultiIndex):
            return f"x.to_frame().to_numpy({dtype!r})"
        return super().cast_hint(x, dtype)

    def numbers_hint(self, x: Any) -> str | None:
        """Return the columns of numbers of a data frame, if it has any; a cast of a series or an index."""
        if isinstance(x, pd.DataFrame):
            call = "x.select_dtypes(['number', 'bool'])"
            return f"{call}.astype('float64')" if x.select_dtypes(["number", "bool"]).shape[1] else None
        if isinstance(x, pd.MultiIndex):
            return None
        values = x.to_series() if isinstance(x, pd.Index) else pd.Series(x)
        if pd.api.types.infer_dtype(values) in ("string", "decimal"):
            spells = pd.Series(pd.to_numeric(values, errors="coerce")).notna().all()
            return "x.astype(float)" if spells else "x.factorize()[0]"
        return super().numbers_hint(x)

    def codes_hint(self, x: Any) -> str | None:
        """Return the call that reads the codes of categories, the integers of times, or numbers inside."""
        dtype = getattr(x, "dtype", None)
        if isinstance(dtype, pd.CategoricalDtype):
            return "x.cat.codes" if isinstance(x, pd.Series) else "x.codes"
        if isinstance(dtype, pd.IntervalDtype):
            return "x.array.mid" if isinstance(x, pd.Series) else "x.mid"
        if isinstance(dtype, pd.ArrowDtype) and dtype.type is list:
            return "asarray(x.tolist(), backend='numpy')"
        hint = "x.astype('int64')" if isinstance(dtype, pd.PeriodDtype) else super().codes_hint(x)
        # A missing time is stored as the lowest integer.
        return hint.replace("x.", "x.dropna().") if hint and x.isna().any() else hint

    def cast_table(self, x: Any, dtype: str) -> object:
        """Return a data frame in one dtype: columns of nullable dtypes export objects together."""
        return x.astype(dtype) if isinstance(x, pd.DataFrame) else None
