"""Dask: what stays is a promise, what leaves is computed once, and what comes cannot change any more."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from inside import get_backend

import xbridge

da = pytest.importorskip("dask.array")

import dask  # noqa: E402 -- only where the library is

from xbridge.backends import dask as backend  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xbridge.protocol import Array, HostArray

runs: list[tuple[int, ...]] = []
"""The shape of every chunk that was computed."""


def counted(chunk: HostArray) -> HostArray:
    """A task that tells that it ran; Dask tries it on a chunk of no element first."""
    if chunk.size:
        runs.append(chunk.shape)
    return chunk + 1


@pytest.fixture
def x() -> Iterator[Array]:
    """An array of six elements in two chunks, still to be computed."""
    x = da.from_array(np.arange(6.0), chunks=3).map_blocks(counted, dtype="float64")
    runs.clear()
    yield x
    runs.clear()


VALUES = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


# -- what stays a promise ------------------------------------------------------------------------

LAZY: dict[str, Callable[[Array], object]] = {
    "asarray": xbridge.asarray,
    "to_backend": lambda x: xbridge.to_backend(x, "dask", device="cpu", copy=False),
    "astype": lambda x: xbridge.asarray(x, dtype="float32"),
    "default": lambda x: xbridge.asarray(x, dtype="default"),
    "copy": lambda x: xbridge.asarray(x, copy=True),
    "detach": lambda x: xbridge.asarray(x, grad="detach"),
    "to_device": lambda x: get_backend("dask").to_device(x, xbridge.Device("cpu")),
    "list": lambda x: xbridge.asarray([[x, x], [x, x]]),
    "mixed list": lambda x: xbridge.asarray([x, np.ones(6, "i4"), x.astype("i4")]),
    "like": lambda x: xbridge.asarray([1, 2], like=x),
    "align": lambda x: xbridge.align(x, np.ones(6), 2),
    "backend_of": xbridge.backend_of,
    "dtype_of": xbridge.dtype_of,
    "device_of": xbridge.device_of,
    "native_device": xbridge.native_device,
    "array_namespace": xbridge.array_namespace,
    "shares_memory": lambda x: xbridge.shares_memory(x, x),
}


@pytest.mark.parametrize("question", LAZY)
def test_dask__stays_lazy_until_values_are_needed(x: Array, question: str) -> None:
    """Questions about an array, and calls that keep it in Dask, run no task."""
    LAZY[question](x)
    assert runs == []


def test_to_numpy__refusal_computes_nothing(x: Array) -> None:
    """A request that is refused runs no task."""
    with pytest.raises(xbridge.CopyError, match="it is still to be computed; try copy=None"):
        xbridge.to_numpy(x, copy=False)
    with pytest.raises(xbridge.DeviceError, match="Dask arrays are computed in host memory"):
        xbridge.asarray(x, device="cuda")
    for call in (xbridge.asarray, lambda x, **_: get_backend("dask").require_grad(x)):
        with pytest.raises(xbridge.GradientError, match="backend"):
            call(x, requires_grad=True)
    assert runs == []


def test_check_cast__refuses_promotions_that_depend_on_values(x: Array) -> None:
    """A promotion that only the values could justify is refused for a lazy array."""
    whole = x.astype("int64")
    with pytest.raises(xbridge.DTypeError, match="computed; try naming it: dtype='float64'"):
        xbridge.asarray([x, whole])
    assert xbridge.asarray([x, whole], dtype="float64").compute().tolist() == [VALUES, VALUES]
    with pytest.raises(xbridge.DTypeError, match="float32 to float16"):
        backend.check_cast(x.astype("float32"), "float16")


def test_check_cast__checks_computed_arrays(x: Array) -> None:
    """Once computed, an array is checked by its values and not computed again."""
    done = backend.materialize(x * 1e300)
    assert backend.check_cast(done, "float64") is done
    with pytest.raises(xbridge.ValueLossError, match="float32"):
        backend.check_cast(done, "float32")
    assert backend.materialize(done) is done
    assert len(runs) == 2


def test_asarray__unknown_sizes_stay_unknown(x: Array) -> None:
    """Arrays of unknown sizes stay lazy within Dask."""
    part = x[x > 2]
    assert xbridge.asarray(part) is part
    for made in (xbridge.asarray(part, dtype="float32"), xbridge.asarray([part, part])):
        assert np.isnan(made.shape[-1])
    assert not xbridge.shares_memory(part, part)
    assert runs == []


# -- what leaves ---------------------------------------------------------------------------------


LEAVING: dict[str, Callable[[Array], Any]] = {
    "to_numpy": xbridge.to_numpy,
    "to_list": xbridge.to_list,
    "default": lambda x: xbridge.to_numpy(x, dtype="default"),
    "asarray": lambda x: xbridge.asarray(x, backend="numpy", device="cpu"),
    "align": lambda x: xbridge.align(np.ones(6), x)[1],
    "list": lambda x: xbridge.asarray([x, x], backend="numpy")[0],
    "mixed list": lambda x: xbridge.asarray([np.ones(6), x], backend="numpy")[1],
    "options": lambda x: xbridge.to_numpy(x, copy=True, dtype="float32"),
    "nearest": lambda x: xbridge.to_numpy(x, dtype="nearest"),
    "like": lambda x: xbridge.asarray(x, like=np.ones(1)),
    "tree": lambda x: xbridge.tree.to_numpy({"x": (x, 1)})["x"][0],
    "transfer": lambda x: xbridge.transfer([x, x], "numpy").result()[1],
}


@pytest.mark.parametrize("way", LEAVING)
@pytest.mark.parametrize("unknown", [False, True])
def test_to_numpy__computes_once(x: Array, way: str, unknown: bool) -> None:
    """Every way out of Dask computes each chunk once, of known sizes or not, but in a list beside others."""
    if unknown and way == "mixed list":
        pytest.skip("refused")
    assert list(LEAVING[way](x[x > 0] if unknown else x)) == VALUES
    assert runs == [(3,), (3,)]


def test_transfer__computes_together_under_record(x: Array) -> None:
    """A batch is computed together while it is on record too, and counted once."""
    with xbridge.record() as seen, xbridge.policy(copies="allow"):
        many = xbridge.transfer([x, x + 1], "torch", dtype="float32").result()
    assert [y.tolist() for y in many] == [VALUES, [n + 1 for n in VALUES]]
    assert runs == [(3,), (3,)]
    (row,) = seen.rows
    assert (row.calls, row.cast, row.copied) == (2, 2 * 6 * 4, 2 * 6 * 4)  # in the chunks, and the result


def made_by(task: Callable[[Any], Any]) -> Array:
    """An array of four elements whose chunks a task makes."""
    return da.from_array(np.ones(4), chunks=2).map_blocks(task, dtype="float64", meta=np.empty(0))


def of_ours(chunk: Any) -> Any:
    """A task in which an error of ours is raised, which knows of which input it was there."""
    return xbridge.align(np.ones(2), chunk, backend="numpy", dtype="float32", copy=False)


@pytest.mark.parametrize(
    ("task", "error"), [(lambda chunk: 1 / 0, ZeroDivisionError), (of_ours, xbridge.CopyError)]
)
def test_transfer__failing_task_is_not_retried(
    x: Array, task: Callable[[Any], Any], error: type[Exception]
) -> None:
    """A failing task ends the batch with its error, and no task runs twice."""
    bad = made_by(task)
    with dask.config.set(scheduler="sync"), pytest.raises(error) as caught:
        xbridge.transfer({"good": x, "bad": [x + 1, bad, x * 2]}, "numpy").result()
    assert "tree[" not in str(caught.value)
    assert len(runs) <= 2


@pytest.mark.parametrize("size", ["auto", -1, "1 B"])
@pytest.mark.parametrize("shape", [(), (1,), (0, 3)])
def test_to_backend__indivisible_array_is_one_chunk(shape: tuple[int, ...], size: object) -> None:
    """An array that cannot be divided is a single chunk, whatever the chunk size."""
    with dask.config.set({"array.chunk-size": size}):
        assert xbridge.to_backend(np.ones(shape), "dask").chunks == tuple((n,) for n in shape)


CUTS: dict[str, tuple[Callable[[Array], Array], Callable[[HostArray], HostArray]]] = {
    "rows": (lambda x: x[x[:, 0] > 5], lambda a: a[a[:, 0] > 5]),
    "columns": (lambda x: x[:, x[0] > 1], lambda a: a[:, a[0] > 1]),
    "elements": (lambda x: x[x > 7], lambda a: a[a > 7]),
    "nothing": (lambda x: x[x > 99], lambda a: a[a > 99]),
    "rows, later": (lambda x: (x[x[:, 0] > 5] * 2).T, lambda a: (a[a[:, 0] > 5] * 2).T),
    "of one chunk": (lambda x: x.rechunk(-1)[x[:, 0] > 5], lambda a: a[a[:, 0] > 5]),
    "unique": (lambda x: da.unique(x % 3), lambda a: np.unique(a % 3)),
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("target", ["numpy", "torch", "jax", "array_api_strict"])
def test_to_backend__unknown_sizes_arrive_as_computed(cut: str, target: str) -> None:
    """An array of unknown sizes arrives in every library with the sizes it turned out to have."""
    if not xbridge.is_available(target):
        pytest.skip(f"{target} is not installed")
    values = np.arange(20, dtype="int32").reshape(5, 4)
    lazily, at_once = CUTS[cut]
    there = xbridge.to_backend(lazily(da.from_array(values, chunks=2)), target)
    found = np.from_dlpack(there)
    assert (found.shape, found.tolist()) == (at_once(values).shape, at_once(values).tolist())


def test_asarray__unknown_sizes_are_not_shared_or_ragged(x: Array) -> None:
    """Unknown sizes are refused with `copy=False`, and in a list beside others."""
    with pytest.raises(xbridge.CopyError, match="still to be computed"):
        xbridge.to_numpy(x[x > 2], copy=False)
    assert runs == []
    for other in (x[x > 3], np.ones(3)):
        with pytest.raises(xbridge.OptionError, match=r"it holds shapes \(.*nan.*\)"):
            xbridge.asarray([other, x[x > 2]], backend="numpy")
    assert runs == []


@pytest.mark.parametrize("others", [[], [np.ones(6)]])
def test_asarray__refused_list_computes_nothing(x: Array, others: list[Any]) -> None:
    """A list is not computed only to be refused."""
    with pytest.raises(xbridge.GradientError):
        xbridge.asarray([x, *others], backend="numpy", requires_grad=True)
    with pytest.raises(xbridge.DeviceError):
        xbridge.asarray([x, *others], backend="numpy", device="cuda")
    strict = pytest.importorskip("array_api_strict")
    with pytest.raises(xbridge.DTypeError):
        xbridge.asarray([x, *others], backend="array_api_strict", device=strict.Device("no_float64"))
    assert runs == []


def test_to_numpy__uses_the_configured_scheduler(x: Array) -> None:
    """The computation goes through the scheduler that the user has set."""
    asked = []

    def schedule(graph: object, keys: object, **options: object) -> Any:
        asked.append(keys)
        return dask.get(graph, keys, **options)

    with dask.config.set(scheduler=schedule):
        assert xbridge.to_numpy(x).tolist() == VALUES
    assert len(asked) == 1


# -- what comes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"device": "cpu"}, {"copy": True}, {"dtype": "float64"}])
@pytest.mark.parametrize("size", ["1 MiB", "16 B"])
def test_to_backend__later_writes_are_not_seen(options: dict[str, Any], size: str) -> None:
    """A write to the source after the call does not reach the Dask array."""
    a = np.arange(6.0)
    with dask.config.set({"array.chunk-size": size}):
        x = xbridge.to_backend(a, "dask", **options)
        assert x.chunks == da.from_array(a).chunks
    a[...] = 9.0
    assert x.compute().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_to_backend__names_are_unique() -> None:
    """Two conversions of one array have different names, so no scheduler confuses them."""
    a = np.arange(6.0)
    assert xbridge.to_backend(a, "dask").name != xbridge.to_backend(a, "dask").name


def test_to_backend__chunks_are_read_only() -> None:
    """A task cannot write the memory that it shares with other tasks."""

    def spoil(chunk: HostArray) -> HostArray:
        chunk[...] = 9.0
        return chunk

    x = xbridge.to_backend(np.arange(6.0), "dask")
    with pytest.raises(ValueError, match="read-only"):
        xbridge.to_numpy(x.map_blocks(spoil, dtype="f8", meta=np.empty(0)))
    with suppress(ValueError):  # what Dask itself returns is a copy, or the chunk, which is read-only
        x.compute()[...] = 9.0
    assert x.compute().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_aligned__function_may_return_lazy_arrays() -> None:
    """A function may return arrays that are still to be computed."""
    x = da.ones(3)
    options: list[dict[str, Any]] = [{}, {"backend": "dask"}, {"like": x}]
    for option in options:
        made = xbridge.aligned(**option)(lambda x: x + 1)(x)
        assert isinstance(made, da.Array)
        assert made.compute().tolist() == [2, 2, 2]
