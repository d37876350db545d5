"""Adapter for pyarrow: tables, record batches, arrays, chunked arrays and tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xbridge._core.protocol import HostArray
from xbridge._host.exporters import Adapter, hint_for_labels

_TABLES = (pa.Table, pa.RecordBatch)
_FLOATS = frozenset((pa.float16(), pa.float32(), pa.float64()))
_SIGNED, _UNSIGNED = (
    (pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
)
_NUMBERS = frozenset((pa.bool_(), *_SIGNED, *_UNSIGNED, *_FLOATS))
_COLUMNS = (pa.Array, pa.ChunkedArray)
_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
_NESTED = (pa.RunEndEncodedType, *_LISTS, pa.FixedShapeTensorType)
"""Types with values of another type, for which pyarrow has no cast to numbers."""


class _ArrowAdapter(Adapter):
    """pyarrow counts its nulls. An encoded array may export a number in place of one."""

    def numbers(self, x: Any, dtype: str | None) -> tuple[HostArray, bool] | None:
        """Return an array of numbers, whose nulls pyarrow exports as NaN, but for truth values as objects."""
        if not isinstance(x, _COLUMNS):
            return None
        if isinstance(x.type, pa.DictionaryType) and dtype is not None:
            x = x.cast(x.type.value_type)
        if x.type not in _NUMBERS:
            return None
        has_nulls = x.null_count > 0
        if has_nulls and x.type not in _FLOATS:
            if dtype is None:
                return None
            if dtype == "float32" or x.type == pa.bool_():  # to round once, and because it exports objects
                x = x.cast("float32" if dtype == "float32" else "float64", safe=False)
        return np.asarray(x), has_nulls

    def table(self, x: Any) -> list[tuple[object, Any]] | None:
        return list(zip(x.schema.names, x.columns, strict=True)) if isinstance(x, _TABLES) else None

    def value_dtypes(self, dtype: Any) -> list[object]:
        """Return the type of the values of dictionaries, runs and lists, or of the fields of structs."""
        if isinstance(dtype, pa.StructType):
            return [dtype.field(i).type for i in range(dtype.num_fields)]
        return [dtype.value_type] if isinstance(dtype, (pa.DictionaryType, *_NESTED)) else []

    def count_missing(self, column: Any) -> int:
        """Return the number of nulls, also those in what encodes them or is nested."""
        return _count_nulls(column) if isinstance(column, _COLUMNS) else 0

    def hint(self, x: Any) -> str | None:
        """Return columns, rows of lists of one length, indices of a dictionary, or the storage of times."""
        if isinstance(x, _TABLES):
            names = [field.name for field in x.schema if field.type in _NUMBERS]
            return hint_for_labels("x.select({})", names)
        if not isinstance(x, _COLUMNS):
            return None
        there = "x.drop_null()" if x.null_count else "x"
        if isinstance(x, pa.DictionaryArray):
            return f"{there}.indices"
        if pa.types.is_temporal(x.type) and x.type.bit_width <= 64:
            return f"{there}.cast('int{x.type.bit_width}')"
        is_whole = isinstance(x, pa.FixedSizeListArray) and not self.count_missing(x)
        if is_whole and x.type.value_type in _NUMBERS:
            return f"numpy.asarray(x.flatten()).reshape({len(x)}, {x.type.list_size})"
        return None


def _count_nulls(x: Any) -> int:
    kind = x.type
    if isinstance(x, pa.ChunkedArray):
        return sum(map(_count_nulls, x.chunks))
    if isinstance(kind, pa.BaseExtensionType):
        return _count_nulls(x.storage)
    if isinstance(kind, pa.DictionaryType):
        return _count_nulls(x.dictionary_decode())
    if isinstance(kind, pa.RunEndEncodedType):
        return _count_nulls(pc.call_function("run_end_decode", [x]))
    inside = []
    if isinstance(kind, _LISTS):
        inside = [x.flatten()]
    elif isinstance(kind, pa.StructType):
        inside = x.flatten()
    return int(x.null_count) + sum(map(_count_nulls, inside))


adapter = _ArrowAdapter()
