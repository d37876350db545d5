"""Adapters of libraries of tables, against the libraries that are installed: a rename there fails here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from exporters import array_only
from fresh import run

import xbridge
from xbridge._host import exporters
from xbridge._host.exporters import adapter_for, columns_of, dtype_of, generic, names_of

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = {"a": [1, 2], "b": [0.5, 4.0]}
FRAMES: dict[str, Callable[[Any], Any]] = {
    "pandas": lambda pd: pd.DataFrame(ROWS),
    "polars": lambda pl: pl.DataFrame(ROWS),
    "pyarrow": lambda pa: pa.table(ROWS),
}
COLUMNS: dict[str, Callable[[Any], Any]] = {
    "pandas": lambda pd: pd.Series(ROWS["a"]),
    "polars": lambda pl: pl.Series(ROWS["a"]),
    "pyarrow": lambda pa: pa.array(ROWS["a"]),
}


@pytest.mark.parametrize("library", exporters.INDEX)
def test_adapter_for__type_comes_from_a_library(library: str) -> None:
    """An object, or one of a class derived from its class, has the adapter of its library."""
    module = pytest.importorskip(library)
    for x in (FRAMES[library](module), COLUMNS[library](module)):
        assert type(adapter_for(x)).__module__ == f"xbridge._host.exporters.{library}"
    if library == "pandas":
        assert adapter_for(type("Mine", (module.DataFrame,), {})()) is adapter_for(FRAMES[library](module))


def test_adapter_for__type_of_another_library() -> None:
    """Any other object has the generic adapter."""
    assert type(adapter_for(np.ones(2))) is generic.Adapter
    assert type(adapter_for(SimpleNamespace())) is generic.Adapter


def test_adapter_for__imports_a_library_only_for_an_object_of_it() -> None:
    """Reading the export of an object of an unknown library imports none of those that have adapters."""
    code = """
        import sys, array, xbridge
        xbridge.to_numpy(array.array("d", [1, 2]))
        print(sorted({"pandas", "polars", "pyarrow"} & {*sys.modules}))
    """
    assert run(code) == (0, ["[]"])


@pytest.mark.parametrize("library", exporters.INDEX)
def test_columns_of__tables_name_their_columns_and_dtypes(library: str) -> None:
    """Each column of a table is announced by its label and its dtype; a column itself by its dtype."""
    module = pytest.importorskip(library)
    frame, column = FRAMES[library](module), COLUMNS[library](module)
    assert dict(columns_of(frame) or ())["column 'a' is"] == "int64"
    assert [label for label, _ in columns_of(frame) or ()] == ["column 'a' is", "column 'b' is"]
    assert columns_of(column) is None
    assert names_of(dtype_of(column)) == ["int64"]


NESTED: list[tuple[str, str, Callable[[Any], Any], list[str]]] = [
    ("pandas", "sparse", lambda pd: pd.SparseDtype("int64"), ["int64"]),
    ("pandas", "categories", lambda pd: pd.CategoricalDtype([1, 2]), ["int64"]),
    ("pandas", "no categories", lambda pd: pd.CategoricalDtype(), ["category"]),
    ("pandas", "nullable", lambda pd: pd.BooleanDtype(), ["bool"]),
    ("polars", "arrays", lambda pl: pl.Array(pl.Array(pl.Int64, 2), 1), ["int64"]),
    ("polars", "lists", lambda pl: pl.List(pl.Int8), ["int8"]),
    ("polars", "structs", lambda pl: pl.Struct({"a": pl.Int64, "b": pl.Float32}), ["int64", "float32"]),
    ("polars", "enumerations", lambda pl: pl.Enum(["a"]), ["string"]),
    ("polars", "a class of dtypes", lambda pl: pl.UInt8, ["uint8"]),
    ("pyarrow", "a dictionary", lambda pa: pa.dictionary(pa.int8(), pa.int64()), ["int64"]),
    ("pyarrow", "runs", lambda pa: pa.run_end_encoded(pa.int32(), pa.int64()), ["int64"]),
    ("pyarrow", "lists", lambda pa: pa.list_(pa.float64()), ["float64"]),
    ("pyarrow", "long lists", lambda pa: pa.large_list(pa.int8()), ["int8"]),
    ("pyarrow", "rows", lambda pa: pa.list_(pa.int64(), 2), ["int64"]),
    ("pyarrow", "tensors", lambda pa: pa.fixed_shape_tensor(pa.float32(), [2, 2]), ["float32"]),
    ("pyarrow", "structs", lambda pa: pa.struct({"a": pa.int8(), "b": pa.bool_()}), ["int8", "bool"]),
    ("pyarrow", "halves", lambda pa: pa.float16(), ["float16"]),
]


@pytest.mark.parametrize(
    ("library", "make", "names"),
    [(library, make, names) for library, _, make, names in NESTED],
    ids=[f"{library}, {name}" for library, name, _, _ in NESTED],
)
def test_names_of__nested_and_encoded_dtypes_are_those_of_their_values(
    library: str, make: Callable[[Any], Any], names: list[str]
) -> None:
    """What a dtype is made of is found in the library's own classes, and an export has to keep it."""
    dtype = make(pytest.importorskip(library))
    assert names_of(dtype) == names
    if names == ["int64"]:
        x = array_only(np.ones(2))
        type(x).dtype = dtype  # type: ignore[attr-defined]
        with pytest.raises(xbridge.DTypeError, match="its values are int64, and it exports float64; try "):
            xbridge.to_numpy(x)


def test_names_of__arrow_dtype_of_pandas() -> None:
    """pandas names Arrow's types in its own words, which are read by the adapter of pyarrow."""
    pandas, pa = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    assert names_of(pandas.ArrowDtype(pa.float64())) == ["float64"]
    assert names_of(pandas.ArrowDtype(pa.list_(pa.int8()))) == ["int8"]


HINTS: list[tuple[str, str, Callable[[Any], Any], str]] = [
    ("pandas", "levels", lambda pd: pd.MultiIndex.from_tuples([(1, 2)]), "x.to_frame().to_numpy('float64')"),
    ("pandas", "a column", lambda pd: pd.array([True, None]), "x.astype('float64')"),
    ("polars", "a frame", lambda pl: pl.DataFrame({"a": [True, None]}), "x.cast(float)"),
    ("pyarrow", "truth", lambda pa: pa.array([True, None]), "x.cast('float64', safe=False)"),
]


@pytest.mark.parametrize(
    ("library", "make", "hint"),
    [(library, make, hint) for library, _, make, hint in HINTS],
    ids=[f"{library}, {name}" for library, name, _, _ in HINTS],
)
def test_cast_hint__works(library: str, make: Callable[[Any], Any], hint: str) -> None:
    """A cast that a message names makes an object of numbers that can be read."""
    x = make(pytest.importorskip(library))
    with pytest.raises(xbridge.DTypeError) as caught:
        xbridge.to_numpy(x)
    assert caught.value.hint == hint
    assert xbridge.to_numpy(eval(hint, {"x": x})).dtype.kind in "fi"


UNKNOWN: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("polars", "lists in a frame", lambda pl: pl.DataFrame({"a": [[1, 2], [3]]})),
    ("pyarrow", "lists in a table", lambda pa: pa.table({"a": [[1, 2], [3]]})),
    ("pyarrow", "structs", lambda pa: pa.array([{"a": 1}])),
]


@pytest.mark.parametrize(
    ("library", "make"),
    [(library, make) for library, _, make in UNKNOWN],
    ids=[f"{library}, {name}" for library, name, _ in UNKNOWN],
)
def test_cast_hint__values_without_a_cast(library: str, make: Callable[[Any], Any]) -> None:
    """No cast is named for values that the library cannot cast to numbers."""
    x = make(pytest.importorskip(library))
    with pytest.raises(xbridge.DTypeError, match="try filling what is missing, or casting it, in its own"):
        xbridge.to_numpy(x)


def test_cast_hint__arrow_tensor() -> None:
    """A tensor of Arrow has no cast, and a buffer no type."""
    pa = pytest.importorskip("pyarrow")
    tensor = pa.Tensor.from_numpy(np.ones((2, 2)))
    assert adapter_for(tensor).cast_hint(tensor, "float64") is None
    assert adapter_for(tensor).count_missing(tensor) == 0
    assert xbridge.to_list(pa.py_buffer(b"ab")) == [97, 98]


TEXT: list[tuple[str, Callable[[Any], Any], str | None]] = [
    (
        "pandas",
        lambda pd: pd.Series([[1], [2]]),
        "x.astype(float) if it spells numbers, or asarray(x.tolist(), backend='numpy') if it holds lists",
    ),
    ("pandas", lambda pd: pd.Series(["a"]), "x.factorize()[0]"),
    ("pandas", lambda pd: pd.Index(["1", "2"]), "x.astype(float)"),
    (
        "pandas",
        lambda pd: pd.DataFrame({"a": ["a"], "b": [1]}),
        "x.select_dtypes(['number', 'bool']).astype('float64')",
    ),
    (
        "pandas",
        lambda pd: pd.DataFrame({"a": ["a"]}),
        "x.apply(lambda column: column.factorize()[0])",
    ),
    ("pandas", lambda pd: pd.DataFrame({"a": [{}]}), None),
    ("pandas", lambda pd: pd.MultiIndex.from_tuples([("a", 1)]), None),
    ("polars", lambda pl: pl.Series(["a"]), "x.rank('dense') - 1"),
    ("polars", lambda pl: pl.DataFrame({"a": ["a"]}), None),
    ("polars", lambda pl: pl.DataFrame({"a": ["a"], "b": [1], "c": [True]}), "x.select(['b', 'c'])"),
    ("pyarrow", lambda pa: pa.array(["a"]), "x.dictionary_encode().indices"),
]


def test_codes_hint__missing_time_has_no_integer() -> None:
    """The advice leaves missing times out: as integers they would be the lowest there is."""
    pd = pytest.importorskip("pandas")
    for times in (["2020-01-01"], ["2020-01-01", None]):
        x = pd.Series(pd.to_datetime(times))
        call = adapter_for(x).codes_hint(x)
        assert call is not None
        assert eval(call, {"x": x}).tolist() == x.to_numpy()[:1].view("int64").tolist()


def test_codes_hint__numbers_inside_of_values() -> None:
    """The advice for periods, intervals and lists is a call that reads their numbers."""
    pd, pa = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    of: dict[str, tuple[Any, list[object]]] = {
        "period": (pd.Series(pd.period_range("1970", periods=2, freq="Y")), [0, 1]),
        "interval": (pd.Series(pd.interval_range(0, 2)), [0.5, 1.5]),
        "index": (pd.interval_range(0, 2), [0.5, 1.5]),
        "list": (pd.Series(pd.arrays.ArrowExtensionArray(pa.array([[1], [2]]))), [[1], [2]]),
    }
    for name, (x, numbers) in of.items():
        with pytest.raises(xbridge.DTypeError) as caught:
            xbridge.to_numpy(x)
        inside = eval(caught.value.hint, {"x": x, "asarray": xbridge.asarray})
        assert xbridge.to_numpy(inside).tolist() == numbers, name


@pytest.mark.parametrize(
    ("library", "make", "hint"), TEXT, ids=[f"{library}-{i}" for i, (library, *_) in enumerate(TEXT)]
)
def test_numbers_hint__values_that_are_text(library: str, make: Callable[[Any], Any], hint: str) -> None:
    """Text has the hint of its library, or none, and only pandas casts a table as a whole."""
    x = make(pytest.importorskip(library))
    assert adapter_for(x).numbers_hint(x) == hint
    assert library == "pandas" or adapter_for(x).cast_table(x, "float64") is None


def test_cast_table__one_column() -> None:
    """Only a data frame is cast as a whole."""
    pandas = pytest.importorskip("pandas")
    x = pandas.Series([1, 2])
    assert adapter_for(x).cast_table(x, "float64") is None
