"""Adapter for pyarrow: tables, record batches, arrays, chunked arrays and tensors."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

_TABLES = (pa.Table, pa.RecordBatch)
_COLUMNS = (pa.Array, pa.ChunkedArray)
_WITHOUT_CAST = (
    pa.StructType,
    pa.RunEndEncodedType,
    pa.ListType,
    pa.LargeListType,
    pa.FixedSizeListType,
    pa.FixedShapeTensorType,
)
"""Types of nested and encoded values, for which pyarrow has no cast to numbers."""


def columns(x: Any) -> list[tuple[object, object]] | None:
    """Return the schema of a table."""
    return list(zip(x.schema.names, x.schema.types, strict=True)) if isinstance(x, _TABLES) else None


def dtype(x: Any) -> object:
    """Return the type of the values of an array or a tensor; None for a buffer of bytes."""
    return x.type if isinstance(x, (*_COLUMNS, pa.Tensor)) else None


def value_dtypes(dtype: Any) -> list[object]:
    """Return the type of the values of dictionaries, runs, lists and tensors, or of the fields of structs."""
    if isinstance(dtype, pa.StructType):
        return [dtype.field(i).type for i in range(dtype.num_fields)]
    return [dtype.value_type] if isinstance(dtype, (pa.DictionaryType, *_WITHOUT_CAST)) else []


def count_missing(x: Any) -> int:
    """Return the number of nulls. An encoded array may export a number in place of one."""
    parts = x.columns if isinstance(x, _TABLES) else [x] if isinstance(x, _COLUMNS) else []
    return sum(part.null_count for part in parts)


def cast_hint(x: Any, dtype: str) -> str | None:
    """Return a cast of each column; None if there is none for the values, and for tensors."""
    if isinstance(x, _TABLES):
        call = f"xbridge.asarray([c.cast({dtype!r}, safe=False) for c in x.columns]).T"
        return None if any(isinstance(kind, _WITHOUT_CAST) for kind in x.schema.types) else call
    casts = isinstance(x, _COLUMNS) and not isinstance(x.type, _WITHOUT_CAST)
    return f"x.cast({dtype!r}, safe=False)" if casts else None


def numbers_hint(x: object) -> None:
    """Return None: no one call fits text, dates and lists."""


def cast_table(x: object, dtype: str) -> None:
    """Return None: a table of numbers exports numbers."""
