"""Computing a Dask array: chunks are cast where they are computed, written into the result, and released."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import xbridge

da = pytest.importorskip("dask.array")

import dask  # noqa: E402 -- only where the library is

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xbridge.protocol import Array, HostArray


def by_hand(graph: Any, keys: Any, **options: Any) -> Any:
    """Run the tasks as a scheduler that Dask does not know."""
    return dask.get(graph, keys, **options)


SCHEDULERS: dict[str, object] = {"threads": "threads", "by hand": by_hand}
"""The schedulers of this process."""


@pytest.fixture(params=SCHEDULERS, autouse=True)
def scheduler(request: pytest.FixtureRequest) -> Iterator[None]:
    with dask.config.set(scheduler=SCHEDULERS[request.param]):
        yield


runs: list[int] = []


def counted(chunk: HostArray) -> HostArray:
    if chunk.size:
        runs.append(chunk.size)
    return chunk


@pytest.fixture
def x() -> Array:
    runs.clear()
    made = da.from_array(np.arange(7.0), chunks=3).map_blocks(counted, dtype="f8", meta=np.empty(0))
    runs.clear()
    return made


# -- values --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("chunks", [-1, (2, 3), ((1, 3), (3, 2, 0))])
@pytest.mark.parametrize(
    ("before", "after"),
    [("f8", "float32"), (">f8", "float64"), ("i8", "int16"), ("f4", "int32"), ("c16", "complex64")],
)
def test_to_numpy__casts_chunks_as_numpy_does(before: str, after: str, chunks: Any, unknown: bool) -> None:
    """A cast of the chunks gives the bytes of NumPy's cast of the whole array."""
    values = np.random.default_rng(0).normal(0, 1e5, (4, 5)).astype(before)
    x = da.from_array(values, chunks=chunks)
    x = x[da.ones(4, dtype="bool", chunks=(x.chunks[0],))] if unknown else x
    made = xbridge.to_numpy(x, dtype=after)
    assert made.flags.writeable
    assert (made.dtype.str, made.tobytes()) == (np.dtype(after).str, values.astype(after).tobytes())
    assert xbridge.to_numpy(x).tolist() == values.tolist()


@pytest.mark.parametrize(
    ("before", "after"),
    [("f8", "float32"), ("f8", "float16"), ("i8", "int32"), ("f4", "bfloat16"), ("f4", "int8")],
)
def test_to_backend__casts_chunks_as_torch_does(before: str, after: str) -> None:
    """torch gets the values that its own cast would give."""
    torch = pytest.importorskip("torch")
    values = np.linspace(-100, 100, 4001).astype(before)
    made = xbridge.to_backend(da.from_array(values, chunks=999), "torch", dtype=after)
    assert torch.equal(made, torch.from_numpy(values).to(getattr(torch, after)))


def test_to_numpy__duplicate_arrays_get_separate_results() -> None:
    """The same Dask array twice in a tree gives two results that share no memory."""
    x = da.from_array(np.arange(7.0), chunks=3) + 0
    again = da.Array(x.dask, x.name, x.chunks, meta=x._meta)
    for dtype in (None, "float32"):
        one, other = xbridge.tree.to_numpy([x, again], dtype=dtype)
        one[:] = 9
        assert other.tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_to_numpy__result_is_not_shared_with_the_graph() -> None:
    """A write to the result does not reach the arrays inside the graph."""
    a = np.arange(7.0)
    for chunks in (-1, 3):
        x = da.from_array(a, chunks=chunks, name=False)
        for dtype in (None, "float64", "float32"):
            made = xbridge.to_numpy(x, dtype=dtype)
            assert not np.shares_memory(made, a)
            made[:] = 9
    assert a.tolist() == [0, 1, 2, 3, 4, 5, 6]


# -- refusals ------------------------------------------------------------------------------------


def test_to_backend__value_loss_in_a_chunk_is_raised() -> None:
    """A value that is lost in a chunk raises the same error as in a plain array."""
    x = da.from_array(np.array([1.0, np.inf, 1e300, 2.0]), chunks=1)
    jax = pytest.importorskip("jax")
    torch = pytest.importorskip("torch")
    with pytest.raises(xbridge.ValueLossError, match="a value does not fit float32; try naming one"):
        xbridge.to_backend(x, "torch", dtype="default")
    with (
        jax.enable_x64(False),
        pytest.raises(xbridge.ValueLossError, match=r"would change it; try jax\.config"),
    ):
        xbridge.to_backend(x, "jax", dtype="nearest")
    kept = xbridge.to_backend(x[:2], "torch", dtype="default")
    assert torch.equal(kept, torch.tensor([1.0, torch.inf]))


@pytest.mark.parametrize("unknown", [False, True])
def test_to_backend__value_loss_names_the_array(x: Array, unknown: bool) -> None:
    """In a tree of several Dask arrays, the error names the one with the lost value."""
    pytest.importorskip("torch")
    lost = da.from_array(np.array([1.0, 1e300]), chunks=1)
    batch = [x.astype("i8"), lost[lost > 0] if unknown else lost, x]
    with pytest.raises(xbridge.ValueLossError, match=r"^at tree\[1\]: .* cast float64 to float32"):
        xbridge.tree.to_backend(batch, "torch", dtype="default")


class Masked:
    """A task that returns a masked array, which was not announced."""

    def __call__(self, chunk: HostArray) -> HostArray:
        return np.ma.masked_array(chunk, chunk > 1)


LIES: dict[str, tuple[Callable[[HostArray], Any], str]] = {
    "a dtype": (np.complex64, r"complex64( of shape \(3,\))?$"),
    "a mask": (Masked(), r"numpy\.MaskedArray float(64|32) of shape \(3,\)|numpy\.ma"),
    "a list": (list, r"\blist$"),
    "a tuple": (tuple, r"\btuple$"),
    "another axis": (lambda chunk: chunk[:, None], r"of shape \(3, 1\)"),
    "no axis": (lambda chunk: chunk[0], r"of shape \(\)"),
    "a number": (lambda chunk: float(chunk[0]), r"\bfloat$"),
    "a shape": (lambda chunk: chunk[:1], r"float64 of shape \(1,\)|float32 of shape \(1,\)"),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("dtype", [None, "float32"])
def test_to_numpy__refuses_chunks_that_differ_from_the_metadata(lie: str, dtype: str | None) -> None:
    """A chunk that contradicts its metadata is refused, with or without a cast."""
    task, came = LIES[lie]
    x = da.from_array(np.ones(6), chunks=3).map_blocks(task, dtype="f8", meta=np.empty(0))
    with pytest.raises(xbridge.UnsupportedArrayError, match=rf"announced as .* came as .*({came})"):
        xbridge.to_numpy(x, dtype=dtype)


# -- align ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_align__computes_arrays_together(x: Array, dtype: str | None) -> None:
    """The arrays that are aligned share one computation of their common tasks."""
    a, y, number, z, u = xbridge.align(np.ones(2), x + 1, 2, x * 2, x[x > 4], dtype=dtype)
    assert [a.tolist(), y.tolist(), number] == [[1, 1], [1, 2, 3, 4, 5, 6, 7], 2]
    assert [z.tolist(), u.tolist()] == [[0, 2, 4, 6, 8, 10, 12], [5, 6]]
    assert sorted(runs) == [1, 3, 3]


def test_align_back__computes_arrays_together(x: Array) -> None:
    """`align_back` and `aligned` compute their arrays in one go."""
    (_, y, z), _ = xbridge.align_back(np.ones(1), x + 1, x * 2)
    assert sorted(runs) == [1, 3, 3]
    runs.clear()
    summed = xbridge.aligned(lambda *xs: sum(xs))(np.ones(7), x + 1, x * 2)
    assert summed.tolist() == (1 + y + z).tolist()
    assert sorted(runs) == [1, 3, 3]


def test_align__refuses_before_computing(x: Array) -> None:
    """The error names the array that is refused, and no task has run before it."""
    with pytest.raises(xbridge.DTypeError, match=r"^at xs\[2\]: .* drops the imaginary part"):
        xbridge.align(np.ones(2), x, x * 1j, dtype="float64")
    with pytest.raises(xbridge.DTypeError, match=r"^at xs\[2\]: .* drops the imaginary part"):
        xbridge.align(np.ones(2), x, np.ones(2) * 1j, dtype="float64")
    assert runs == []
    short = x.map_blocks(lambda chunk: chunk[:1], dtype="f8", meta=np.empty(0))
    with pytest.raises(xbridge.UnsupportedArrayError, match=r"^at xs\[3\]: .*came as"):
        xbridge.align(np.ones(2), x, 1, short)


def test_to_numpy__unsupported_cast_computes_nothing() -> None:
    """A cast that NumPy lacks is refused before any chunk is computed."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    seen: list[Any] = []

    def see(chunk: Any) -> Any:
        seen.append(chunk)
        return chunk

    x = da.ones(3, chunks=2).map_blocks(see, dtype="f8", meta=np.empty(0))
    with pytest.raises(xbridge.DTypeError, match="the step astype float8_e8m0fnu failed with TypeError"):
        xbridge.to_numpy(x.astype(ml_dtypes.float8_e4m3fn), dtype="float8_e8m0fnu")
    assert not seen


# -- what a plan says ----------------------------------------------------------------------------


def test_explain__shows_the_cast_of_chunks(x: Array) -> None:
    """The plan says that the chunks are cast before they are joined."""
    plan = xbridge.explain(x, "numpy", dtype="float32")
    assert [(step.backend, step.action, step.nbytes) for step in plan.steps] == [
        ("dask", "astype float32", 28),
        ("dask", "materialize", 28),
        ("dask", "to_numpy", 0),
        ("numpy", "as_writable", 0),
        ("numpy", "from_numpy", 0),
    ]
    pytest.importorskip("torch")
    plan = xbridge.explain(x, "torch", dtype="default")
    assert [step.action for step in plan.checks] == ["check_cast float32"]
    assert [step.action for step in xbridge.explain(x, "torch", dtype="float16").steps] == [
        "materialize",
        "to_numpy",
        "as_writable",
        "from_numpy",
        "astype float16",
    ]
