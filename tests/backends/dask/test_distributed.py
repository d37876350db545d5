"""Dask with a client: what leaves is computed on the cluster, once, and its workers keep what is theirs."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import pytest

import xbridge

da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")

from dask.core import flatten  # noqa: E402 -- only where the library is

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xbridge.protocol import Array, HostArray

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
def test_to_backend__cluster_computes_once(x: Array, name: str) -> None:
    """With a client, an array that leaves is computed on the cluster, once."""
    pytest.importorskip(name)
    assert xbridge.to_list(xbridge.to_backend(x, name)) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert runs == [True, True]


def test_asarray__stays_off_the_cluster(x: Array) -> None:
    """What stays in Dask sends nothing to the cluster."""
    xbridge.asarray([xbridge.asarray(x, dtype="float32"), xbridge.asarray(x, copy=True)])
    xbridge.shares_memory(x, x)
    assert runs == []


@pytest.mark.parametrize("chunks", [3, 6])
def test_to_numpy__worker_memory_is_not_shared(client: object, chunks: int) -> None:
    """A write to the result does not reach the chunks that a worker keeps."""
    kept = (da.from_array(np.arange(6.0), chunks=chunks) + 0).persist()
    host = xbridge.to_numpy(kept)
    host[...] = 9.0
    assert xbridge.to_list(kept) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.fixture
def fetched(client: object, monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[str, int]]]:
    """The dtype and the size of each chunk that the client fetches, call by call."""
    calls: list[list[tuple[str, int]]] = []
    gather = type(client).gather  # type: ignore[attr-defined] # a client of Dask's

    def watched(self: object, futures: Any, *args: Any, **options: Any) -> Any:
        chunks = gather(self, futures, *args, **options)
        calls.append([(str(getattr(chunk, "dtype", "")), np.size(chunk)) for chunk in flatten(chunks)])
        return chunks

    monkeypatch.setattr(type(client), "gather", watched)
    return calls


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_to_numpy__workers_cast_before_sending(fetched: list[Any], x: Array, dtype: str) -> None:
    """A worker casts a chunk before it sends it."""
    made = xbridge.to_numpy(x, dtype=dtype)
    assert (made.dtype.name, made.tolist()) == (dtype, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert [*chain.from_iterable(fetched)] == [(dtype, 3)] * 2
    assert runs == [True, True]


def test_to_backend__value_loss_on_a_worker_names_the_array(fetched: list[Any]) -> None:
    """A value that is lost on a worker raises the usual error, with the path of its array."""
    pytest.importorskip("torch")
    lost = da.from_array(np.array([1.0, 1e300]), chunks=1) + 0
    with pytest.raises(xbridge.ValueLossError, match=r"^at tree\[1\]: .* cast float64 to float32"):
        xbridge.tree.to_backend([da.ones(3, dtype="i8"), lost], "torch", dtype="default")
    made = xbridge.to_backend(lost[:1], "torch", dtype="default")
    assert made.tolist() == [1.0]


@pytest.mark.parametrize("bad", [{(0,), (1,), (2,)}, {(2,)}], ids=["every chunk", "the last chunk"])
def test_align__error_releases_the_chunks(client: Any, bad: set[tuple[int, ...]]) -> None:
    """After an error, the cluster keeps only the chunks that the user holds."""

    def other(chunk: HostArray, block_id: tuple[int, ...]) -> HostArray:
        return chunk[:1] if block_id in bad else chunk

    own = da.ones(9, chunks=3).persist()
    x = da.map_blocks(other, own, name=f"other-{uuid4()}", dtype="f8", meta=np.empty(0))
    with pytest.raises(xbridge.UnsupportedArrayError, match="shape") as caught:
        xbridge.align(own, x, backend="numpy")
    client.sync(asyncio.sleep, 0)  # the client releases what it was told to, in order
    kept = {key for key in client.futures if key[0] in (x.name, own.name)}
    assert kept == set(own.__dask_keys__())
    assert xbridge.to_list(own) == [1.0] * 9
    assert caught.value.__traceback__ is not None


def test_to_numpy__nested_call_on_a_worker_does_not_deadlock(client: Any) -> None:
    """A task that converts an array does not wait for its own thread."""

    def inner(number: float) -> float:
        x = da.ones(4, chunks=2) * number
        return float(xbridge.to_numpy(x, dtype="float32").sum())

    futures = client.map(inner, range(8), pure=False)
    assert client.gather(futures, direct=False) == [4.0 * n for n in range(8)]


@pytest.mark.filterwarnings("ignore:Running on a single-machine scheduler")  # which an older Dask says
def test_to_numpy__client_as_scheduler(client: Any, x: Array) -> None:
    """A client that is configured as the scheduler is used."""
    import dask

    with dask.config.set(scheduler=client):
        assert xbridge.to_numpy(x, dtype="float32").tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert runs == [True, True]
    with dask.config.set(scheduler="synchronous"):
        assert xbridge.to_numpy(x + 0).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert runs == [True, True, False, False]
