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
ROADS = [(way, "numpy") for way in WAYS] + [("to_backend", target) for target in TARGETS[1:]]
"""Each way of converting, and each library."""


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


@pytest.mark.parametrize(("way", "target"), ROADS)
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


def with_gaps(library: str) -> list[Any]:
    """Columns and tables of numbers of which some are missing."""
    floats, dtypes = [1.5, 2.0], ("Int32", "UInt8", "Int64", "Float32")
    if library == "pandas":
        pandas = pytest.importorskip("pandas")
        arrow = [f"{name.lower()}[pyarrow]" for name in dtypes] if find_spec("pyarrow") else []
        names = [*dtypes, "Float64", "boolean", *arrow, *(["bool[pyarrow]"] if arrow else [])]
        columns = [pandas.Series([1, None], dtype=name.replace("float32[", "float[")) for name in names]
        columns.append(pandas.Series([1.0, np.nan]))
        frames = [pandas.DataFrame({"x": floats, "n": column}) for column in columns]
        return [*columns, *frames, *(column.to_frame() for column in columns)]
    if library == "polars":
        polars = pytest.importorskip("polars")
        columns = [polars.Series("n", [1, None], getattr(polars, name)) for name in dtypes]
        columns += [polars.Series("n", values) for values in ([True, None], [1.0, np.nan])]
        frames = [polars.DataFrame({"x": floats, "n": column}) for column in columns]
        lists = polars.Series([[1.0], [None]], dtype=polars.Array(polars.Float32, 1))
        return [*columns, *frames, *(column.to_frame() for column in columns), lists]
    pyarrow = pytest.importorskip("pyarrow")
    columns = [pyarrow.array([1, None], name.lower()) for name in dtypes]
    columns += [pyarrow.array([True, None]), pyarrow.array([1.0, np.nan])]
    frames = [pyarrow.table({"x": floats, "n": column}) for column in columns]
    return [*columns, *frames, *(pyarrow.table({"n": column}) for column in columns)]


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_tables__integers_beside_missing_ones_are_rounded_once(library: str) -> None:
    """An integer whose nearest float64 is between two of float32 goes to the nearer one."""
    module, integer = pytest.importorskip(library), 2**60 + 2**36 + 1
    values = [integer, None]
    column = {
        "pandas": lambda: module.Series(values, dtype="Int64"),
        "polars": lambda: module.Series(values),
        "pyarrow": lambda: module.array(values),
    }[library]()
    table = (module.table if library == "pyarrow" else module.DataFrame)({"n": column, "x": [1.5, 2.0]})
    for x in column, table:
        made = xbridge.to_numpy(x, dtype="float32").reshape(2, -1)[:, 0]
        np.testing.assert_array_equal(made, np.array([np.int64(integer).astype("f4"), np.nan], "f4"))


@pytest.mark.parametrize(("way", "target"), ROADS)
@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_tables__missing_values_go_to_no_integer(library: str, target: str, way: str) -> None:
    """A missing value, and NaN, never becomes an integer or a truth value that a call names; it is NaN."""
    for x in with_gaps(library):
        for dtype in ("int32", "uint8", "bool"):
            with pytest.raises(xbridge.DTypeError):
                WAYS[way](x, target, dtype=dtype)
        made = xbridge.to_numpy(WAYS[way](x, target, dtype="float32"))
        assert np.isnan(made.ravel()[-1])
        assert made.dtype == "float32"
        assert made.ravel()[0] in (1.0, 1.5)


@pytest.mark.parametrize(("way", "target"), ROADS)
@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_tables__mapping_casts_columns_that_get_one_dtype(library: str, target: str, way: str) -> None:
    """A mapping that gives all columns of a table one dtype names it; else the table is refused."""
    module = pytest.importorskip(library)
    make = module.table if library == "pyarrow" else module.DataFrame
    x = make({"a": [1.5, 2.0], "b": [1, 2], "c": np.ones(2, "float32")})
    made = WAYS[way](x, target, dtype={"float64": "float32", "int64": "float32"})
    assert xbridge.dtype_of(made) == "float32"
    assert xbridge.to_list(made) == [[1.5, 1, 1], [2, 2, 1]]
    for dtype in ({"float64": "float32"}, {"int64": "int32", "float64": "int32"}):
        with pytest.raises(xbridge.DTypeError):
            WAYS[way](x, target, dtype=dtype)


@pytest.mark.parametrize(("way", "target"), ROADS)
def test_tables__imaginary_parts_are_never_dropped(target: str, way: str) -> None:
    """A complex column goes to complex dtypes alone, and to whether it is nonzero, as an array does."""
    pandas = pytest.importorskip("pandas")
    z = [1j, 2 + 0j]
    for x in (pandas.Series(z), pandas.DataFrame({"z": z}), pandas.DataFrame({"x": [1.0, 2.0], "z": z})):
        for dtype in ("float32", "float64", "int64"):
            with pytest.raises(xbridge.DTypeError, match="drops the imaginary part"):
                WAYS[way](x, target, dtype=dtype)
        made = WAYS[way](x, target, dtype="complex64")
        assert xbridge.to_numpy(made).reshape(2, -1)[:, -1].tolist() == z
        assert xbridge.to_numpy(WAYS[way](x, target, dtype="bool")).all()
