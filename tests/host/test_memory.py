"""Several threads fill host memory as one does, and shares_memory is exact."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from inside import DTYPES
from numpy.lib.stride_tricks import as_strided
from rawmemory import overlaps, same_bits

import xbridge
from xbridge._host import memory
from xbridge._host import memory as _host
from xbridge.testing.strategies import host_arrays

if TYPE_CHECKING:
    from rawmemory import Host

EXACT: Any = -1
"""NumPy's MAY_SHARE_EXACT, as `max_work`."""

LITTLE: Any = memory._WORK


@given(host_arrays().filter(lambda array: array.ndim and array.size), st.sampled_from([1, 2, 5]))
def test_copy__memory_filled_by_several_threads_is_filled_all_the_same(array: Host, workers: int) -> None:
    """Memory filled by several threads is filled all the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "LARGE", 0)
        patch.setattr(memory, "WORKERS", workers)
        result = _host.copy(array)
    assert same_bits(result, array)
    assert not overlaps(result, array)
    assert result.strides == _host.copy(array).strides


@pytest.fixture(params=[0, memory.LARGE], ids=["large", "small"])
def large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every array is large enough for several threads, or none is."""
    monkeypatch.setattr(memory, "LARGE", request.param)


by_size = pytest.mark.usefixtures("large")


@by_size
def test_copy__cast_by_several_threads_is_numpys_own() -> None:
    """A cast by several threads is NumPy's own."""
    array = np.array([1e300, 1.5, -2.5])
    assert _host.astype(array, "float32").tolist() == [np.inf, 1.5, -2.5]
    assert _host.astype(array[1:], "int8").tolist() == [1, -2]


@by_size
def test_copy__is_in_the_order_that_was_asked_for() -> None:
    """A copy is in the order that was asked for."""
    for side, dtype in itertools.product((3, 200), ("<f8", ">f8")):  # less than is aligned, and more
        array = np.asfortranarray(np.arange(side * side, dtype=dtype).reshape(side, side))
        kept, turned = _host.copy(array), _host.copy(array, "C")
        assert kept.flags.f_contiguous
        assert turned.flags.c_contiguous
        assert kept.dtype.isnative
        assert np.array_equal(kept, array)
        assert np.array_equal(turned, array)


@by_size
def test_copy__of_a_subclass_is_a_plain_array() -> None:
    """A copy of a subclass is a plain array."""
    array = np.ones((2, 2)).view(np.recarray)
    assert type(array) is not np.ndarray
    assert type(_host.copy(array)) is np.ndarray
    assert type(_host.astype(array, "float32")) is np.ndarray


def test_copy__of_the_least_size_that_is_aligned_is_aligned() -> None:
    """A copy of the least size that is aligned is aligned."""
    array = np.zeros(memory.ALIGNED, np.uint8)
    copies = [_host.copy(array, "C") for _ in range(8)]
    assert [one.ctypes.data % memory.ALIGNMENT for one in copies] == [0] * 8


# -- shares_memory -------------------------------------------------------------------------------


class Lie(NamedTuple):
    """How an array lies in a buffer, in bytes."""

    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    def over(self, buffer: Host) -> Host:
        """Such an array."""
        items = buffer[self.start : self.start + self.itemsize].view(f"V{self.itemsize}").reshape(())
        return as_strided(items, self.shape, self.strides)


@st.composite
def lies(draw: st.DrawFn, size: int) -> Lie:
    """Views that stay within a buffer of so many bytes: any strides, of any sign, zero too."""
    itemsize = draw(st.sampled_from([1, 2, 4, 8, 16]))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    strides, low, high = [], 0, itemsize
    for n in shape:
        backend = (size - (high - low)) // max(n - 1, 1)
        stride = draw(st.integers(-min(backend, 40), min(backend, 40)))
        strides.append(stride)
        low, high = low + min(0, (n - 1) * stride), high + max(0, (n - 1) * stride)
    return Lie(draw(st.integers(-low, size - high)), shape, tuple(strides), itemsize)


@given(lies(300), lies(300))
def test_shares_memory__agrees_with_the_bytes_and_with_numpy(one: Lie, other: Lie) -> None:
    """`shares_memory` agrees with the bytes and with NumPy."""
    buffer = np.zeros(300, np.uint8)
    a, b = one.over(buffer), other.over(buffer)
    shared = overlaps(a, b)
    event(f"shared: {shared}")
    assert np.shares_memory(a, b, max_work=EXACT) == shared
    assert xbridge.shares_memory(a, b) == shared
    assert xbridge.shares_memory(b, a) == shared


# Found by a search: NumPy gives up on these after a thousand candidates.
HARD = [
    (Lie(1884, (3, 3, 4, 2, 4), (147, 23, 85, 44, 108), 4), Lie(2445, (4, 2, 2, 2), (36, 64, 93, 121), 8)),
    (Lie(1685, (3, 4, 3, 4, 4), (44, 50, 139, -1, 136), 8), Lie(1723, (4, 3), (92, -51), 4)),
    (Lie(2652, (3, 2, 3), (57, 67, 125), 4), Lie(2868, (2, 2, 2, 3, 3), (61, 54, 2, 7, 122), 2)),
    (Lie(532, (2, 4, 4), (-121, 129, 125), 8), Lie(450, (3, 2, 4, 2), (15, -128, 119, -1), 8)),
]


@pytest.mark.parametrize(("one", "other"), HARD)
def test_shares_memory__is_exact_where_the_solver_of_numpy_gives_up(one: Lie, other: Lie) -> None:
    """The bytes are compared if the solver of NumPy would take long."""
    buffer = np.zeros(4000, np.uint8)
    a, b = one.over(buffer), other.over(buffer)
    with pytest.raises(np.exceptions.TooHardError):
        np.shares_memory(a, b, max_work=LITTLE)
    assert xbridge.shares_memory(a, b) == overlaps(a, b) == np.shares_memory(a, b, max_work=EXACT)


def test_shares_memory__asks_the_solver_of_numpy_for_little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strides for which the solver takes exponential time are no reason to wait."""
    asked, solve = [], np.shares_memory

    def counted(a: Host, b: Host, max_work: Any = None) -> bool:
        asked.append(max_work)
        return solve(a, b, max_work=max_work)

    monkeypatch.setattr(np, "shares_memory", counted)
    assert xbridge.shares_memory(np.zeros(9)[::2], np.zeros(9)) is False
    assert asked == [LITTLE]


CASTS = [
    *itertools.product(
        ["bool", "int8", "int64", "float16", "float64", "bfloat16"],
        ["bool", "int8", "uint64", "float16", "float32", "complex64", "complex128"],
    ),
    ("complex128", "complex64"),
    ("complex64", "complex128"),
]


@pytest.mark.parametrize(("source", "dtype"), CASTS)
@pytest.mark.filterwarnings("error")
def test_caster__casts_as_numpy_does_without_a_warning(source: str, dtype: str) -> None:
    """What is known of the dtype of an array changes no value, and nothing is said of those that overflow."""
    pytest.importorskip("ml_dtypes")
    whole = {"bool": [0, 1], "int8": [1, 100, -128], "int64": [1, 100, -(2**63), 2**63 - 1]}
    x = np.array(whole.get(source, [0, 1, 100, 1e5, np.inf, np.nan]))
    with np.errstate(all="ignore"):
        x = x.astype(memory.native_dtype(source))
    made = memory.caster(x.dtype, dtype)(x)
    with np.errstate(all="ignore"):
        expected = memory.check_castable(x, np.dtype(dtype)).astype(dtype)
    assert same_bits(made, expected)
    assert not overlaps(made, x)


EDGES = {
    "single": [1.0, 3.4028234663852886e38, -3.4028235677973362e38, 1e-300, 5e-324, np.inf, -np.inf, np.nan],
    "one too large": [3.4028235677973366e38],
    "one too small": [-1e39, np.nan, np.inf],
    "none": [],
}


@pytest.mark.parametrize("values", EDGES.values(), ids=EDGES)
@pytest.mark.parametrize("known", [memory._SINGLES, {}], ids=["one pass", "two passes"])
@by_size
def test_astype_checked__equals_check_and_cast(
    values: list[float], known: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`astype_checked` gives the values and the errors of a check followed by a cast."""
    monkeypatch.setattr(memory, "_SINGLES", known)
    real = np.array(values)
    for x, dtype in (
        (real, "float32"),
        (np.tile(real, 40)[::-3], "float32"),
        (np.broadcast_to(real, (3, len(values))), "float32"),
        (real + 1j, "complex64"),
        (1 + 1j * np.nan_to_num(real, posinf=0, neginf=0), "complex64"),
        (memory.astype(real, "float32"), "float16"),
        (np.arange(3), "int32"),
        (np.array([2**40]), "int32"),
    ):
        outcomes: list[object] = []
        for cast in (memory.astype_checked, lambda x, word: memory.astype(memory.check_cast(x, word), word)):
            try:
                y = cast(x, dtype)
                outcomes.append((y.dtype, y.shape, y.strides, y.tobytes()))
            except xbridge.ValueLossError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]


def test_reports_overflow__false_without_floating_point_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """Overflow is checked beforehand on machines that do not report it."""
    assert memory._reports_overflow() is bool(memory._SINGLES)
    monkeypatch.setattr(memory, "_RAISING", memory._SILENT)
    assert not memory._reports_overflow()


@pytest.mark.parametrize(
    "x",
    [
        np.array([1, None], object),
        np.array([[1, None], [2, 3]], object)[::-1],
        np.zeros(2, [("a", "O"), ("b", "f4")]),
        np.array(3, object),
    ],
    ids=["objects", "strided", "records", "0-d"],
)
def test_as_readonly__objects_cannot_be_written(x: Any) -> None:
    """A read-only array of objects cannot be made writable, and has the values of the source."""
    made = xbridge.to_numpy(x, writable=False)
    assert made.tolist() == x.tolist()
    assert (made.dtype, made.shape) == (x.dtype, x.shape)
    assert np.shares_memory(made, x) is (x.dtype.names is None)
    if x.dtype.names:
        with pytest.raises(xbridge.CopyError, match="cannot protect its items"):
            xbridge.to_numpy(x, writable=False, copy=False)
    with pytest.raises(ValueError, match="WRITEABLE"):
        made.flags.writeable = True


@pytest.mark.parametrize("dtype", [*DTYPES, ">f8", "M8[s]", "O", "U2", "i4,f8"])
def test_as_readonly__shows_the_same_memory_of_any_dtype(dtype: str) -> None:
    """The view has the same dtype and cannot be made writable. The codes of ml_dtypes repeat NumPy's."""
    if dtype in DTYPES and DTYPES[dtype].is_extended:
        pytest.importorskip("ml_dtypes")
    host = np.zeros(4, memory.native_dtype(dtype))[::2]
    shown = _host.as_readonly(host)
    assert (shown.dtype, shown.shape, shown.strides) == (host.dtype, host.shape, host.strides)
    assert np.shares_memory(shown, host) or "," in dtype
    with pytest.raises(ValueError, match="WRITEABLE"):
        shown.flags.writeable = True


def test_as_readonly__keeps_the_metadata_of_a_dtype() -> None:
    """What a library like h5py stores beside a dtype stays with it."""
    host = np.zeros(2, np.dtype("i1", metadata={"k": 1}))
    assert dict(_host.as_readonly(host).dtype.metadata or {}) == {"k": 1}


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32"])
def test_check_cast__refuses_integers_beyond_either_end(dtype: str) -> None:
    """An integer below the least value of a dtype is lost as one above the greatest is."""
    ends = np.iinfo(dtype)
    assert memory.check_cast(np.array([ends.min, ends.max]), dtype).tolist() == [ends.min, ends.max]
    for lost in (ends.min - 1, ends.max + 1):
        with pytest.raises(xbridge.ValueLossError):
            memory.check_cast(np.array([0, lost]), dtype)


@pytest.mark.parametrize(
    ("values", "dtype", "is_lost"),
    [
        ([1e39, np.inf], "float32", True),
        ([1.0, np.nan, -np.inf], "float32", False),
        ([1e39j, np.nan], "complex64", True),
        ([2**40, 1], "int32", True),
        ([65519.9999], "float16", True),  # float32 rounds it up, on the way of some libraries to half
        ([65519.0], "float16", False),
    ],
)
def test_check_cast__needs_the_finite_extremes_alone(values: list[Any], dtype: str, is_lost: bool) -> None:
    """A cast that loses a value of an array is refused for its least and greatest finite values alone."""
    x = np.array(values)
    for host in (x, memory.finite_extremes(np, x)):
        with pytest.raises(xbridge.ValueLossError) if is_lost else nullcontext():
            memory.check_cast(host, dtype)
