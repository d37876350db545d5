"""Adapter for polars: data frames and series."""

from __future__ import annotations

from typing import Any

import polars as pl

from xbridge._host.exporters import generic


class Adapter(generic.Adapter):
    """polars exports NaN or an object for a missing value."""

    def columns(self, x: Any) -> list[tuple[object, object]] | None:
        """Return the schema of a data frame."""
        return list(x.schema.items()) if isinstance(x, pl.DataFrame) else None

    def value_dtypes(self, dtype: Any) -> list[object]:
        """Return the dtype of elements of arrays and lists, of fields of structs, or of categories."""
        if isinstance(dtype, (pl.Array, pl.List)):
            return [dtype.inner]
        if isinstance(dtype, pl.Struct):
            return [field.dtype for field in dtype.fields]
        return [dtype.categories.dtype] if isinstance(dtype, pl.Enum) else []

    def numbers_hint(self, x: Any) -> str | None:
        """Return the columns of numbers of a data frame, if it has any."""
        if not isinstance(x, pl.DataFrame):
            return None
        names = [name for name, kind in x.schema.items() if kind.is_numeric() or kind == pl.Boolean]
        return f"x.select({names})" if names else None

    def cast_hint(self, x: Any, dtype: str) -> str | None:  # noqa: ARG002 -- polars has no strings for dtypes
        """Return a cast to floats, in arrays of the same shape; None for lists, whose lengths may differ."""
        kinds = x.schema.values() if isinstance(x, pl.DataFrame) else [x.dtype]
        if any(isinstance(kind, pl.List) for kind in kinds):
            return None
        nested = isinstance(x, pl.Series) and isinstance(x.dtype, pl.Array)
        return "x.cast(type(x.dtype)(float, x.dtype.shape))" if nested else "x.cast(float)"
