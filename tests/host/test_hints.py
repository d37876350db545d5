"""Hints for objects that are not arrays: each is a call that is run here, and keeps the values."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import Future
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from exporters import Exporter

import xbridge
import xbridge.tree
from xbridge._host import advice

if TYPE_CHECKING:
    from pathlib import Path

A = np.arange(3.0)


class Pair(NamedTuple):
    """A container, and no array."""

    a: Any
    b: Any


def listed(made: Any) -> Any:
    """Values as floats in Python's containers."""
    if isinstance(made, dict):
        return {key: listed(value) for key, value in made.items()}
    if hasattr(made, "__iter__") and not hasattr(made, "shape"):
        return [listed(value) for value in made]
    return np.asarray(xbridge.to_list(xbridge.asarray(made)), float).tolist()


def objects(folder: Path) -> dict[Any, list[tuple[Any, Any]]]:
    """Objects that no call accepts, with the values that they stand for; None if no hint has them."""
    torch, jax, pandas = map(pytest.importorskip, ("torch", "jax", "pandas"))
    dask, polars, pyarrow = map(pytest.importorskip, ("dask", "polars", "pyarrow"))
    sparse, of_jax = map(pytest.importorskip, ("scipy.sparse", "jax.experimental.sparse"))
    np.save(folder / "a.npy", A)
    np.savez(folder / "a.npz", a=A)
    torch.save({"a": torch.tensor(A)}, folder / "a.pt")
    file = pytest.importorskip("safetensors")
    pytest.importorskip("safetensors.numpy")
    file.numpy.save_file({"a": A}, folder / "a.safetensors")
    used_up = torch.tensor(A).__dlpack__()
    torch.from_dlpack(used_up)
    future = Future[Any]()
    future.set_result(A)
    return {
        xbridge.to_numpy: [
            (lambda x: x, None),
            (len, None),
            (dt.date(1970, 1, 3), None),
            (folder / "a.npy", A),
            (folder / "a.pt", {"a": A}),
            (str(folder / "a.npz"), {"a": A}),
            (torch.nn.PReLU(1, 0.5), {"weight": [0.5]}),
            (sparse.csr_array([[1.0]]), [[1]]),
            (of_jax.BCOO.fromdense(jax.numpy.ones((1, 1))), [[1]]),
            (torch.utils.dlpack.to_dlpack(torch.tensor(A)), A),
            (torch.tensor(A).__dlpack__(max_version=(1, 0)), A),
            (used_up, None),
            (Exporter(__jax_array__=lambda: jax.numpy.arange(3.0)), A),
            (Fraction(1, 2), 0.5),
            (Fraction(2**53 + 1), None),
            (str(2**53 + 1), None),
            (np.dtype("f4"), None),
            (dask.delayed(A), A),
            (polars.LazyFrame({"a": [1.0]}), [[1]]),
            (future, A),
            (pyarrow.SparseCOOTensor.from_dense_numpy(A), A),
            (torch.utils.data.DataLoader([A]), [[A]]),
            (np.poly1d([1.0, 2.0]), [1, 2]),
            (Exporter(__array__=lambda: A / 2, dtype=np.dtype("i2"), shape=(3,)), A / 2),
            (Exporter(__array__=lambda: np.array([Fraction(1, 2)])), [0.5]),
            (Pair(A, A), [A, A]),
            (MappingProxyType({"a": A}), {"a": A}),
            (file.safe_open(folder / "a.safetensors", "np"), {"a": A}),
            (np.sin, None),
            (None, None),
            ("a.png", None),
            (object(), None),
        ],
        xbridge.asarray: [
            ([Fraction(1, 2)], [0.5]),
            ([None, 1.0], [np.nan, 1]),
            ([pandas.NA, 1.0], [np.nan, 1]),
            ([dt.date(1970, 1, 3)], None),
            ([{"a": 1}], [{"a": 1}]),
            ([lambda: 3], None),
            ([{1, 2}], None),
            ([[None, 1.0]], None),
            (["1", 2], [1, 2]),
            ([Fraction(2**53 + 1), 0.5], None),
            (["1e400"], None),
            (["x", 2], None),
            ([A, None], None),
            ([None, "1"], None),
        ],
    }


def test_hint__of_each_kind_of_object_gives_its_values(tmp_path: Path) -> None:
    """Each hint in the tables by class is followed with an object of the kind; other objects have none."""
    torch, pandas = pytest.importorskip("torch"), pytest.importorskip("pandas")
    names = {"numpy": np, "torch": torch, "xbridge": xbridge, "asarray": xbridge.asarray, "pandas": pandas}
    followed = {""}
    for call, pairs in objects(tmp_path).items():
        for x, wanted in pairs:
            with pytest.raises(xbridge.XBridgeError) as caught:
                call(x)
            hint = caught.value.hint
            followed.add(hint)
            if wanted is not None:
                made = eval(hint, {**names, "x": x})
                assert repr(listed(made)) == repr(listed(wanted)), hint
            else:
                assert hint == ""
    tables = (advice._BY_NAME, advice._READERS, advice._BY_ATTRIBUTE, advice._ITEMS)
    assert {hint for table in tables for hint in table.values()} <= followed


def test_hint__of_a_column_of_what_has_no_plain_numbers_has_no_stack() -> None:
    """A mask would be lost, and a nullable dtype is none of NumPy's, so no hint stacks such items."""
    torch, pandas = pytest.importorskip("torch"), pytest.importorskip("pandas")
    masked = np.ma.masked_array([1.0, 2.0], [False, True])
    nullable = [pandas.Series([1, None], dtype="Int64"), pandas.Series([3, 4], dtype="Int64")]
    for items in ([masked, masked], nullable):
        with pytest.raises(xbridge.XBridgeError) as caught:
            xbridge.to_backend(pandas.Series(items), "torch")
        assert caught.value.hint == ""
    for items in ([A, A], [torch.tensor(A)] * 2, [pandas.Series(A)] * 2):
        with pytest.raises(xbridge.XBridgeError) as caught:
            xbridge.to_backend(x := pandas.Series(items), "torch")
        made = eval(caught.value.hint, {"numpy": np, "asarray": xbridge.asarray, "x": x})
        assert made.tolist() == [A.tolist()] * 2
