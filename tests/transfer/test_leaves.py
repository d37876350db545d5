"""`transfer` and `prefetch` convert each leaf, leave it, or ask; and read the state of their call."""

from __future__ import annotations

import threading
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import xbridge
from xbridge import tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAYS: dict[str, Callable[..., Any]] = {
    "transfer": lambda batch, *args, **options: xbridge.transfer(batch, *args, **options).result(),
    "prefetch": lambda batch, *args, **options: next(iter(xbridge.prefetch([batch], *args, **options))),
}


class Exporter:
    """Of a library that has no backend."""

    def __array__(self, dtype: object = None, copy: object = None) -> Any:
        return np.array([1.0, 2.0])


@dataclass(frozen=True)
class Stored(Exporter):
    """An array with fields, as zarr has."""

    fill_value: object
    codec: Any


STORED = Stored(np.float32(0), {"level": np.ones(1)})
EXPORTERS: list[Any] = [Exporter(), STORED, array("d", [1.0, 2.0])]


@pytest.mark.parametrize("x", EXPORTERS, ids=["__array__", "a dataclass", "a buffer"])
@pytest.mark.parametrize("way", WAYS)
def test_transfer__exporters_are_converted_or_kept_as_asked(way: str, x: Any) -> None:
    """The first exporter in a container is an error, unless the call says what to do with it."""
    run = WAYS[way]
    with pytest.raises(xbridge.UnsupportedArrayError, match=r"at tree\['x'\]\[1\]") as caught:
        run({"x": (np.ones(1), x), "y": [memoryview(array("d")), x]}, "numpy")
    assert caught.value.hint == "exporters=True, or exporters=False"
    assert run({"x": (np.ones(1), x)}, "numpy", exporters=False)["x"][1] is x
    assert run({"x": (np.ones(1), x)}, "numpy", exporters=True)["x"][1].tolist() == [1.0, 2.0]
    assert run(x, "numpy").tolist() == [1.0, 2.0]


@pytest.mark.parametrize("way", WAYS)
def test_transfer__numbers_are_converted_as_asked(way: str) -> None:
    """Python numbers stay, or become arrays as in a tree."""
    batch = {"n": 3, "x": np.ones(1), "y": 2.5, "b": True, "text": "a"}
    assert WAYS[way](batch, "numpy")["n"] == 3
    trees = (WAYS[way](batch, "numpy", scalars=True), tree.to_numpy(batch, scalars=True))
    made, wanted = ({key: getattr(y, "dtype", y) for key, y in each.items()} for each in trees)
    assert made == wanted
    with pytest.raises(xbridge.ValueLossError):
        WAYS[way]({"n": 2**70}, "numpy", scalars=True)


def test_find_container__object_that_exports_is_a_leaf() -> None:
    """An array that is a dataclass is not taken apart: it is converted as a whole, or stays as it is."""
    assert tree.to_numpy({"x": STORED})["x"] is STORED
    assert tree.to_numpy([STORED], exporters=True)[0].tolist() == [1.0, 2.0]
    assert tree.map(lambda x: x, {"x": STORED})["x"] is STORED


def set_wide_default(library: str, is_wide: bool) -> None:
    """Give a library 64 or 32 bits by default, in the whole process."""
    module: Any = pytest.importorskip(library)
    if library == "torch":
        module.set_default_dtype(module.float64 if is_wide else module.float32)
    else:
        module.config.update("jax_enable_x64", is_wide)


@pytest.mark.parametrize("library", ["torch", "jax"])
@pytest.mark.parametrize("way", WAYS)
def test_transfer__default_dtype_is_that_of_the_call(way: str, library: str) -> None:
    """The default dtype is read when the conversion is asked for, not before it runs or while it does."""
    begun, gate = threading.Event(), threading.Event()

    class Late(Exporter):
        def __array__(self, dtype: object = None, copy: object = None) -> Any:
            begun.set()
            gate.wait()
            return np.array([1.0, 2.0])

    batch = [Late(), np.ones(2), 0.5]
    options: dict[str, Any] = {"dtype": "default", "exporters": True, "scalars": True}

    def load() -> Iterator[Any]:
        yield [np.ones(1)]
        gate.wait()
        yield batch

    try:
        set_wide_default(library, is_wide=True)
        if way == "transfer":
            wait: Callable[[], Any] = xbridge.transfer(batch, library, **options).result
            begun.wait()
        else:
            batches = iter(xbridge.prefetch(load(), library, depth=1, **options))
            next(batches)
            wait = batches.__next__
        set_wide_default(library, is_wide=False)
        gate.set()
        made = wait()
    finally:
        gate.set()
        set_wide_default(library, is_wide=False)
    assert [xbridge.dtype_of(x) for x in made] == ["float64"] * 3
    after = xbridge.transfer(batch, library, **options).result()
    assert [xbridge.dtype_of(x) for x in after] == ["float32"] * 3


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [4, 1 << 20])
def test_transfer__dask_computes_with_the_scheduler_of_the_call(way: str, size: int) -> None:
    """A Dask array is computed by the scheduler that is set when the conversion is asked for."""
    da, dask = pytest.importorskip("dask.array"), pytest.importorskip("dask")
    gate, threads = threading.Event(), set[str]()

    def task(block: Any) -> Any:
        gate.wait()
        threads.add(threading.current_thread().name)
        return block

    x = da.ones(size, chunks=size // 4).map_blocks(task, dtype="f8", meta=np.empty(0))
    with dask.config.set(scheduler="synchronous"):
        if way == "transfer":
            wait: Callable[[], Any] = xbridge.transfer(x, "numpy").result
        else:
            batches = iter(xbridge.prefetch([np.ones(1), x], "numpy", depth=1))
            next(batches)
            wait = batches.__next__
    gate.set()
    assert wait().sum() == size
    assert len(threads) == 1
    assert next(iter(threads)).startswith("xbridge-")
    assert xbridge.to_numpy(x).sum() == size
    assert not all(name.startswith("xbridge-") for name in threads)


def test_prefetch__iterable_runs_with_the_options_of_jax() -> None:
    """What the iterable computes with JAX is what a plain loop would give, in every context of JAX."""
    jax = pytest.importorskip("jax")
    mesh = jax.make_mesh((1,), ("i",))

    def batches() -> Iterator[Any]:
        numbers = np.asarray(jax.random.uniform(jax.random.key(0), (3,)))
        words = ("enable_x64", "debug_nans", "debug_infs", "disable_jit", "transfer_guard_host_to_device")
        options = [str(getattr(jax.config, f"jax_{word}")) for word in words]
        yield numbers, options, jax.sharding.get_abstract_mesh().axis_names

    contexts: list[Callable[[], Any]] = [
        lambda: jax.default_prng_impl("rbg"),
        lambda: jax.threefry_partitionable(False),
        lambda: jax.transfer_guard("log"),
        lambda: jax.debug_infs(True),
        jax.disable_jit,
        lambda: jax.set_mesh(mesh),
    ]
    for context in contexts:
        with context():
            ((wanted, *rest),) = batches()
            ((made, *others),) = xbridge.prefetch(batches(), "numpy")
        assert made.tolist() == wanted.tolist()
        assert others == rest
    ((made, *_),) = xbridge.prefetch(batches(), "numpy")
    assert made.tolist() == next(batches())[0].tolist()
