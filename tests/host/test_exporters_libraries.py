"""What other people's libraries really export: exact, or refused, and never written through."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from exporters import array_only
from fresh import run
from rawmemory import same_bits, write

import xbridge
import xbridge.tree

if TYPE_CHECKING:
    from pathlib import Path

DAY = dt.date(2020, 1, 1)
LARGE = 2**53 + 1
"""The first integer that a float64 rounds."""


FILES = itertools.count()


def dataset(data: Any) -> Any:
    """A dataset of h5py in a file that is nowhere but in memory."""
    h5py = pytest.importorskip("h5py")
    file = h5py.File(f"numbers {next(FILES)}", "w", driver="core", backing_store=False)
    return file.create_dataset("x", data=data)


def image(mode: str, pixels: list[Any]) -> Any:
    """An image of Pillow: two rows of pixels, the second all like the first pixel."""
    made = pytest.importorskip("PIL.Image").new(mode, (3, 2))
    made.putdata(pixels + [pixels[0]] * 3)
    return made


def encoded(values: list[Any]) -> Any:
    """A dictionary of pyarrow in which the first value is there, and the second is missing."""
    pa = pytest.importorskip("pyarrow")
    return pa.chunked_array([pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int32()), values)])


LIBRARIES = {"pa": "pyarrow", "pd": "pandas", "pl": "polars", "zarr": "zarr", "h5py": "h5py"}


def made(source: str) -> Any:
    """What an expression makes of a library's own, or a skip."""
    names = {name: pytest.importorskip(LIBRARIES[name]) for name in LIBRARIES if f"{name}." in source}
    return eval(source, {**globals(), **names})


def equal(x: Any, expected: Any) -> bool:
    """Bit for bit, but for truth: Pillow's bytes for it are 0 and 255."""
    if expected.dtype.kind == "b":
        return "bool" in str(x.dtype) and x.tolist() == expected.tolist()
    return same_bits(x, expected)


SHARED: dict[str, tuple[str, Any]] = {
    "pa.array([1, -2, LARGE])": ("int64", [1, -2, LARGE]),
    "pa.array(np.array([0.5, -2], 'f2'))": ("float16", [0.5, -2]),
    "pa.array([1, 255], pa.uint8())": ("uint8", [1, 255]),
    "pa.array(range(10))[2:5]": ("int64", [2, 3, 4]),
    "pa.array([None, 1, 2])[1:]": ("int64", [1, 2]),
    "pa.Tensor.from_numpy(np.frombuffer(bytes(8), 'f4').reshape(1, 2))": ("float32", [[0, 0]]),
    "pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(8.0).reshape(2, 2, 2))": (
        "float64",
        [[[0, 1], [2, 3]], [[4, 5], [6, 7]]],
    ),
    "pd.Series([1.5, -2], dtype='f4')": ("float32", [1.5, -2]),
    "pd.Index([1, LARGE])": ("int64", [1, LARGE]),
    "pd.DataFrame({'a': [1.0, 2.0]})['a']": ("float64", [1, 2]),
    "pd.Series(range(4))[::-2]": ("int64", [3, 1]),
    "pd.DataFrame({'a': [1, 2], 'b': [3, 4]})": ("int64", [[1, 3], [2, 4]]),
    "pd.array([1, LARGE])": ("int64", [1, LARGE]),
    "pd.array([True, False])": ("bool", [True, False]),
    "pl.Series([1, LARGE])": ("int64", [1, LARGE]),
    "pl.Series([0.5, -2], dtype=pl.Float32)": ("float32", [0.5, -2]),
    "pl.Series(range(9))[2:5]": ("int64", [2, 3, 4]),
    "pl.Series([], dtype=pl.Int8)": ("int8", []),
    "pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int8, 2))": ("int8", [[1, 2], [3, 4]]),
}
"""Expressions, the dtypes and the values of the arrays over their memory."""

COPIES: dict[str, tuple[str, Any]] = {
    "pa.chunked_array([[1, LARGE], [3]])": ("int64", [1, LARGE, 3]),
    "pa.array([True, False])": ("bool", [1, 0]),
    "pa.array([LARGE, 1]).dictionary_encode()": ("int64", [LARGE, 1]),
    "pa.table({'a': pa.array([1, 2], pa.int32()), 'b': [0.5, 4], 'c': [True, False]})": (
        "float64",
        [[1, 0.5, 1], [2, 4, 0]],
    ),
    "pa.table({'a': [1, 2], 'b': [3, 4]})": ("int64", [[1, 3], [2, 4]]),
    "pd.DataFrame({'a': np.array([1, 2], 'i4'), 'b': [0.5, 4]})": ("float64", [[1, 0.5], [2, 4]]),
    "pd.Series([5, 7, 5], dtype='category')": ("int64", [5, 7, 5]),
    "pd.arrays.SparseArray([0, 0, 1])": ("int64", [0, 0, 1]),
    "pl.Series([True, False])": ("bool", [True, False]),
    # Columns of one dtype are exported without a copy if they happen to lie side by side.
    "pl.DataFrame({'a': [1, 2], 'b': pl.Series([3, 4], dtype=pl.Int32)})": ("int64", [[1, 3], [2, 4]]),
    "image('1', [255, 0, 0])": ("bool", [[1, 0, 0], [1, 1, 1]]),
    "image('L', [1, 2, 255])": ("uint8", [[1, 2, 255], [1, 1, 1]]),
    "image('RGB', [(1, 2, 3), (4, 5, 6), (7, 8, 255)])": (
        "uint8",
        [[(1, 2, 3), (4, 5, 6), (7, 8, 255)], [(1, 2, 3)] * 3],
    ),
    "image('I;16B', [1, 2, 65535])": ("uint16", [[1, 2, 65535], [1, 1, 1]]),
    "image('F', [0.5, -2, 3])": ("float32", [[0.5, -2, 3], [0.5] * 3]),
    "dataset([[1, 2], [3, LARGE]])": ("int64", [[1, 2], [3, LARGE]]),
    "dataset(np.array([1, 2], '>f4'))": ("float32", [1, 2]),
    "dataset(2.5)": ("float64", 2.5),
    "zarr.array(np.array([0.5, -2], 'f2'))": ("float16", [0.5, -2]),
    "zarr.array(np.array(2.5))": ("float64", 2.5),
}
"""The same of objects that export a copy each time."""

CASES = {**SHARED, **COPIES}


@pytest.mark.parametrize("source", CASES)
def test_to_numpy__values_come_exactly_and_cannot_be_written(source: str) -> None:
    """The values come exactly and cannot be written."""
    dtype, values = CASES[source]
    x, expected = made(source), np.array(values, dtype)
    host = xbridge.to_numpy(x)
    assert xbridge.dtype_of(host) == dtype
    assert equal(host, expected)
    assert not host.flags.writeable
    own = xbridge.to_numpy(x, copy=True)
    write(own)
    assert equal(xbridge.to_numpy(x), expected)
    assert xbridge.to_list(x) == expected.tolist()
    assert equal(xbridge.asarray([x, x]), np.stack([expected] * 2))


@pytest.mark.parametrize("source", CASES)
def test_to_numpy__exporter_of_copies_shares_nothing(source: str) -> None:
    """An exporter of copies shares nothing."""
    x = made(source)
    if source in SHARED:
        host = xbridge.to_numpy(x, copy=False)
        assert host.size == 0 or np.shares_memory(host, xbridge.to_numpy(x))
        assert xbridge.shares_memory(x, x) is bool(host.size)
    else:
        with pytest.raises(xbridge.CopyError, match="try copy=None"):
            xbridge.to_numpy(x, copy=False)
        assert not xbridge.shares_memory(x, x)


NO_MEMORY = "it is not an array, and it exports no memory"
REFUSED = {
    "pa.array([1, None])": "int64, and it exports float64",
    "pa.array([True, None])": "exports object",
    "pa.array(['a'])": "exports object",
    "pa.array([DAY])": "exports datetime64",
    "pa.array([[1, 2], [3, 4]])": "exports object",
    "pa.array([[LARGE], None], pa.list_(pa.int64(), 1))": "exports object",
    "pa.chunked_array([[True], [None]])": "exports object",
    "pa.scalar(5)": NO_MEMORY,
    "pa.table({'a': [1], 'b': ['x']})": "its column 'b' is string, and it exports object",
    "pd.array([True, None])": "exports object",
    "pd.Series(['a'])": "not a numeric dtype",
    "pd.to_datetime(pd.Series([DAY]))": "exports datetime64",
    "pd.Series(['a'], dtype='category')": "not a numeric dtype",
    "pd.MultiIndex.from_tuples([(1, 'x')])": "exports object",
    "pd.Series(pd.arrays.ArrowExtensionArray(encoded([LARGE])))": "exports object",
    "pd.DataFrame({'a': [1], 'b': ['x']})": r"its column 'b' is (str|object), and it exports object",
    "pl.DataFrame({'a': [1], 'b': ['x']})": "its column 'b' is string, and it exports object",
    "pl.Series([LARGE, None])": "int64, and it exports float64",
    "pl.Series([True, None])": "exports object",
    "pl.Series(['a'])": "not a numeric dtype",
    "pl.Series([DAY])": "exports datetime64",
    "pl.Series([1.5]).cast(pl.Decimal(10, 2))": "exports object",
    "pl.Series([1], dtype=pl.Int128)": "i128",
    "pl.DataFrame({'a': [1]}).lazy()": NO_MEMORY,
    "dataset(['a'])": "exports object",
    "dataset(np.zeros(2, 'i4,f4'))": "not a numeric dtype",
    "dataset(h5py.Empty('f4'))": "(its shape is None|export failed)",
    "zarr.group()": NO_MEMORY,
}


@pytest.mark.filterwarnings("ignore:Passing None into shape arguments:DeprecationWarning")
@pytest.mark.parametrize("source", REFUSED)
def test_asarray__values_that_would_be_lost(source: str) -> None:
    """What would be lost is refused."""
    x = made(source)
    for call in (xbridge.to_numpy, xbridge.to_list, lambda x: xbridge.asarray([x])):
        with pytest.raises(TypeError, match=f"{REFUSED[source]}") as caught:
            call(x)
        assert isinstance(caught.value, xbridge.XBridgeError)


ROUNDED = {
    "pd.DataFrame({'a': [LARGE], 'b': [0.5]})": "column 'a' is int64",
    "type('Mine', (pd.DataFrame,), {})({'a': [LARGE], 'b': [0.5]})": "column 'a' is int64",
    "pd.DataFrame({'dtype': [LARGE], 'schema': [1], 'type': [0.5]})": "column 'dtype' is int64",
    "pd.DataFrame({'a': np.array([1], 'u8'), 'b': [LARGE]})": "column 'a' is uint64",
    "pd.DataFrame({'a': pd.array([LARGE, None])})": "column 'a' is int64",
    "pd.DataFrame({'a': pd.arrays.SparseArray([LARGE]), 'b': [0.5]})": "column 'a' is int64",
    "pd.Categorical([LARGE, None])": "values are int64",
    "pd.CategoricalIndex([LARGE, None])": "values are int64",
    "pd.Series([LARGE, None], dtype=pd.CategoricalDtype([LARGE]))": "values are int64",
    "pd.Series([LARGE, None], dtype='Int64')": "dtype is int64",
    "pl.DataFrame({'a': [LARGE], 'b': [0.5]})": "column 'a' is int64",
    "pa.table({'a': [LARGE], 'b': [0.5]})": "column 'a' is int64",
    "pa.RecordBatch.from_pydict({'a': [LARGE, None], 'b': [0.5, 1]})": "column 'a' is int64",
    "pa.array([LARGE, None])": "dtype is int64",
    "pa.chunked_array([[LARGE], [None]])": "dtype is int64",
    "pa.array([LARGE, None]).dictionary_encode()": "values are int64",
    "encoded([LARGE])": "1 of its values are missing",
    "encoded([0.5])": "1 of its values are missing",
    "pa.table({'a': encoded([LARGE])})": "1 of its values are missing",
    "pd.DataFrame({'a': [True, False], 'b': pd.Categorical([True, None])})": "1 of its values are missing",
}


@pytest.mark.parametrize("source", ROUNDED)
def test_to_numpy__what_an_export_would_round_or_invent_is_refused_with_a_cast_that_works(
    source: str,
) -> None:
    """What an export would round or invent is refused with a cast that works."""
    x, reason = made(source), ROUNDED[source]
    with pytest.raises(xbridge.DTypeError, match=f"its {reason}|{reason}") as caught:
        xbridge.to_numpy(x)
    host = xbridge.to_numpy(eval(caught.value.hint, {**vars(xbridge), "x": x}))
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
        with pytest.raises(xbridge.DTypeError, match=r"(values are|'a' is) int64, .* float64$"):
            xbridge.to_numpy(x)


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
            with pytest.raises(xbridge.UnsupportedArrayError, match=r"its export failed"):
                xbridge.to_numpy(x)


def test_to_numpy__dataset_whose_file_is_closed_is_refused() -> None:
    """A dataset whose file is closed is refused."""
    x = dataset([1, 2])
    x.file.close()
    for copy in (None, True):
        with pytest.raises(xbridge.UnsupportedArrayError, match=r"its export failed"):
            xbridge.to_numpy(x, copy=copy)


NAMED = {
    "pd.DataFrame({'a': [LARGE, 2], 'b': [0.5, 1]})": [[2.0**53, 0.5], [2, 1]],
    "pd.DataFrame({'a': pd.array([1, None]), 'b': [True, False]})": [[1, 1], [None, 0]],
    "pd.MultiIndex.from_tuples([(1, 2.5)])": [[1, 2.5]],
    "pd.Series([1, None], dtype='Int8')": [1, None],
    "pd.Series([True, None], dtype='bool[pyarrow]')": [1, None],
    "pd.Categorical([3, None])": [3, None],
    "pl.DataFrame({'a': [LARGE, None], 'b': [0.5, 1]})": [[2.0**53, 0.5], [None, 1]],
    "pl.Series([True, None])": [1, None],
    "pa.table({'a': [LARGE, None], 'b': [0.5, 1]})": [[2.0**53, 0.5], [None, 1]],
    "pa.array([1, None]).dictionary_encode()": [1, None],
}
"""Tables and columns that a named dtype permits to cast, with their values; None is a missing one."""


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("source", NAMED)
def test_to_numpy__named_dtype_is_a_permission_to_cast_each_column(source: str, dtype: str) -> None:
    """A table of several dtypes, or with missing integers, becomes the named floating dtype, in C order."""
    x, wanted = made(source), np.array(NAMED[source], "float64").astype(dtype)
    with contextlib.suppress(ImportError):
        assert str(xbridge.to_torch(x, dtype=dtype).numpy()) == str(wanted)
    for _ in range(2):  # the second time from the cache
        host = xbridge.to_numpy(x, dtype=dtype)
        assert host.dtype == dtype
        np.testing.assert_array_equal(host, wanted)
        assert host.flags.c_contiguous  # as code expects that takes the values of a tensor by `view`
        assert xbridge.tree.to_numpy([x], dtype=dtype, exporters=True)[0].tobytes() == host.tobytes()


@pytest.mark.parametrize("word", ["unit", "units"])
def test_to_numpy__column_with_a_unit_is_refused(word: str) -> None:
    """A unit that a program has put on a column is not lost, and what is no column is refused."""
    pandas = pytest.importorskip("pandas")
    column = pandas.Series([1.0])
    setattr(column, word, "m")
    for x in (column, pandas.Timestamp(0), pandas.Timedelta(0), pandas.NA):
        with pytest.raises(xbridge.UnsupportedArrayError):
            xbridge.to_numpy(x)


@pytest.mark.parametrize("source", [source for source, wanted in NAMED.items() if "None" in str(wanted)])
def test_to_numpy__named_integer_dtype_does_not_permit_missing_values(source: str) -> None:
    """No integer stands for a missing value, also if the call names an integer dtype."""
    for dtype in ("int64", "int32", None):
        with pytest.raises(xbridge.DTypeError):
            xbridge.to_numpy(made(source), dtype=dtype)


@pytest.mark.parametrize("dtype", ["int64", "int8", "bool"])
@pytest.mark.parametrize("kind", ["float128", "float16", ">f8"])
@pytest.mark.parametrize("form", ["Series", "Index", "DataFrame", "a frame beside integers"])
def test_to_numpy__nan_in_any_float_of_numpy_goes_to_no_integer(form: str, kind: str, dtype: str) -> None:
    """Floats that have no name here, or another byte order, are checked as all others are."""
    pandas = pytest.importorskip("pandas")
    column = np.array([1, np.nan], np.longdouble if kind == "float128" else kind)
    if form == "Index" and kind == "float16":
        pytest.skip("pandas has no such index")
    x = pandas.DataFrame({"a": column, "b": [1, 2]}) if " " in form else getattr(pandas, form)(column)
    with pytest.raises(xbridge.DTypeError, match=f"{dtype} has no NaN"):
        xbridge.to_numpy(x, dtype=dtype)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("integer", [1, None])
def test_to_numpy__imaginary_part_beside_nan_is_kept(integer: int | None, dtype: str) -> None:
    """A complex number that is NaN in one part keeps the other, also beside columns that miss integers."""
    pandas = pytest.importorskip("pandas")
    x = pandas.DataFrame({"a": [complex(np.nan, 5)], "b": pandas.array([integer], dtype="Int64")})
    ((made, other),) = xbridge.to_numpy(x, dtype=dtype)
    assert (str(made.real), made.imag) == ("nan", 5)
    assert np.isnan(other) if integer is None else other == integer


def test_to_numpy__frame_of_nullable_dtypes_is_promoted_exactly() -> None:
    """Several nullable dtypes become one that has every value of each, or the frame is refused."""
    pandas = pytest.importorskip("pandas")
    large = pandas.DataFrame({"a": [2**63 - 1, 2], "b": [True, False]}).convert_dtypes()
    assert xbridge.to_numpy(large).tolist() == [[2**63 - 1, 1], [2, 0]]
    mixed = pandas.DataFrame({"a": [1, None], "b": [0.5, None]}).astype({"a": "Int32", "b": "Float64"})
    np.testing.assert_array_equal(xbridge.to_numpy(mixed), [[1, 0.5], [np.nan, np.nan]])
    for words in ({"a": "Int64", "b": "Float64"}, {"a": "Int64", "b": "UInt64"}):
        frame = pandas.DataFrame({"a": [1, 2], "b": [1, 2]}).astype(words)
        with pytest.raises(xbridge.DTypeError, match=r"column 'a' is int64.*; try to_numpy\(x, dtype="):
            xbridge.to_numpy(frame)
        assert xbridge.to_numpy(frame, dtype="float64").tolist() == [[1, 1], [2, 2]]


@pytest.mark.parametrize("word", ["Int64", "boolean", "bool[pyarrow]", "int64[pyarrow]"])
def test_to_numpy__advice_for_missing_values_gives_nan(word: str) -> None:
    """What the message says for a nullable column, or a frame of them, is an array with NaN."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    for x in (column := pandas.Series([1, None], dtype=word)), column.to_frame():
        with pytest.raises(xbridge.DTypeError) as caught:
            xbridge.to_numpy(x)
        made = eval(caught.value.hint, {**vars(xbridge), "x": x})
        np.testing.assert_array_equal(made.ravel(), [1, np.nan])


NUMBERS_WANTED: dict[str, tuple[str, Any]] = {
    "pd.DataFrame({'a': ['1', '2'], 'b': [True, False]})": ("x[['b']]", [[1], [0]]),
    "pd.DataFrame({'a b': pd.Categorical(['y', 'x']), 'b': [1, 2]})": ("x[['b']]", [[1], [2]]),
    "pd.DataFrame({'a': pd.to_datetime(['1970-01-02', None]), 'b': [1, 2]})": ("x[['b']]", [[1], [2]]),
    "pd.DataFrame({'a': pd.to_timedelta([1, 2]), 'b': [1, 2]})": ("x[['b']]", [[1], [2]]),
    "pd.DataFrame({'a': ['y', 'x'], 'b': [1, 2.5], 'z': [1j, 2]})": ("x[['b']]", [[1], [2.5]]),
    "pd.DataFrame({'a': [LARGE], 'b': [True], 's': ['x']})": ("x[['a', 'b']]", [[LARGE, 1]]),
    "pd.DataFrame({'a': [LARGE], 's': pd.to_datetime(['1970'])})": ("x[['a']]", [[LARGE]]),
    "pd.DataFrame({'a': [LARGE], 's': pd.Categorical(['x'])})": ("x[['a']]", [[LARGE]]),
    "pd.DataFrame({'a': pd.array([LARGE], 'Int64'), 's': ['x']})": ("x[['a']]", [[LARGE]]),
    "pd.DataFrame({'a': [1], 'b': [0.5], 's': ['x']})": ("astype(float)", [[1, 0.5]]),
    "pd.DataFrame({'a': pd.array([1, None], 'Int64'), 's': 'x'}).dropna()": ("x[['a']]", [[1]]),
    "pd.Index(['1', '2'])": ("astype", [1, 2]),
    "pd.Index([str(LARGE), '2'])": ("int64", [LARGE, 2]),
    "pl.Series([LARGE]).cast(pl.Decimal(20, 0))": ("int64", [LARGE]),
    "pa.array([str(LARGE)])": ("int64", [LARGE]),
    "pd.MultiIndex.from_tuples([(2**53 + 1, 2.5)])": ("float64", [[2.0**53, 2.5]]),
    "pd.Series(pd.to_datetime(['1970-01-02', None]).as_unit('s'))": ("dropna", [86_400]),
    "pd.Series(pd.period_range('1970', periods=2, freq='Y'))": ("astype", [0, 1]),
    "pl.Series([dt.date(1970, 1, 3)])": ("to_physical", [2]),
    "pl.Series(['y', 'x'], dtype=pl.Categorical)": ("to_physical", [0, 1]),
    "pl.Series(['y', 'x'], dtype=pl.Enum(['x', 'y']))": ("to_physical", [1, 0]),
    "pl.DataFrame({'a': [1, 2], 'b': ['x', 'y']})": ("select", [[1], [2]]),
    "pa.array([dt.date(1970, 1, 3)])": ("cast", [2]),
    "pa.array([dt.datetime(1970, 1, 2)])": ("cast", [86_400_000_000]),
    "pa.table({'a': [1, 2], 'b': ['x', 'y']})": ("select", [[1], [2]]),
    "pa.array(['b', 'a', 'b']).dictionary_encode()": ("x.indices", [0, 1, 0]),
    "pa.array(['b', 'a', None]).dictionary_encode()": ("indices", [0, 1]),
}
"""Columns and tables that are refused, a word of the advice, and the numbers that following it gives."""


@pytest.mark.parametrize("source", NUMBERS_WANTED)
def test_to_numpy__advice_for_columns_of_other_values_gives_numbers(source: str) -> None:
    """Columns of numbers, text that spells numbers, categories and times become numbers by the advice."""
    x, (word, wanted) = made(source), NUMBERS_WANTED[source]
    with pytest.raises(xbridge.DTypeError) as caught:
        xbridge.to_numpy(x)
    assert word in caught.value.hint
    assert xbridge.to_list(eval(caught.value.hint, {**vars(xbridge), "numpy": np, "x": x})) == wanted


def test_to_numpy__level_without_a_name_is_named_by_its_place() -> None:
    """The levels of an index that have no names are called what pandas calls them."""
    levels = pytest.importorskip("pandas").MultiIndex.from_tuples([(1, "x")])
    with pytest.raises(xbridge.DTypeError, match="its column 'level_1' is"):
        xbridge.to_numpy(levels)


@pytest.mark.parametrize(
    "source",
    [
        "pd.DataFrame({'a': ['x', 'y', 'x']})",
        "pd.DataFrame({'a': pd.array([LARGE, None], 'Int64'), 's': ['x', 'y']})",
        "pd.DataFrame({'a': [LARGE], 'b': [0.5], 's': ['x']})",
        "pd.Series([LARGE, None], dtype=object)",
        "pd.DataFrame({'a': pd.to_timedelta([1, 2])})",
        "pd.DataFrame({'a': pd.Series([{'a': 1}], dtype=pd.ArrowDtype(pa.struct([('a', pa.int64())])))})",
        "pd.DataFrame({'a': pd.Series([[1], [2, 3]], dtype=pd.ArrowDtype(pa.list_(pa.int64())))})",
        "pl.DataFrame({'t': ['a'], **{f'c{i}': [1] for i in range(9)}})",
        "pa.array([pa.MonthDayNano([1, 2, 3])])",
        "pl.DataFrame({'a': [[1, 2], [3]]})",
        "pl.Series([[[LARGE, None]]], dtype=pl.Array(pl.Array(pl.Int64, 2), 1))",
        "pl.Series([{'a': LARGE, 'b': 0.5}])",
        "pl.DataFrame({'a': [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)], 'b': [1]})",
        "pl.DataFrame({'a': pl.Series([LARGE], dtype=pl.Int128), 'b': [0.5]})",
        "pa.table({'a': [[1, 2], [3]]})",
        "pa.array([{'a': 1}])",
    ],
)
def test_to_numpy__values_without_a_cast(source: str) -> None:
    """No cast is named for values that are no columns of numbers, and a named dtype does not permit one."""
    for dtype in (None, "float64"):
        with pytest.raises(xbridge.DTypeError, match=r"it exports [^;]*$"):
            xbridge.to_numpy(made(source), dtype=dtype)


NESTED = {
    "pd.SparseDtype('int64')": "values are int64",
    "pd.CategoricalDtype([1, 2])": "values are int64",
    "pd.Int8Dtype()": "dtype is int8",
    "pd.ArrowDtype(pa.float64())": "values are float64",
    "pd.ArrowDtype(pa.list_(pa.int8()))": "values are int8",
    "pl.Array(pl.Array(pl.Int64, 2), 1)": "values are int64",
    "pl.List(pl.Int8)": "values are int8",
    "pl.Struct({'a': pl.Int64, 'b': pl.Float32})": "values are int64",
    "pl.Enum(['a'])": "values are string",
    "pl.UInt8": "dtype is uint8",
    "pa.dictionary(pa.int8(), pa.int64())": "values are int64",
    "pa.run_end_encoded(pa.int32(), pa.int64())": "values are int64",
    "pa.list_(pa.float64())": "values are float64",
    "pa.large_list(pa.int8())": "values are int8",
    "pa.list_(pa.int64(), 2)": "values are int64",
    "pa.fixed_shape_tensor(pa.float32(), [2, 2])": "values are float32",
    "pa.struct({'a': pa.int8(), 'b': pa.bool_()})": "values are int8",
    "pa.float16()": "values are float16",
}
"""Dtypes of libraries, and what an export of truth values does not keep of them."""


@pytest.mark.parametrize("source", NESTED)
def test_to_numpy__nested_and_encoded_dtypes_are_those_of_their_values(source: str) -> None:
    """What a dtype is made of is found in the library's own classes, and an export has to keep it."""
    x = array_only(np.ones(2, bool))
    type(x).dtype = made(source)  # type: ignore[attr-defined] # of a class made at run time
    with pytest.raises(xbridge.DTypeError, match=f"its {NESTED[source]}, and it exports bool"):
        xbridge.to_numpy(x)


def test_to_numpy__imports_a_library_only_for_an_object_of_it() -> None:
    """Reading the export of an object of an unknown library imports none of those that have adapters."""
    code = """
        import sys, array, xbridge
        xbridge.to_numpy(array.array("d", [1, 2]))
        print(sorted({"pandas", "polars", "pyarrow"} & {*sys.modules}))
    """
    assert run(code) == (0, ["[]"])


def test_to_numpy__hint_for_complex_columns_is_their_real_part() -> None:
    """Following the hint for a real dtype that a complex column was to get gives the real numbers."""
    pandas = pytest.importorskip("pandas")
    for x in (pandas.Series([1j, 2.5]), pandas.DataFrame({"a": [1j, 2.5]})):
        with pytest.raises(xbridge.DTypeError, match="drops the imaginary part") as caught:
            xbridge.to_numpy(x, dtype="float32")
        assert eval(caught.value.hint, {**vars(xbridge), "x": x}).ravel().tolist() == [0, 2.5]


ROWS: dict[str, Any] = {
    "pd.Series([np.array([0.1, 2]), np.array([3.0, 4])])": [[0.1, 2.0], [3.0, 4.0]],
    "pd.Series([np.array([LARGE]), np.array([1, 2])])": [[LARGE], [1, 2]],
    "pd.Series([np.float32([0.5]), np.array([0.1])])": [[0.5], [0.1]],
    "pd.Series([np.zeros(1)] * 1001 + [np.ones(2)])": [[0.0]] * 1001 + [[1.0, 1.0]],
    "pd.Series([[0.1], [2]], dtype=pd.ArrowDtype(pa.list_(pa.float64())))": [[0.1], [2.0]],
    "pd.Series([[LARGE], [None]], dtype=pd.ArrowDtype(pa.list_(pa.int64())))": None,
    "pd.Series([np.array([1]), None])": None,
    "pd.Series([np.array(['x'])] * 2)": None,
    "pd.Series([np.array(['2020'], 'M8[D]')] * 2)": None,
    "pl.Series([[0.1], [2.0]])": [[0.1], [2.0]],
    "pl.Series([[LARGE], [None]])": None,
    "pa.array([[LARGE, 2], [3]])": [[LARGE, 2], [3]],
    "pa.array([[LARGE], None])": None,
    "pa.array([[LARGE, None]])": None,
    "pa.array([['x']])": None,
    "pa.array([[[1]], [[2]]])": None,
    "pa.FixedSizeListArray.from_arrays(pa.array([0.1, 2, 3, 4]), 2)": [[0.1, 2.0], [3.0, 4.0]],
    "pa.array([[1, 2], None, [LARGE, 4], [5, 6]], pa.list_(pa.int64(), 2))[2:3]": [[LARGE, 4]],
    "pa.array([[1, 2], None, [LARGE, 4], [5, 6]], pa.list_(pa.int64(), 2))[1:]": None,
    "pa.array([[1, None]], pa.list_(pa.int64(), 2))": None,
    "pa.array([[True], [False]], pa.list_(pa.bool_(), 1))": [[True], [False]],
    "pa.array([[], []], pa.list_(pa.int64(), 0))": [[], []],
    "pa.array([['x'], ['y']], pa.list_(pa.string(), 1))": None,
    "pa.chunked_array([pa.array([[LARGE, 2]], pa.list_(pa.int64(), 2))] * 2)": [[LARGE, 2]] * 2,
}
"""Columns of rows, and the values that the advice keeps; None if there is none."""


@pytest.mark.parametrize("source", ROWS)
def test_asarray__advice_for_columns_of_rows_keeps_values_and_dtype(source: str) -> None:
    """Rows of one shape become one array, others an array each; where some are missing, nothing is said."""
    x, wanted = made(source), ROWS[source]
    for backend in filter(xbridge.is_available, ("numpy", "torch")):
        with pytest.raises(xbridge.DTypeError) as caught:
            xbridge.to_backend(x, backend)
        if wanted is None:
            assert not caught.value.hint
            continue
        rows = eval(caught.value.hint, {**vars(xbridge), "xbridge": xbridge, "numpy": np, "x": x})
        there = xbridge.tree.to_backend(rows, backend)
        assert xbridge.tree.map(xbridge.to_list, there) == wanted
        kinds = {xbridge.dtype_of(row) for row in (there if isinstance(there, list) else [there])}
        first = next(iter(np.asarray(x).flat))
        assert {first.dtype.name} <= kinds
