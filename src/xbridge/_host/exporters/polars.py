"""Adapter for polars: data frames and series."""

from __future__ import annotations

from typing import Any

import polars as pl

from xbridge._core.dtypes import DTYPES
from xbridge._host.exporters import generic, names_of


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

    def count_missing(self, x: Any) -> int:
        """Return the number of nulls in all columns, also those in lists and structs."""
        return sum(map(_count_nulls, x.get_columns() if isinstance(x, pl.DataFrame) else [x]))

    def numbers_hint(self, x: Any) -> str | None:
        """Return the call that selects the numeric columns of a frame, or reads the numbers in text."""
        if isinstance(x, pl.Series):
            return _hint_for_text(x) if x.dtype == pl.String else None
        names = [name for name, kind in x.schema.items() if kind.is_numeric() or kind == pl.Boolean]
        return f"x.select({names})" if names else None

    def codes_hint(self, x: Any) -> str | None:
        """Return the call that reads the codes of categories, or the integers of times."""
        kind = x.dtype if isinstance(x, pl.Series) else pl.Null()
        if not (kind.is_temporal() or kind in (pl.Categorical, pl.Enum)):
            return None
        return "x.drop_nulls().to_physical()" if x.null_count() else "x.to_physical()"

    def cast_hint(self, x: Any, dtype: str) -> str | None:
        """Return a cast to floats, in arrays of the same shape; for lists, which may be ragged, a list."""
        kinds = x.schema.values() if isinstance(x, pl.DataFrame) else [x.dtype]
        if any(isinstance(kind, pl.List) for kind in kinds):
            dtype = "".join(names_of(x.dtype)[:1]) if isinstance(x, pl.Series) else ""
            return f"asarray(x.to_list(), backend='numpy', dtype={dtype!r})" if dtype in DTYPES else None
        nested = isinstance(x, pl.Series) and isinstance(x.dtype, pl.Array)
        return "x.cast(type(x.dtype)(float, x.dtype.shape))" if nested else "x.cast(float)"


def _count_nulls(x: pl.Series) -> int:
    inside: list[pl.Series] = []
    if isinstance(x.dtype, (pl.Array, pl.List)):
        inside = [x.drop_nulls().explode()]
    elif isinstance(x.dtype, pl.Struct):
        inside = x.struct.unnest().get_columns()
    return x.null_count() + sum(map(_count_nulls, inside))


def _hint_for_text(x: pl.Series) -> str:
    """Return the cast of text that spells numbers, else the ranks of labels."""
    spells = x.cast(float, strict=False).null_count() == x.null_count()
    there = "x.drop_nulls()" if x.null_count() else "x"
    return "x.cast(float)" if spells else f"{there}.rank('dense') - 1"
