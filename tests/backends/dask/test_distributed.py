"""Dask with a client: what leaves is computed on the cluster, once, and its workers keep what is theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
import pytest

import xbridge

da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xbridge._core.protocol import Array, HostArray

runs: list[bool] = []
"""For every chunk that was computed, whether a worker did it."""


def counted(chunk: HostArray) -> HostArray:
    """A task that tells where it ran."""
    runs.append(hasattr(distributed.worker.thread_state, "execution_state"))
    return chunk + 1


@pytest.fixture(scope="module")
def client() -> Iterator[object]:
    """A client, of which Dask knows as long as it is there. Its ports are any that are free."""
    with (
        distributed.LocalCluster(processes=False, n_workers=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def x(client: object) -> Array:
    runs.clear()
    name = f"counted-{uuid4()}"  # another each time, so that no result of another test stands for it
    return da.from_array(np.arange(6.0), chunks=3).map_blocks(
        counted, dtype="f8", meta=np.empty(0), name=name
    )


@pytest.mark.parametrize("name", ["numpy", "torch", "array_api_strict"])
def test_the_cluster_computes_what_leaves_once(x: Array, name: str) -> None:
    pytest.importorskip(name)
    assert xbridge.to_list(xbridge.to_backend(x, name)) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert runs == [True, True]


def test_what_stays_is_not_sent_to_the_cluster(x: Array) -> None:
    xbridge.asarray([xbridge.asarray(x, dtype="float32"), xbridge.asarray(x, copy=True)])
    xbridge.shares_memory(x, x)
    assert runs == []


@pytest.mark.parametrize("chunks", [3, 6])
def test_what_a_worker_keeps_is_not_written_through_the_result(client: object, chunks: int) -> None:
    kept = (da.from_array(np.arange(6.0), chunks=chunks) + 0).persist()
    host = xbridge.to_numpy(kept)
    host[...] = 9.0
    assert xbridge.to_list(kept) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_what_goes_to_the_cluster_is_what_it_was_at_the_call(client: object) -> None:
    a = np.arange(6.0)
    x = xbridge.to_backend(a, "dask")
    a[...] = 9.0
    assert xbridge.to_list(x + 0) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert xbridge.to_list(xbridge.to_backend(a, "dask")) == [9.0] * 6


def test_what_a_worker_raises_is_the_cause_of_ours(x: Array) -> None:
    def fail(chunk: HostArray) -> HostArray:
        raise ZeroDivisionError("on a worker")

    with pytest.raises(xbridge.UnsupportedArrayError, match="on a worker") as caught:
        xbridge.to_numpy(x.map_blocks(fail, dtype="f8", meta=np.empty(0)))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_worker_that_returns_another_chunk_is_found_out(x: Array) -> None:
    with pytest.raises(xbridge.UnsupportedArrayError, match=r"came as numpy\.ndarray float32"):
        xbridge.to_numpy(x.map_blocks(np.float32, dtype="f8", meta=np.empty(0)))
