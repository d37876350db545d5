"""Adapter for pyarrow: tables, record batches, arrays, chunked arrays and tensors."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from xbridge._host.exporters import generic

_TABLES = (pa.Table, pa.RecordBatch)
_COLUMNS = (pa.Array, pa.ChunkedArray)
_NESTED = (
    pa.RunEndEncodedType,
    pa.ListType,
    pa.LargeListType,
    pa.FixedSizeListType,
    pa.FixedShapeTensorType,
)
"""Types with values of another type, for which pyarrow has no cast to numbers."""


class Adapter(generic.Adapter):
    """pyarrow counts its nulls. An encoded array may export a number in place of one."""

    def columns(self, x: Any) -> list[tuple[object, object]] | None:
        """Return the schema of a table."""
        return list(zip(x.schema.names, x.schema.types, strict=True)) if isinstance(x, _TABLES) else None

    def value_dtypes(self, dtype: Any) -> list[object]:
        """Return the type of the values of dictionaries, runs and lists, or of the fields of structs."""
        if isinstance(dtype, pa.StructType):
            return [dtype.field(i).type for i in range(dtype.num_fields)]
        return [dtype.value_type] if isinstance(dtype, (pa.DictionaryType, *_NESTED)) else []

    def count_missing(self, x: Any) -> int:
        """Return the number of nulls in all columns."""
        parts = x.columns if isinstance(x, _TABLES) else [x] if isinstance(x, _COLUMNS) else []
        return sum(part.null_count for part in parts)

    def cast_hint(self, x: Any, dtype: str) -> str | None:
        """Return a cast of each column; None if there is none for the values, and for tensors."""
        kinds = x.schema.types if isinstance(x, _TABLES) else [x.type]
        if any(isinstance(kind, (pa.StructType, *_NESTED)) for kind in kinds):
            return None
        if isinstance(x, _TABLES):
            return f"xbridge.asarray([c.cast({dtype!r}, safe=False) for c in x.columns]).T"
        return f"x.cast({dtype!r}, safe=False)" if isinstance(x, _COLUMNS) else None
