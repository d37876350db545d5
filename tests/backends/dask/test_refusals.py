"""Dask says no, or is found out: what must not leave, and chunks that are not what was announced."""

from __future__ import annotations

import re
import runpy
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import xbridge

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

from xbridge.backends import dask as backend  # noqa: E402 -- only where the library is

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge.protocol import HostArray


def refusal_of(call: Callable[[], object]) -> xbridge.XBridgeError:
    with pytest.raises(xbridge.XBridgeError) as caught:
        call()
    assert caught.value.args[0].startswith("cannot ")
    return caught.value


@pytest.mark.parametrize(
    ("chunk", "came"),
    [
        (lambda block: 3, "builtins.int"),
        (lambda block: block[0], r"numpy.ndarray float64 of shape \(2,\)"),
        (lambda block: block.astype("f4"), "numpy.ndarray float32"),
        (lambda block: block[:, :1], r"of shape \(\d, 2\) came as numpy.ndarray float64 of shape \(\d, 1\)"),
        (
            lambda block: block[: 1 + (block[0, 0] % 8 == 0)],
            r"of shape \(2, 2\) came as .* of shape \(\d, 2\)",
        ),
    ],
)
def test_to_numpy__refuses_chunks_that_do_not_fit_together(chunk: Any, came: str) -> None:
    """Chunks of unknown sizes that cannot be joined are refused."""
    x = da.from_array(np.arange(16.0).reshape(4, 4), chunks=2)
    part = x[x[:, 0] >= 0].map_blocks(chunk, dtype=float, meta=np.empty((0, 0)))
    error = refusal_of(lambda: xbridge.to_numpy(part))
    assert isinstance(error, xbridge.UnsupportedArrayError)
    assert re.search(came, str(error)), error


class Metres(np.ndarray[Any, np.dtype[Any]]):
    """What a library of units would make of an array."""


def test_to_numpy__advice_for_masks_units_and_dates_works() -> None:
    """Masks, units and dates are refused, and the advice in each error works."""
    masked = da.ma.masked_equal(da.from_array(np.arange(3.0)), 1)
    for x in (masked, xbridge.to_dask(masked, dtype="float32")):
        refusal = str(refusal_of(partial(xbridge.to_numpy, x)))
        assert refusal.endswith("its mask would be lost; try dask.array.ma.filled(x, value)")
    assert xbridge.to_numpy(da.ma.filled(masked, 7)).tolist() == [0.0, 7.0, 2.0]
    units = da.from_array(np.ones(3).view(Metres), asarray=False)
    assert str(refusal_of(lambda: xbridge.to_numpy(units))).endswith("try x.map_blocks(numpy.asarray)")
    assert xbridge.to_numpy(units.map_blocks(np.asarray)).tolist() == [1.0] * 3
    dates = da.from_array(np.array(["1970-01-03"], "M8[D]"))
    assert str(refusal_of(lambda: xbridge.to_numpy(dates))).endswith("try x.astype('int64')")
    assert xbridge.to_numpy(dates.astype("int64")).tolist() == [2]


def test_to_numpy__advice_for_sparse_chunks_works() -> None:
    """Sparse chunks are refused, and making them dense helps."""
    sparse = pytest.importorskip("sparse")
    x = da.from_array(np.eye(3)).map_blocks(sparse.COO.from_numpy)
    assert "its chunks are sparse.COO" in str(refusal_of(lambda: xbridge.to_numpy(x)))
    assert xbridge.asarray(x, copy=True).compute().nnz == 3
    assert np.array_equal(xbridge.to_numpy(x.map_blocks(lambda chunk: chunk.todense())), np.eye(3))


@pytest.mark.parametrize(
    ("announced", "chunk"),
    [
        ("float32", np.array([0.1, 1000.5])),
        ("int8", np.array([1, 1000])),
        ("float64", np.array([1, 2], "int32")),
        ("float64", np.ones(2, "float32")),
        ("float32", np.ma.masked_array([0.1, 1000.5], [False, True])),
        ("float32", np.array([0.1, 1000.5]).view(Metres)),
        ("float32", [0.1, 1000.5]),
    ],
)
@pytest.mark.parametrize("to", ["float16", "complex128", "int64", "float4_e2m1fn"])
def test_to_backend__named_dtype_casts_no_chunk_of_another_one(announced: str, chunk: Any, to: str) -> None:
    """A chunk that does not have the dtype that Dask has announced is not cast, also not by a later task."""
    x = da.from_delayed(dask.delayed(lambda: chunk)(), (2,), announced)
    came = "a chunk that was announced as {} came as {}".format(
        announced, getattr(chunk, "dtype", type(chunk).__name__)
    )
    lazy = xbridge.to_backend(x, "dask", dtype=to)
    with pytest.raises(TypeError, match=came):
        lazy.compute()
    for call in (lambda: xbridge.to_numpy(x, dtype=to), lambda: xbridge.to_numpy(lazy)):
        error = refusal_of(call)
        assert (type(error), error.reason) == (xbridge.UnsupportedArrayError, came)


@pytest.mark.parametrize("chunk", [np.ma.masked_array([0.5, 1.5], [False, True]), np.ones(2).view(Metres)])
def test_to_backend__chunk_of_a_subclass_is_cast_and_stays_one(chunk: Any) -> None:
    """A cast within Dask keeps masks and units, which a conversion to another library refuses."""
    x = da.from_delayed(dask.delayed(lambda: chunk)(), (2,), "float64")
    lazy = xbridge.to_backend(x, "dask", dtype="float32")
    assert (lazy.compute().dtype.name, type(lazy.compute())) == ("float32", type(chunk))
    assert type(chunk).__name__ in refusal_of(lambda: xbridge.to_numpy(lazy)).reason


def test_asarray__unknown_length_beside_a_known_one_can_be_computed() -> None:
    """An array of unknown length is not stacked with one of known length; the hint computes the length."""
    x = da.from_array(np.arange(4.0))
    x = x[x >= 0]
    error = refusal_of(lambda: xbridge.asarray([x, np.ones(4)], backend="numpy"))
    assert error.hint.startswith("x.compute_chunk_sizes() for each x of unknown length, or ")
    made = xbridge.asarray([x.compute_chunk_sizes(), np.ones(4)], backend="numpy")
    assert made.tolist() == [[0, 1, 2, 3], [1, 1, 1, 1]]


def test_to_numpy__accepts_scalar_reductions() -> None:
    """NumPy returns a scalar for a reduction, and it is accepted as a 0-d array."""
    x = da.from_array(np.arange(6.0), chunks=2)
    assert xbridge.to_numpy(x.sum()).shape == ()
    assert xbridge.to_list(x.max()) == 5.0
    assert xbridge.to_numpy(da.from_array(np.array(2.0)))[()] == 2.0


CONVERSIONS: dict[str, Callable[[Any], object]] = {
    "to_numpy": xbridge.to_numpy,
    "to_list": xbridge.to_list,
    "cast": lambda x: xbridge.to_numpy(x, dtype="float32"),
    "asarray": lambda x: xbridge.asarray([x, x], backend="numpy"),
    "align": lambda x: xbridge.align(np.ones(6), x, x + 1),
    "align_back": lambda x: xbridge.align_back(np.ones(6), x),
    "tree": lambda x: xbridge.tree.to_numpy({"x": x, "y": x + 1}),
    "transfer": lambda x: xbridge.transfer([x], "numpy").result(),
    "prefetch": lambda x: list(xbridge.prefetch([x], "numpy")),
}


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", CONVERSIONS)
def test_to_numpy__missing_file_is_an_os_error(name: str, recorded: bool) -> None:
    """A task that cannot read its file raises `FileNotFoundError` with the name of the file, and a note."""

    def load(chunk: HostArray) -> HostArray:
        raise FileNotFoundError(2, "No such file", "x.npy")

    x = da.from_array(np.ones(6), chunks=3).map_blocks(load, dtype="f8", meta=np.empty(0))
    with xbridge.record() if recorded else nullcontext(), pytest.raises(OSError, match="No such") as caught:
        CONVERSIONS[name](x)
    assert (type(caught.value), caught.value.filename) == (FileNotFoundError, "x.npy")
    alone = f"a Dask array of {'float32' if name == 'cast' else 'float64'} and shape (6,)"
    what = "2 Dask arrays together" if name in ("align", "asarray", "tree") else alone
    assert caught.value.__notes__ == [f"in a task, which xbridge ran to compute {what}"]


def test_dask__refuses_query_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading the backend fails where Dask's query planning is on."""
    monkeypatch.setattr(da, "ARRAY_EXPR_ENABLED", True)
    with pytest.raises(ImportError, match=r"array\.query-planning"):
        runpy.run_path(backend.__file__)
