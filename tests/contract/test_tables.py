"""Columns of tables go to every library and back, and what is no number never becomes one in silence."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import xbridge
from xbridge import tree

if TYPE_CHECKING:
    from collections.abc import Callable

TARGETS = [name for name in ("numpy", "torch", "jax", "dask", "array_api_strict") if find_spec(name)]
NUMBERS = {
    "f": np.array([1.5, np.nan, -0.0], "float32"),
    "i": np.array([1, -2, 3], "int32"),
    "u": np.array([1, 2, 255], "uint8"),
    "b": np.array([True, False, True]),
}
WAYS: dict[str, Callable[..., Any]] = {
    "to_backend": xbridge.to_backend,
    "asarray": lambda x, target, **options: xbridge.asarray(x, backend=target, **options),
    "align": lambda x, target, **options: xbridge.align(x, backend=target, **options)[0],
    "tree": lambda x, target, **options: tree.to_backend([x], target, exporters=True, **options)[0],
    "transfer": lambda x, target, **options: xbridge.transfer(x, target, **options).result(),
}


def others(library: str) -> dict[str, Any]:
    """Columns of a library that are no numbers, or miss some."""
    days = np.array(["2024-01-01", "NaT"], "M8[us]")
    if library == "pandas":
        pandas = pytest.importorskip("pandas")
        return {
            "categories": pandas.Series(["a", None], dtype="category"),
            "labels": pandas.Series(["1", "2"], dtype="category"),
            "dates": pandas.Series(days),
            "durations": pandas.Series(days - days[0]),
            "periods": pandas.Series(pandas.period_range("2024", periods=2, freq="D")),
            "dates of an index": pandas.DatetimeIndex(days),
            "text": pandas.Series(["1", "2"]),
            "integers": pandas.Series([1, None], dtype="Int64"),
            "booleans": pandas.Series([True, None], dtype="boolean"),
            "objects": pandas.Series([1, "x"], dtype=object),
            "a table with dates": pandas.DataFrame({"x": [1.0, 2.0], "day": days}),
            "a table of dates": pandas.DataFrame({"day": days}),
        }
    polars = pytest.importorskip("polars")
    return {
        "categories": polars.Series(
            ["y", None], dtype=polars.Categorical
        ),  # polars counts those of a process
        "labels": polars.Series(["1", "2"], dtype=polars.Enum(["1", "2"])),
        "dates": polars.Series(days),
        "durations": polars.Series(days - days[0]),
        "text": polars.Series(["1", "2"]),
        "integers": polars.Series([1, None]),
        "booleans": polars.Series([True, None]),
        "a table with dates": polars.DataFrame({"x": [1.0, 2.0], "day": days}),
    }


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_tables__columns_of_numbers_come_back_as_they_were(library: str, target: str) -> None:
    """A table of numbers that was a dict of arrays of a library is the same table."""
    module = pytest.importorskip(library)
    frame = module.DataFrame(NUMBERS)
    columns = {name: frame[name] for name in frame.columns}
    arrays = tree.to_backend(columns, target, exporters=True)
    for name, numbers in NUMBERS.items():
        assert xbridge.backend_of(arrays[name]) == target
        assert xbridge.dtype_of(arrays[name]) == numbers.dtype.name
        assert xbridge.to_numpy(arrays[name]).tobytes() == numbers.tobytes()
    back = module.DataFrame(tree.to_numpy(arrays))
    assert back.equals(frame)
    assert list(back.dtypes) == list(frame.dtypes)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_tables__what_is_no_number_is_refused_or_kept(library: str, target: str, way: str) -> None:
    """Categories, dates, text and missing integers are errors, whatever dtype is named, or stay as asked."""
    for x in others(library).values():
        for dtype in (None, "int64", "nearest"):
            with pytest.raises(xbridge.XBridgeError):
                WAYS[way](x, target, dtype=dtype)
        batch = {"x": x, "n": np.ones(2, "float32")}
        kept = tree.to_backend(batch, target, exporters=True, unsupported="keep")
        assert kept["x"] is x
        assert xbridge.backend_of(kept["n"]) == target
