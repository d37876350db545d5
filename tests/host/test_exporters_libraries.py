"""What other people's libraries really export: exact, or refused, and never written through."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from exporters import dlpack_only
from rawmemory import same_bits, write

import xbridge

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DAY = dt.date(2020, 1, 1)
LARGE = 2**53 + 1
"""The first integer that a float64 rounds."""


class Case(NamedTuple):
    """What a library makes, and what must come of it."""

    library: str
    name: str
    make: Callable[[Any], Any]
    dtype: str
    values: Any
    shares: bool = True
    writable: bool = False

    def object(self) -> Any:
        """The library's own object, or a skip."""
        return self.make(pytest.importorskip(self.library))


FILES = itertools.count()


def dataset(h5py: Any, data: Any) -> Any:
    """A dataset in a file that is nowhere but in memory."""
    file = h5py.File(f"numbers {next(FILES)}", "w", driver="core", backing_store=False)
    return file.create_dataset("x", data=data)


def image(pil: Any, mode: str, pixels: list[Any]) -> Any:
    """Two rows of pixels, the second all like the first pixel."""
    made = pil.new(mode, (3, 2))
    made.putdata(pixels + [pixels[0]] * 3)
    return made


def equal(x: Any, expected: Any) -> bool:
    """Bit for bit, but for truth: Pillow's bytes for it are 0 and 255."""
    if expected.dtype.kind == "b":
        return "bool" in str(x.dtype) and x.tolist() == expected.tolist()
    return same_bits(x, expected)


def rows(first: list[Any]) -> list[Any]:
    """The values of `image`."""
    return [first, [first[0]] * 3]


GREY, COLOUR = [1, 2, 255], [(1, 2, 3), (4, 5, 6), (7, 8, 255)]

ARROW = [
    Case("pyarrow", "integers", lambda pa: pa.array([1, -2, LARGE]), "int64", [1, -2, LARGE]),
    Case("pyarrow", "halves", lambda pa: pa.array(np.array([0.5, -2], "f2")), "float16", [0.5, -2]),
    Case("pyarrow", "bytes", lambda pa: pa.array([1, 255], pa.uint8()), "uint8", [1, 255]),
    Case("pyarrow", "a slice", lambda pa: pa.array(range(10))[2:5], "int64", [2, 3, 4]),
    Case("pyarrow", "a slice without its null", lambda pa: pa.array([None, 1, 2])[1:], "int64", [1, 2]),
    Case("pyarrow", "nothing", lambda pa: pa.array([], pa.int32()), "int32", [], writable=True),
    Case("pyarrow", "chunks", lambda pa: pa.chunked_array([[1, LARGE], [3]]), "int64", [1, LARGE, 3], False),
    Case("pyarrow", "truth, bit by bit", lambda pa: pa.array([True, False]), "bool", [1, 0], False),
    Case(
        "pyarrow",
        "a dictionary",
        lambda pa: pa.array([LARGE, 1]).dictionary_encode(),
        "int64",
        [LARGE, 1],
        False,
    ),
    Case(
        "pyarrow",
        "a table of several dtypes",
        lambda pa: pa.table({"a": pa.array([1, 2], pa.int32()), "b": [0.5, 4], "c": [True, False]}),
        "float64",
        [[1, 0.5, 1], [2, 4, 0]],
        False,
    ),
    Case("pyarrow", "chunks of truth", lambda pa: pa.chunked_array([[True], [False]]), "bool", [1, 0], False),
    Case(
        "pyarrow",
        "a table",
        lambda pa: pa.table({"a": [1, 2], "b": [3, 4]}),
        "int64",
        [[1, 3], [2, 4]],
        False,
    ),
    Case(
        "pyarrow",
        "a read-only tensor",
        lambda pa: pa.Tensor.from_numpy(np.frombuffer(bytes(8), "f4").reshape(1, 2)),
        "float32",
        [[0, 0]],
    ),
    Case(
        "pyarrow",
        "tensors in an array",
        lambda pa: pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(8.0).reshape(2, 2, 2)),
        "float64",
        [[[0, 1], [2, 3]], [[4, 5], [6, 7]]],
    ),
]
PANDAS = [
    Case("pandas", "a series", lambda pd: pd.Series([1.5, -2], dtype="f4"), "float32", [1.5, -2]),
    Case("pandas", "an index", lambda pd: pd.Index([1, LARGE]), "int64", [1, LARGE]),
    Case("pandas", "a column", lambda pd: pd.DataFrame({"a": [1.0, 2.0]})["a"], "float64", [1, 2]),
    Case("pandas", "every second", lambda pd: pd.Series(range(4))[::-2], "int64", [3, 1]),
    Case("pandas", "a frame", lambda pd: pd.DataFrame({"a": [1, 2], "b": [3, 4]}), "int64", [[1, 3], [2, 4]]),
    Case(
        "pandas",
        "mixed",
        lambda pd: pd.DataFrame({"a": np.array([1, 2], "i4"), "b": [0.5, 4]}),
        "float64",
        [[1, 0.5], [2, 4]],
        False,
    ),
    Case("pandas", "nullable without nulls", lambda pd: pd.array([1, LARGE]), "int64", [1, LARGE]),
    Case("pandas", "nullable truth", lambda pd: pd.array([True, False]), "bool", [True, False]),
    Case(
        "pandas", "a category", lambda pd: pd.Series([5, 7, 5], dtype="category"), "int64", [5, 7, 5], False
    ),
    Case("pandas", "sparse", lambda pd: pd.arrays.SparseArray([0, 0, 1]), "int64", [0, 0, 1], False),
]
POLARS = [
    Case("polars", "integers", lambda pl: pl.Series([1, LARGE]), "int64", [1, LARGE]),
    Case("polars", "singles", lambda pl: pl.Series([0.5, -2], dtype=pl.Float32), "float32", [0.5, -2]),
    Case("polars", "a slice", lambda pl: pl.Series(range(9))[2:5], "int64", [2, 3, 4]),
    Case("polars", "nothing", lambda pl: pl.Series([], dtype=pl.Int8), "int8", []),
    Case("polars", "truth, bit by bit", lambda pl: pl.Series([True, False]), "bool", [True, False], False),
    Case(
        "polars",
        "rows",
        lambda pl: pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int8, 2)),
        "int8",
        [[1, 2], [3, 4]],
    ),
    Case(
        "polars",
        "a frame",
        # Columns of one dtype are exported without a copy if they happen to lie side by side.
        lambda pl: pl.DataFrame({"a": [1, 2], "b": pl.Series([3, 4], dtype=pl.Int32)}),
        "int64",
        [[1, 3], [2, 4]],
        False,
    ),
]
PIL = [
    Case("PIL.Image", "1", lambda pil: image(pil, "1", [255, 0, 0]), "bool", rows([1, 0, 0]), False),
    Case("PIL.Image", "L", lambda pil: image(pil, "L", GREY), "uint8", rows(GREY), False),
    Case("PIL.Image", "RGB", lambda pil: image(pil, "RGB", COLOUR), "uint8", rows(COLOUR), False),
    Case(
        "PIL.Image",
        "I;16",
        lambda pil: image(pil, "I;16", [1, 2, 65535]),
        "uint16",
        rows([1, 2, 65535]),
        False,
    ),
    Case(
        "PIL.Image",
        "I;16B",
        lambda pil: image(pil, "I;16B", [1, 2, 65535]),
        "uint16",
        rows([1, 2, 65535]),
        False,
    ),
    Case("PIL.Image", "I", lambda pil: image(pil, "I", [-1, 2, 70000]), "int32", rows([-1, 2, 70000]), False),
    Case("PIL.Image", "F", lambda pil: image(pil, "F", [0.5, -2, 3]), "float32", rows([0.5, -2, 3]), False),
]
STORES = [
    Case(
        "h5py", "integers", lambda h5: dataset(h5, [[1, 2], [3, LARGE]]), "int64", [[1, 2], [3, LARGE]], False
    ),
    Case("h5py", "foreign order", lambda h5: dataset(h5, np.array([1, 2], ">f4")), "float32", [1, 2], False),
    Case("h5py", "truth", lambda h5: dataset(h5, [True, False]), "bool", [True, False], False),
    Case("h5py", "a number", lambda h5: dataset(h5, 2.5), "float64", 2.5, False),
    Case(
        "zarr",
        "integers",
        lambda zarr: zarr.array(np.arange(6).reshape(2, 3)),
        "int64",
        [[0, 1, 2], [3, 4, 5]],
        False,
    ),
    Case("zarr", "halves", lambda zarr: zarr.array(np.array([0.5, -2], "f2")), "float16", [0.5, -2], False),
    Case("zarr", "a number", lambda zarr: zarr.array(np.array(2.5)), "float64", 2.5, False),
]
CASES = [*ARROW, *PANDAS, *POLARS, *PIL, *STORES]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.library}, {case.name}")


@every_case
def test_to_numpy__values_come_exactly_and_cannot_be_written(case: Case) -> None:
    """The values come exactly and cannot be written."""
    x, expected = case.object(), np.array(case.values, case.dtype)
    host = xbridge.to_numpy(x)
    assert xbridge.dtype_of(host) == case.dtype
    assert equal(host, expected)
    assert host.flags.writeable is case.writable
    own = xbridge.to_numpy(x, copy=True)
    write(own)
    assert equal(xbridge.to_numpy(x), expected)
    assert xbridge.to_list(x) == expected.tolist()
    assert equal(xbridge.asarray([x, x]), np.stack([expected] * 2))


@every_case
def test_to_backend__tensor_of_them_is_the_callers_own(case: Case) -> None:
    """A tensor of them is the caller's own."""
    pytest.importorskip("torch")
    x, expected = case.object(), np.array(case.values, case.dtype)
    tensor = xbridge.to_backend(x, "torch")
    assert equal(tensor, expected)
    write(tensor)
    assert equal(xbridge.to_numpy(x), expected)


@every_case
def test_to_numpy__exporter_of_copies_shares_nothing(case: Case) -> None:
    """An exporter of copies shares nothing."""
    x = case.object()
    if case.shares:
        host = xbridge.to_numpy(x, copy=False)
        assert host.size == 0 or np.shares_memory(host, xbridge.to_numpy(x))
        assert xbridge.shares_memory(x, x) is bool(host.size)
    else:
        with pytest.raises(xbridge.CopyError, match="try copy=None"):
            xbridge.to_numpy(x, copy=False)
        assert not xbridge.shares_memory(x, x)


REFUSED: list[tuple[str, str, Callable[[Any], Any], str]] = [
    ("pyarrow", "a null", lambda pa: pa.array([1, None]), "int64, and it exports float64"),
    ("pyarrow", "no truth", lambda pa: pa.array([True, None]), "exports object"),
    ("pyarrow", "text", lambda pa: pa.array(["a"]), "exports object"),
    ("pyarrow", "dates", lambda pa: pa.array([DAY]), "exports datetime64"),
    ("pyarrow", "lists", lambda pa: pa.array([[1, 2], [3, 4]]), "exports object"),
    (
        "pyarrow",
        "a null in chunks",
        lambda pa: pa.chunked_array([[LARGE], [None]]),
        "int64, and it exports float64",
    ),
    ("pyarrow", "no truth in chunks", lambda pa: pa.chunked_array([[True], [None]]), "exports object"),
    ("pyarrow", "a number", lambda pa: pa.scalar(5), "it is not an array, and it exports no memory"),
    ("pandas", "a null", lambda pd: pd.array([LARGE, None]), "int64, and it exports float64"),
    ("pandas", "no truth", lambda pd: pd.array([True, None]), "exports object"),
    ("pandas", "text", lambda pd: pd.Series(["a"]), "not a numeric dtype"),
    ("pandas", "dates", lambda pd: pd.to_datetime(pd.Series([DAY])), "exports datetime64"),
    ("pandas", "a category", lambda pd: pd.Series(["a"], dtype="category"), "not a numeric dtype"),
    ("pandas", "several levels", lambda pd: pd.MultiIndex.from_tuples([(1, 2)]), "exports object"),
    (
        "pandas",
        "columns of all kinds",
        lambda pd: pd.DataFrame({"a": [1], "b": ["x"]}),
        "its column 'b' is (str|object), and it exports object",
    ),
    (
        "polars",
        "columns of all kinds",
        lambda pl: pl.DataFrame({"a": [1], "b": ["x"]}),
        "its column 'b' is string, and it exports object",
    ),
    (
        "pyarrow",
        "columns of all kinds",
        lambda pa: pa.table({"a": [1], "b": ["x"]}),
        "its column 'b' is string, and it exports object",
    ),
    ("polars", "a null", lambda pl: pl.Series([LARGE, None]), "int64, and it exports float64"),
    ("polars", "no truth", lambda pl: pl.Series([True, None]), "exports object"),
    ("polars", "text", lambda pl: pl.Series(["a"]), "not a numeric dtype"),
    ("polars", "dates", lambda pl: pl.Series([DAY]), "exports datetime64"),
    ("polars", "decimals", lambda pl: pl.Series([decimal.Decimal("1.5")]), "exports object"),
    ("polars", "128 bits", lambda pl: pl.Series([1], dtype=pl.Int128), "i128"),
    (
        "polars",
        "a plan",
        lambda pl: pl.DataFrame({"a": [1]}).lazy(),
        "it is not an array, and it exports no memory",
    ),
    ("h5py", "text", lambda h5py: dataset(h5py, ["a"]), "exports object"),
    ("h5py", "fields", lambda h5py: dataset(h5py, np.zeros(2, "i4,f4")), "not a numeric dtype"),
    (
        "h5py",
        "nothing at all",
        lambda h5py: dataset(h5py, h5py.Empty("f4")),
        "(its shape is None|export failed)",
    ),
    ("zarr", "a group", lambda zarr: zarr.group(), "it is not an array, and it exports no memory"),
]


@pytest.mark.filterwarnings("ignore:Passing None into shape arguments:DeprecationWarning")
@pytest.mark.parametrize(
    ("library", "make", "reason"),
    [(library, make, reason) for library, _, make, reason in REFUSED],
    ids=[f"{library}, {name}" for library, name, _, _ in REFUSED],
)
def test_asarray__values_that_would_be_lost(library: str, make: Callable[[Any], Any], reason: str) -> None:
    """What would be lost is refused."""
    x = make(pytest.importorskip(library))
    for call in (xbridge.to_numpy, xbridge.to_list, lambda x: xbridge.asarray([x])):
        with pytest.raises(TypeError, match=f"{reason}.*; try ") as caught:
            call(x)
        assert isinstance(caught.value, xbridge.XBridgeError)


def _encoded(pa: Any, values: list[Any]) -> Any:
    """A dictionary in which the first value is there, and the second is missing."""
    return pa.chunked_array([pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int32()), values)])


ROUNDED: list[tuple[str, str, Callable[[Any], Any], str]] = [
    ("pandas", "beside floats", lambda pd: pd.DataFrame({"a": [LARGE], "b": [0.5]}), "column 'a' is int64"),
    (
        "pandas",
        "columns named like attributes",
        lambda pd: pd.DataFrame({"dtype": [LARGE], "schema": [1], "type": [0.5]}),
        "column 'dtype' is int64",
    ),
    (
        "pandas",
        "signed beside unsigned",
        lambda pd: pd.DataFrame({"a": np.array([1], "u8"), "b": [LARGE]}),
        "column 'a' is uint64",
    ),
    (
        "pandas",
        "gaps in a frame",
        lambda pd: pd.DataFrame({"a": pd.array([LARGE, None])}),
        "column 'a' is int64",
    ),
    (
        "pandas",
        "a sparse column",
        lambda pd: pd.DataFrame({"a": pd.arrays.SparseArray([LARGE]), "b": [0.5]}),
        "column 'a' is int64",
    ),
    ("pandas", "a category with a gap", lambda pd: pd.Categorical([LARGE, None]), "values are int64"),
    (
        "pandas",
        "an index of categories",
        lambda pd: pd.CategoricalIndex([LARGE, None]),
        "values are int64",
    ),
    (
        "pandas",
        "a series of categories",
        lambda pd: pd.Series([LARGE, None], dtype=pd.CategoricalDtype([LARGE])),
        "values are int64",
    ),
    ("pandas", "a nullable series", lambda pd: pd.Series([LARGE, None], dtype="Int64"), "dtype is int64"),
    ("polars", "beside floats", lambda pl: pl.DataFrame({"a": [LARGE], "b": [0.5]}), "column 'a' is int64"),
    ("polars", "a gap in a frame", lambda pl: pl.DataFrame({"a": [LARGE, None]}), "column 'a' is int64"),
    (
        "polars",
        "an array with a gap",
        lambda pl: pl.Series([[LARGE, None]], dtype=pl.Array(pl.Int64, 2)),
        "values are int64",
    ),
    (
        "polars",
        "arrays of arrays",
        lambda pl: pl.Series([[[LARGE, None]]], dtype=pl.Array(pl.Array(pl.Int64, 2), 1)),
        "values are int64",
    ),
    ("polars", "a struct", lambda pl: pl.Series([{"a": LARGE, "b": 0.5}]), "values are int64"),
    (
        "polars",
        "dates beside integers",
        lambda pl: pl.DataFrame({"a": [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)], "b": [1]}),
        "column 'a' is datetime",
    ),
    (
        "polars",
        "128 bits beside floats",
        lambda pl: pl.DataFrame({"a": pl.Series([LARGE], dtype=pl.Int128), "b": [0.5]}),
        "column 'a' is int128",
    ),
    ("pyarrow", "beside floats", lambda pa: pa.table({"a": [LARGE], "b": [0.5]}), "column 'a' is int64"),
    ("pyarrow", "a gap in a table", lambda pa: pa.table({"a": [LARGE, None]}), "column 'a' is int64"),
    (
        "pyarrow",
        "a batch",
        lambda pa: pa.RecordBatch.from_pydict({"a": [LARGE, None], "b": [0.5, 1]}),
        "column 'a' is int64",
    ),
    ("pyarrow", "a null", lambda pa: pa.array([LARGE, None]), "dtype is int64"),
    ("pyarrow", "chunks", lambda pa: pa.chunked_array([[LARGE], [None]]), "dtype is int64"),
    (
        "pyarrow",
        "a dictionary",
        lambda pa: pa.array([LARGE, None]).dictionary_encode(),
        "values are int64",
    ),
    ("pyarrow", "a dictionary in chunks", lambda pa: _encoded(pa, [LARGE]), "1 of its values are missing"),
    ("pyarrow", "floats in a dictionary", lambda pa: _encoded(pa, [0.5]), "1 of its values are missing"),
    (
        "pyarrow",
        "a dictionary in a table",
        lambda pa: pa.table({"a": _encoded(pa, [LARGE])}),
        "1 of its values are missing",
    ),
]
every_rounded = pytest.mark.parametrize(
    ("library", "make", "reason"),
    [(library, make, reason) for library, _, make, reason in ROUNDED],
    ids=[f"{library}, {name}" for library, name, _, _ in ROUNDED],
)


@every_rounded
def test_to_numpy__what_an_export_would_round_or_invent_is_refused_with_a_cast_that_works(
    library: str, make: Callable[[Any], Any], reason: str
) -> None:
    """What an export would round or invent is refused with a cast that works."""
    x = make(pytest.importorskip(library))
    with pytest.raises(xbridge.DTypeError, match=f"its {reason}|{reason}") as caught:
        xbridge.to_numpy(x)
    with pytest.raises(xbridge.DTypeError):
        xbridge.to_backend(x, "numpy", dtype="float64")
    advice = str(caught.value).rpartition("; try ")[2]
    cast = eval(advice, {"xbridge": xbridge, "x": x})
    host = xbridge.to_numpy(cast)
    assert host.dtype == np.float64
    assert host.shape == np.shape(np.asarray(x))


def test_to_numpy__float_that_is_missing_is_not_a_number() -> None:
    """A float that is missing is not a number."""
    pa = pytest.importorskip("pyarrow")
    x = pa.array([1.5, None], pa.float32())
    for made in (x, pa.chunked_array([x])):
        host = xbridge.to_numpy(made)
        assert (str(host.dtype), str(host.tolist())) == ("float32", "[1.5, nan]")


def test_to_numpy__what_has_no_cast_by_name_is_refused_all_the_same() -> None:
    """What has no cast by name is refused all the same."""
    pa = pytest.importorskip("pyarrow")
    runs = pa.RunEndEncodedArray.from_arrays([2, 4], pa.array([LARGE, None]))
    for x in (runs, pa.chunked_array([runs]), pa.table({"a": runs, "b": [0.5] * 4})):
        with pytest.raises(xbridge.DTypeError, match=r"(values are|'a' is) int64, .* float64; try fil"):
            xbridge.to_numpy(x)


def test_to_list__advice_about_what_is_missing_works() -> None:
    """The advice about what is missing works."""
    pandas = pytest.importorskip("pandas")
    x = pandas.array([1, None])
    assert xbridge.to_list(x.fillna(0)) == [1, 0]
    assert np.isnan(xbridge.to_numpy(x.astype("Float64"))).tolist() == [False, True]


def test_to_numpy__writable_arrow_tensor_is_shared_both_ways() -> None:
    """A writable arrow tensor is shared both ways."""
    pa = pytest.importorskip("pyarrow")
    numbers = np.arange(6.0).reshape(2, 3).T
    host = xbridge.to_numpy(pa.Tensor.from_numpy(numbers))
    assert np.shares_memory(host, numbers)
    write(host)
    assert same_bits(host, numbers)
    assert not np.array_equal(numbers, np.arange(6.0).reshape(2, 3).T)


def test_to_numpy__image_that_is_closed_or_cut_off_is_refused(tmp_path: Path) -> None:
    """An image that is closed or cut off is refused."""
    pil = pytest.importorskip("PIL.Image")
    closed = pil.new("L", (2, 2))
    closed.close()
    path = tmp_path / "noise.png"
    pil.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64), "u1")).save(path)
    path.write_bytes(path.read_bytes()[:200])
    with pil.open(path) as cut:
        for x in (closed, cut):
            with pytest.raises(xbridge.UnsupportedArrayError, match=r"its export failed.*; try "):
                xbridge.to_numpy(x)


def test_to_numpy__image_is_exported_once() -> None:
    """An image is exported once."""
    pil = pytest.importorskip("PIL.Image")
    reads = []

    class Counted(pil.Image):  # type: ignore[name-defined, misc] # known when the test runs
        @property
        def __array_interface__(self) -> dict[str, Any]:
            reads.append(1)
            return super().__array_interface__  # type: ignore[no-any-return] # theirs

    x = Counted()
    x.__dict__.update(pil.new("L", (3, 2)).__dict__)
    assert xbridge.to_numpy(x).tolist() == [[0] * 3] * 2
    assert len(reads) == 1


def test_to_numpy__dataset_whose_file_is_closed_is_refused() -> None:
    """A dataset whose file is closed is refused."""
    h5py = pytest.importorskip("h5py")
    x = dataset(h5py, [1, 2])
    x.file.close()
    for copy in (None, True):
        with pytest.raises(xbridge.UnsupportedArrayError, match=r"its export failed.*; try "):
            xbridge.to_numpy(x, copy=copy)


def test_to_numpy__array_of_the_standards_own_library_needs_no_backend() -> None:
    """An array of the standard's own library needs no backend."""
    strict = pytest.importorskip("array_api_strict")
    a = np.array([1.5, -2])
    for x in (strict.asarray(a), strict.flip(strict.asarray(a)), strict.asarray(a) > 0):
        host = xbridge.to_numpy(dlpack_only(x))
        assert same_bits(host, np.asarray(x))
        assert np.shares_memory(host, np.asarray(x))


WORDS = ["Int8", "Int64", "UInt64", "boolean", "Float32", "Float64", "int64[pyarrow]", "double[pyarrow]"]


@pytest.mark.parametrize("word", WORDS)
def test_to_numpy__frame_of_one_nullable_dtype_has_that_dtype(word: str) -> None:
    """Columns of one nullable dtype are an array of it, as one such column is."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"a": [1, 0], "b": [0, 1]}).astype(word)
    made = xbridge.to_numpy(frame)
    assert made.dtype == xbridge.to_numpy(frame["a"]).dtype
    assert made.tolist() == [[1, 0], [0, 1]]


def test_to_numpy__frame_of_nullable_dtypes_is_promoted_exactly() -> None:
    """Several nullable dtypes become one that has every value of each, or the frame is refused."""
    pandas = pytest.importorskip("pandas")
    large = pandas.DataFrame({"a": [2**63 - 1, 2], "b": [True, False]}).convert_dtypes()
    assert xbridge.to_numpy(large).tolist() == [[2**63 - 1, 1], [2, 0]]
    mixed = pandas.DataFrame({"a": [1, None], "b": [0.5, None]}).astype({"a": "Int32", "b": "Float64"})
    np.testing.assert_array_equal(xbridge.to_numpy(mixed), [[1, 0.5], [np.nan, np.nan]])
    for words in ({"a": "Int64", "b": "Float64"}, {"a": "Int64", "b": "UInt64"}):
        frame = pandas.DataFrame({"a": [1, 2], "b": [1, 2]}).astype(words)
        with pytest.raises(xbridge.DTypeError, match=r"column 'a' is int64.*; try x\.astype\('float64'\)"):
            xbridge.to_numpy(frame)
        assert xbridge.to_numpy(frame.astype("float64")).tolist() == [[1, 1], [2, 2]]


@pytest.mark.parametrize("word", ["Int64", "boolean", "bool[pyarrow]", "int64[pyarrow]"])
def test_to_numpy__advice_for_missing_values_gives_nan(word: str) -> None:
    """What the message says for a nullable column, or a frame of them, is an array with NaN."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    for x in (column := pandas.Series([1, None], dtype=word)), column.to_frame():
        with pytest.raises(xbridge.DTypeError) as caught:
            xbridge.to_numpy(x)
        made = xbridge.to_numpy(eval(caught.value.hint, {"x": x}))
        np.testing.assert_array_equal(made.ravel(), [1, np.nan])


def test_to_numpy__advice_for_text_beside_numbers_gives_the_numbers() -> None:
    """The numeric columns of a frame with text can be selected and converted, nullable or not."""
    pandas = pytest.importorskip("pandas")
    for frame in (table := pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]})), table.convert_dtypes():
        with pytest.raises(xbridge.DTypeError) as caught:
            xbridge.to_numpy(frame)
        assert xbridge.to_numpy(eval(caught.value.hint, {"x": frame})).tolist() == [[1], [2]]


NUMBERS_WANTED: dict[str, tuple[str, Any]] = {
    "pandas.DataFrame({'a': ['1', '2'], 'b': ['3.5', '4']})": ("astype", [[1, 3.5], [2, 4]]),
    "pandas.DataFrame({'a': ['1', '2'], 'b': [True, False]})": ("astype", [[1, 1], [2, 0]]),
    "pandas.DataFrame({'a': ['x', 'y', 'x']})": ("factorize", [[0], [1], [0]]),
    "pandas.DataFrame({'a': pandas.to_datetime(['1970-01-02']).as_unit('s'), 'b': [1]})": (
        "assign",
        [[86_400, 1]],
    ),
    "pandas.DataFrame({'a b': pandas.Categorical(['y', 'x']), 'b': [1, 2]})": ("assign", [[1, 1], [0, 2]]),
    "pandas.DataFrame({'a': pandas.to_datetime(['1970-01-02', None]), 'b': [1, 2]})": ("select", [[1], [2]]),
    "polars.Series(['y', 'x', 'y'])": ("rank", [1, 0, 1]),
    "polars.Series(['1', '2.5'])": ("cast", [1, 2.5]),
    "polars.Series([dt.date(1970, 1, 3)])": ("to_physical", [2]),
    "polars.Series(['y', 'x'], dtype=polars.Categorical)": ("to_physical", [0, 1]),
    "polars.Series(['y', 'x'], dtype=polars.Enum(['x', 'y']))": ("to_physical", [1, 0]),
    "polars.Series([[1, 2], [3, 4]])": ("to_list", [[1, 2], [3, 4]]),
    "polars.DataFrame({'a': [1, 2], 'b': ['x', 'y']})": ("select", [[1], [2]]),
    "pyarrow.array(['y', 'x', 'y'])": ("dictionary_encode", [0, 1, 0]),
    "pyarrow.chunked_array([['y', 'x'], ['y']])": ("combine_chunks", [0, 1, 0]),
    "pyarrow.array(['1', '2.5'])": ("cast", [1, 2.5]),
    "pyarrow.array([dt.date(1970, 1, 3)])": ("cast", [2]),
    "pyarrow.array([dt.datetime(1970, 1, 2)])": ("cast", [86_400_000_000]),
    "pyarrow.array([[1, 2], [3, 4]])": ("to_pylist", [[1, 2], [3, 4]]),
    "pyarrow.table({'a': [1, 2], 'b': ['x', 'y']})": ("select", [[1], [2]]),
}
"""Columns and tables that are refused, a word of the advice, and the numbers that following it gives."""


@pytest.mark.parametrize("source", NUMBERS_WANTED)
def test_to_numpy__advice_for_columns_of_other_values_gives_numbers(source: str) -> None:
    """Text that spells numbers, labels, categories, times and lists become numbers by the advice."""
    library = source.partition(".")[0]
    names = {library: pytest.importorskip(library), "dt": dt}
    x, (word, wanted) = eval(source, names), NUMBERS_WANTED[source]
    with pytest.raises(xbridge.DTypeError) as caught:
        xbridge.to_numpy(x)
    assert word in caught.value.hint
    made = eval(caught.value.hint, {"x": x, "asarray": xbridge.asarray})
    assert xbridge.to_list(made) == wanted


@pytest.mark.parametrize(
    "source",
    [
        "pandas.DataFrame({'a': [{}]})",
        "polars.DataFrame({'a': ['x']})",
        "polars.Series([{'a': 'x'}])",
        "polars.DataFrame({'a': [[1], [2]]})",
        "pyarrow.table({'a': ['x']})",
        "pyarrow.array([b'x'])",
    ],
)
def test_to_numpy__without_an_advice_for_the_values(source: str) -> None:
    """Values that are neither numbers nor codes of something are left to their library."""
    library = source.partition(".")[0]
    x = eval(source, {library: pytest.importorskip(library)})
    with pytest.raises(xbridge.DTypeError, match=r"casting it,? in its own library first"):
        xbridge.to_numpy(x)


@pytest.mark.parametrize("label", ["null_count", "columns", "schema", "type", "fields"])
@pytest.mark.parametrize("word", ["int64", "Int64", "int64[pyarrow]"])
def test_to_numpy__label_of_a_series_is_not_an_attribute(label: str, word: str) -> None:
    """A Series gives items as attributes, by their labels. They say nothing about the Series."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    made = xbridge.to_numpy(pandas.Series([1, 0], index=[label, "b"], dtype=word))
    assert made.tolist() == [1, 0]
    frame = pandas.DataFrame({label: [1, 0], "b": [2, 3]}).astype(word)
    assert xbridge.to_numpy(frame).tolist() == [[1, 2], [0, 3]]
