"""Adapter for polars: data frames and series."""

from __future__ import annotations

from typing import Any

import polars as pl


def columns(x: Any) -> list[tuple[object, object]] | None:
    """Return the schema of a data frame."""
    return list(x.schema.items()) if isinstance(x, pl.DataFrame) else None


def dtype(x: Any) -> object:
    """Return the dtype of a series."""
    return x.dtype


def value_dtypes(dtype: Any) -> list[object]:
    """Return the dtype of the elements of arrays and lists, of the fields of structs, or of categories."""
    if isinstance(dtype, (pl.Array, pl.List)):
        return [dtype.inner]
    if isinstance(dtype, pl.Struct):
        return [field.dtype for field in dtype.fields]
    return [dtype.categories.dtype] if isinstance(dtype, pl.Enum) else []


def count_missing(x: object) -> int:
    """Return 0: polars exports NaN or an object for a missing value."""
    return 0


def cast_hint(x: Any, dtype: str) -> str | None:
    """Return a cast to floats, in arrays of the same shape; None for lists, whose lengths may differ."""
    kinds = x.schema.values() if isinstance(x, pl.DataFrame) else [x.dtype]
    if any(isinstance(kind, pl.List) for kind in kinds):
        return None
    nested = isinstance(x, pl.Series) and isinstance(x.dtype, pl.Array)
    return "x.cast(type(x.dtype)(float, x.dtype.shape))" if nested else "x.cast(float)"


def numbers_hint(x: object) -> None:
    """Return None: no one call fits text, dates and categories."""


def cast_table(x: object, dtype: str) -> None:
    """Return None: a data frame of numbers exports numbers."""
