"""Adapter for polars: data frames and series."""

from __future__ import annotations

from typing import Any

import polars as pl

from xbridge._core.protocol import HostArray
from xbridge._host.exporters import Adapter, hint_for_labels

_SIGNED, _UNSIGNED = (pl.Int8, pl.Int16, pl.Int32, pl.Int64), (pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64)
_FLOATS = frozenset(getattr(pl, name) for name in ("Float16", "Float32", "Float64") if hasattr(pl, name))
_NUMBERS = frozenset((pl.Boolean, *_SIGNED, *_UNSIGNED, *_FLOATS))
"""The dtypes that NumPy has too."""


class _PolarsAdapter(Adapter):
    """polars exports NaN or an object for a missing value."""

    def numbers(self, x: Any, dtype: str | None) -> tuple[HostArray, bool] | None:
        """Return a series of numbers, whose nulls polars exports as NaN."""
        if not isinstance(x, pl.Series) or (own := x.dtype) not in _NUMBERS:
            return None
        has_nulls = x.null_count() > 0
        if has_nulls and own not in _FLOATS:
            if dtype is None:
                return None
            x = x.cast(pl.Float32 if dtype == "float32" else pl.Float64)  # to round once
        return x.to_numpy(), has_nulls

    def table(self, x: Any) -> list[tuple[object, Any]] | None:
        return [(column.name, column) for column in x.get_columns()] if isinstance(x, pl.DataFrame) else None

    def value_dtypes(self, dtype: Any) -> list[object]:
        """Return the dtype of elements of arrays and lists, of fields of structs, or of categories."""
        if isinstance(dtype, (pl.Array, pl.List)):
            return [dtype.inner]
        if isinstance(dtype, pl.Struct):
            return [field.dtype for field in dtype.fields]
        return [dtype.categories.dtype] if isinstance(dtype, pl.Enum) else []

    def count_missing(self, column: Any) -> int:
        """Return the number of nulls in a series, also those in lists and structs."""
        return _count_nulls(column) if isinstance(column, pl.Series) else 0

    def hint(self, x: Any) -> str | None:
        if isinstance(x, pl.DataFrame):
            return hint_for_labels(
                "x.select({})", [name for name, own in x.schema.items() if own in _NUMBERS]
            )
        own = x.dtype if isinstance(x, pl.Series) else pl.Null()
        if not (own.is_temporal() or own in (pl.Categorical, pl.Enum)):
            return None
        return "x.drop_nulls().to_physical()" if x.null_count() else "x.to_physical()"


def _count_nulls(x: pl.Series) -> int:
    inside: list[pl.Series] = []
    if isinstance(x.dtype, (pl.Array, pl.List)):
        inside = [x.drop_nulls().explode()]
    elif isinstance(x.dtype, pl.Struct):
        inside = x.struct.unnest().get_columns()
    return x.null_count() + sum(map(_count_nulls, inside))


adapter = _PolarsAdapter()
