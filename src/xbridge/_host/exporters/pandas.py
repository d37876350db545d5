"""Adapter for pandas: data frames, series, indexes and extension arrays."""

from __future__ import annotations

from typing import Any

import pandas as pd


def columns(x: Any) -> list[tuple[object, object]] | None:
    """Return the dtypes of a data frame, or of the levels of an index."""
    return list(x.dtypes.items()) if isinstance(x, (pd.DataFrame, pd.MultiIndex)) else None


def dtype(x: Any) -> object:
    """Return the dtype of a series, an index or an array."""
    return x.dtype


def value_dtypes(dtype: Any) -> list[object]:
    """Return the dtype of categories, of sparse values, or of Arrow's values."""
    if isinstance(dtype, pd.CategoricalDtype):
        return [] if dtype.categories is None else [dtype.categories.dtype]
    if isinstance(dtype, pd.ArrowDtype):
        return [dtype.pyarrow_dtype]
    return [dtype.subtype] if isinstance(dtype, pd.SparseDtype) else []


def count_missing(x: object) -> int:
    """Return 0: pandas exports NaN, NaT or an object for a missing value."""
    return 0


def cast_hint(x: object, dtype: str) -> str:
    """Return a call of `astype`. An index of several levels has none, and is a data frame first."""
    return "x.to_frame()" if isinstance(x, pd.MultiIndex) else f"x.astype({dtype!r})"


def numbers_hint(x: object) -> str:
    """Return the columns of numbers of a data frame; a cast of anything else."""
    if isinstance(x, pd.DataFrame):
        return "x.select_dtypes('number')"
    return "x.astype(float) if it spells numbers, or x.tolist()"


def cast_table(x: Any, dtype: str) -> object:
    """Return a data frame in one dtype: columns of nullable dtypes export objects together."""
    return x.astype(dtype) if isinstance(x, pd.DataFrame) else None
