"""Dask: a function with a signature is called chunk by chunk, when the result is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from crossed import aligned, same
from inside import cached

from xbridge import OptionError

da = pytest.importorskip("dask.array")

NARROW = True
A = np.arange(48.0).reshape(8, 6) / 10


def chunked() -> Any:
    return da.from_array(A, chunks=(3, 6))


def norm(x: Any) -> Any:
    return np.sqrt((x * x).sum(-1))


def test_aligned__result_is_computed_later_and_chunk_by_chunk() -> None:
    """A result is computed later and chunk by chunk."""
    seen: Any = []
    f = aligned(backend="numpy", signature="(n)->()")(lambda x: (seen.append(x.shape), norm(x))[1])
    y = f(chunked())
    # The function of a Dask array is first called when it is computed.
    assert (seen, y.chunks, y.dtype) == ([], ((3, 3, 2),), A.dtype)
    same(y.compute(scheduler="sync"), norm(A))
    assert sorted(seen) == [(2, 6), (3, 6), (3, 6)]
    assert not any(f.__xbridge__.key in key for key in cached)  # which would call it at once


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_aligned__functions_of_other_libraries_describe_their_results(name: str) -> None:
    """Functions of other libraries describe their results."""
    library = pytest.importorskip(name if name == "torch" else "jax.numpy")
    f = aligned(backend=name, signature="(n)->(m),()", dtype="float32" if name == "jax" else None)(
        lambda x: (x[..., :2] * 2, library.sum(x, -1))
    )
    one, two = f(chunked().astype("float32"))
    assert (one.shape, one.dtype, two.shape) == ((8, 2), np.dtype("f4"), (8,))
    same(one.compute(), A[:, :2].astype("f4") * 2, 1e-5)
    same(two.compute(), A.astype("f4").sum(-1), 1e-5)


def test_aligned__axes_of_one_example_are_in_one_chunk() -> None:
    """Axes of one example are in one chunk."""
    f = aligned(backend="numpy", signature="(n)->()")(norm)
    split = chunked().rechunk((8, 2))
    with pytest.raises(OptionError, match=r"try x\.rechunk\({-1: -1}\)"):
        f(split)
    same(f(split.rechunk({-1: -1})).compute(), norm(A))


def test_aligned__arguments_broadcast_and_trees_and_numbers_are_passed() -> None:
    """Arguments broadcast and trees and numbers are passed."""
    f = aligned(backend="numpy", signature="(),()->()", result=lambda t, k: {"y": t["a"]})(
        lambda t, k: {"y": t["a"] * t["b"] * k}
    )
    made = f({"a": chunked(), "b": da.from_array(np.arange(6.0), chunks=6)}, 2)
    same(made["y"].compute(scheduler="sync"), A * np.arange(6.0) * 2)


def test_aligned__tasks_cannot_write_to_chunks() -> None:
    """Tasks cannot write to chunks."""
    p = chunked().persist(scheduler="sync")
    with pytest.raises(ValueError, match="read-only"):
        aligned(backend="numpy", signature="()->()")(lambda x: np.multiply(x, 2, out=x))(p).compute()
    torch = pytest.importorskip("torch")
    w = aligned(backend="torch", signature="()->()")(lambda t: t.mul_(2))
    same(w(p).compute(), 2 * A)
    same(p.compute(), A)
    assert torch.is_grad_enabled()


def test_aligned__buffer_that_a_function_fills_again_is_copied() -> None:
    """Each chunk has its own result, though the function returns the same array for all."""
    buffer = np.empty((2, 3))
    f = aligned(backend="numpy", signature="()->()")(lambda x: np.multiply(x, 2, out=buffer))
    x = np.arange(12.0).reshape(4, 3)
    same(f(da.from_array(x, chunks=(2, 3))).compute(), 2 * x)


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_apply__compares_results_with_what_is_declared(name: str) -> None:
    """A function that does not compute with the last axes alone is refused, in whatever library."""
    library = pytest.importorskip("jax.numpy" if name == "jax" else name)
    a = chunked().astype("float32")
    wrong: list[tuple[str, Any, str]] = [
        ("(n)->()", lambda x: x, "announces"),  # an axis too many
        ("(n)->(n)", lambda x: x.sum(-1), "announces"),  # one is missing
        ("(n)->(n)", lambda x: x[..., :2], "announces"),
        ("(n)->(),()", lambda x: x.sum(-1), "announces"),
        ("(n)->()", lambda x: (x.sum(-1), x.sum(-1)), "announces"),
        ("(a,b,c)->()", lambda x: x.sum(-1), "signature="),
        ("(n)->()", lambda x: x.sum(), "declared"),  # right for one example
        ("(n)->(n)", lambda x: x[:2] if x.ndim > 1 else x, "declared"),
        ("(n)->(n)", lambda x: x.swapaxes(0, -1), "declared"),
        ("(n)->(n)", lambda x: library.stack([x, x]) if x.ndim > 1 else x, "declared"),
    ]
    for signature, fn, reason in wrong:
        with pytest.raises(OptionError, match=f"{reason}|announces" if name == "numpy" else reason):
            da.compute(aligned(backend=name, signature=signature)(fn)(a), scheduler="sync")
    for result in (lambda x: x.astype("f4")[..., 0], lambda x: (x, x)):
        f = aligned(backend="numpy", signature="(n)->()", result=result)(norm)
        with pytest.raises(OptionError, match=r"declared|announces"):
            f(chunked()).compute(scheduler="sync")


def test_aligned__refuses_arrays_in_other_chunks() -> None:
    """Chunks that do not meet are refused with the call that makes them meet; axes of length 1 broadcast."""
    f = aligned(backend="numpy", signature="(n),(n)->()")(lambda x, y: (x * y).sum(-1))
    a = chunked()
    for b in (a, a[:1], a[0]):
        same(f(a, b).compute(scheduler="sync"), (A * np.asarray(b)).sum(-1))
    other = a.rechunk((4, -1))
    with pytest.raises(OptionError, match=r"different chunksize.*try x.rechunk\(y.chunks\)"):
        f(a, other)
    same(f(a, other.rechunk({0: (3, 3, 2)})).compute(scheduler="sync"), (A * A).sum(-1))
    some = a[a[:, 0] > 1]
    with pytest.raises(OptionError, match=r"x[.]compute_chunk_sizes"):
        f(a, some)
    sized = some.compute_chunk_sizes()
    same(f(sized, sized).compute(scheduler="sync"), (np.asarray(sized) ** 2).sum(-1))
    with pytest.raises(OptionError, match="fewer axes"):
        f(a[0, 0], a)
    with pytest.raises(OptionError, match="2 inputs"):
        f(a)


def test_aligned__function_is_one_node_of_the_graph() -> None:
    """The function is one node of the graph."""
    big = np.ones(100_000)
    f = aligned(backend="numpy", signature="()->()")(lambda x: x + big[0])
    y = f(da.from_array(np.ones(64), chunks=1))
    cloudpickle = pytest.importorskip("cloudpickle")
    graph = dict(y.__dask_graph__())
    heavy = [key for key, task in graph.items() if len(cloudpickle.dumps(task)) > big.nbytes]
    assert len(heavy) <= 1
    same(y.compute(scheduler="sync"), 2 * np.ones(64))
