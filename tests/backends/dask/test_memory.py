"""Memory of a computation: the result and the chunks in flight, in this process and in others."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np
import pytest

import xbridge

da = pytest.importorskip("dask.array")

import dask  # noqa: E402 -- only where the library is

from xbridge.backends.dask import _compute  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge.protocol import Array

CHUNKS = 64
CALLS: dict[str, Callable[[Array], Any]] = {
    "an array": xbridge.to_numpy,
    "a cast": lambda x: xbridge.to_numpy(x, dtype="float32"),
    "a checked cast": lambda x: xbridge.to_numpy(x.astype("i8"), dtype="nearest"),
    "a tree": lambda x: xbridge.tree.to_numpy({"x": x, "y": [x + 1]}, dtype="float32"),
    "an alignment": lambda x: xbridge.align(np.ones(2), x, x + 1, dtype="float32"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("scheduler", ["threads", "synchronous"])
def test_to_numpy__chunk_is_released_when_it_is_written(
    call: str, scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No chunk that was written into the result is in memory when the next one is written."""
    written: list[ref[Array]] = []
    fill = vars(_compute)["fill"]

    def watched(part: Array, chunk: Array) -> None:
        assert [one() for one in written] == [None] * len(written)
        written.append(ref(chunk))
        fill(part, chunk)

    monkeypatch.setattr(_compute, "fill", watched)
    x = da.ones(CHUNKS * 4, chunks=4, dtype="f8") * 2.0
    with dask.config.set(scheduler=scheduler):
        CALLS[call](x)
    assert len(written) in (CHUNKS, 2 * CHUNKS)


def test_to_numpy__result_is_aligned() -> None:
    """A result is aligned for libraries that share only aligned memory."""
    for dtype in (None, "float32"):
        made = xbridge.to_numpy(da.ones(1 << 18, chunks=1 << 16), dtype=dtype)
        assert made.ctypes.data % 64 == 0


# -- other processes -----------------------------------------------------------------------------


def test_to_numpy__works_in_other_processes() -> None:
    """Tasks may run in other processes, which cast the chunks."""
    x = da.from_array(np.arange(7.0), chunks=3) + 1
    with (
        ProcessPoolExecutor(1, get_context("spawn")) as pool,
        dask.config.set(scheduler="processes", pool=pool),
    ):
        assert xbridge.to_numpy(x).tolist() == [1, 2, 3, 4, 5, 6, 7]
        made = xbridge.to_numpy(x, dtype="float32")
        assert (made.dtype.name, made.tolist()) == ("float32", [1, 2, 3, 4, 5, 6, 7])


WITHOUT_US = """
import pickle, sys
sys.modules["xbridge"] = None
import numpy as np
cast = pickle.loads(bytes.fromhex(sys.argv[1]))
print(cast(np.ones(2)).dtype)
try:
    cast(np.ones(2, "c8"))
except TypeError as error:
    print(error)
"""


def test_to_numpy__worker_casts_without_xbridge() -> None:
    """A worker that lacks xbridge casts the chunks, and refuses one of another dtype."""
    cloudpickle = pytest.importorskip("cloudpickle")
    cast = _compute.make_chunk_cast(np.dtype("f8"), np.dtype("f4"))
    code = [sys.executable, "-c", WITHOUT_US, cloudpickle.dumps(cast).hex()]
    done = subprocess.run(code, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == [
        "float32",
        "a chunk that was announced as float64 came as complex64",
    ]
