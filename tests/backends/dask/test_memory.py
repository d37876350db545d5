"""Memory of a computation: the result and the chunks in flight, in this process and in others."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import xbridge

da = pytest.importorskip("dask.array")

import dask  # noqa: E402 -- only where the library is
from dask.base import tokenize  # noqa: E402

from xbridge._registry.registry import get  # noqa: E402
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


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("scheduler", ["threads", "synchronous"])
def test_to_numpy__peak_memory_is_bounded(call: str, scheduler: str) -> None:
    """The peak is the size of the result and of the chunks in flight."""
    x = da.ones(CHUNKS << 16, chunks=1 << 16, dtype="f8") * 2.0
    result = {"an array": 1, "a cast": 0.5, "a checked cast": 1}.get(call, 1) * x.nbytes
    with dask.config.set(scheduler=scheduler, num_workers=2):
        CALLS[call](x[: 1 << 17])  # imports
        tracemalloc.start()
        try:
            made = CALLS[call](x)  # held until the peak is read
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert made is not None
    assert result <= peak < 1.35 * result


def test_memory_layout__of_a_computed_array() -> None:
    """A Dask array has no memory until it is computed, and then that of its one chunk."""
    backend, x = get("dask"), da.ones((4, 6), chunks=2, dtype="f4")
    assert backend.memory_layout(x).is_unallocated()
    made = backend.materialize(x)
    layout = backend.memory_layout(made)
    assert not layout.is_unallocated()
    assert layout.strides == xbridge.to_numpy(made).strides


def test_to_numpy__result_is_aligned() -> None:
    """A result is aligned for libraries that share only aligned memory."""
    for dtype in (None, "float32"):
        made = xbridge.to_numpy(da.ones(1 << 18, chunks=1 << 16), dtype=dtype)
        assert made.ctypes.data % 64 == 0


# -- other processes -----------------------------------------------------------------------------


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute small arrays as large ones."""
    monkeypatch.setattr(_compute, "SMALL", 0)


@pytest.mark.usefixtures("large")
def test_to_numpy__works_in_other_processes() -> None:
    """Tasks in other processes return their chunks, as they cannot write the result."""
    x = da.from_array(np.arange(7.0), chunks=3) + 1
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        for config in ({"scheduler": "processes"}, {"scheduler": "threads"}):
            with dask.config.set(config, pool=pool):
                assert xbridge.to_numpy(x).tolist() == [1, 2, 3, 4, 5, 6, 7]
                made = xbridge.to_numpy(x, dtype="float32")
                assert (made.dtype.name, made.tolist()) == ("float32", [1, 2, 3, 4, 5, 6, 7])


def test_to_numpy__every_token_is_new() -> None:
    """Dask gets a new name for the result each time, whatever its memory holds."""
    write = _compute.Result(da.ones(7, chunks=3)).write
    assert tokenize(write) != tokenize(write)


WITHOUT_US = """
import pickle, sys
sys.modules["xbridge"] = None
import numpy as np
cast = pickle.loads(bytes.fromhex(sys.argv[1]))
made, other = cast(np.ones(2)), cast(np.ones(2, "i4"))
print(made.dtype, type(other), other[0].dtype)
"""


def test_to_numpy__worker_casts_without_xbridge() -> None:
    """A worker that lacks xbridge can cast the chunks."""
    cloudpickle = pytest.importorskip("cloudpickle")
    cast = _compute.Result(_compute.InParts(da.ones(7, chunks=3), "float32"))._cast()
    code = [sys.executable, "-c", WITHOUT_US, cloudpickle.dumps(cast).hex()]
    done = subprocess.run(code, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["float32", "<class", "'tuple'>", "int32"]
