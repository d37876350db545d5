"""A dtype that both libraries have goes there and back bit for bit, in any memory layout.

Values are known before an array is made of them, and are read by the means of the libraries.
"""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from inside import DTYPES, category, get_backend, native_dtype

import xbridge
from xbridge.testing.conformance._cases import (
    FULL_SHAPE,
    common_dtypes,
    edge_values,
    plain_array,
    read,
    same_bits,
)
from xbridge.testing.samples import Sample

HERE = [
    name
    for name in xbridge.known_backends()
    if xbridge.is_available(name) and "cpu" in get_backend(name).devices()
]
PAIRS = list(permutations(HERE, 2))


def check(source: str, target: str, sample: Sample) -> None:
    there = xbridge.to_backend(sample.array, target)
    back = xbridge.to_backend(there, source)
    assert xbridge.dtype_of(there) == xbridge.dtype_of(back) == sample.values.dtype.name
    assert same_bits(read(target, there), sample.values)
    assert same_bits(read(source, back), sample.values)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_to_backend__round_trip_of_every_common_dtype(source: str, target: str) -> None:
    """Edge values of each dtype that two libraries have survive the round trip."""
    for dtype in common_dtypes(source):
        if dtype in common_dtypes(target):
            values = edge_values(dtype, FULL_SHAPE)
            check(source, target, Sample(plain_array(source, values), values, "plain", False, True))


PACKED = [word for word, facts in DTYPES.items() if facts.is_packed]


def every_value(word: str) -> np.ndarray:
    """Each value of a small dtype, in NumPy's memory."""
    pytest.importorskip("ml_dtypes")
    return np.arange(1 << DTYPES[word].bits, dtype="u1").view(native_dtype(word))


@pytest.mark.parametrize(("word", "target"), [*product(PACKED, HERE)])
def test_to_backend__dtypes_of_less_than_a_byte(word: str, target: str) -> None:
    """Each value goes to a library that has the dtype and back, by every call; others need a wider one."""
    values = every_value(word)
    backend, facts = get_backend(target), DTYPES[word]
    if backend.unsupported_dtype(word, xbridge.Device("cpu")):
        with pytest.raises(xbridge.DTypeError):
            xbridge.to_backend(values, target)
        near = xbridge.to_backend(values, target, dtype="nearest")
        assert category(xbridge.dtype_of(near)) == category(word)
        named = xbridge.to_backend(values, target, dtype="float32")
        for wide in (near, named):
            assert xbridge.to_numpy(wide, dtype="float32").tolist() == values.astype("f4").tolist()
        return
    for _ in range(2):  # planned, and then repeated
        x = xbridge.to_backend(values, target)
        assert xbridge.dtype_of(x) == word
        y, stacked = xbridge.to_numpy(x, copy=True), xbridge.to_numpy(xbridge.asarray([x, x]))
        assert same_bits(stacked, np.stack([values, values]))
        for made in (x, xbridge.asarray(x, copy=True), xbridge.align(x, values)[1], y):
            assert same_bits(xbridge.to_numpy(made), values)
        y.view("u1")[:] = 0
        assert same_bits(xbridge.to_numpy(x), values)
        assert xbridge.to_list(x) == xbridge.to_list(values) == values.tolist()
        wide = "float32" if facts.kind == "float" else "int8"
        assert xbridge.to_list(xbridge.asarray(x, dtype=wide)) == values.tolist()
        assert xbridge.explain(x, "numpy").error is None
        if target == "jax":
            assert xbridge.shares_memory(x, x)
            with pytest.raises(xbridge.CopyError):
                xbridge.to_numpy(x, copy=False)


@pytest.mark.parametrize("dtype", [word for word, facts in DTYPES.items() if facts.is_finite])
@pytest.mark.parametrize(("lost", "size"), [(np.nan, 2), (np.inf, 2), (-np.inf, 2), (np.nan, 1 << 14)])
def test_to_backend__named_dtype_without_nan_refuses_it(dtype: str, lost: float, size: int) -> None:
    """NaN and infinity never become a number of a dtype that has neither, and numbers do."""
    pytest.importorskip("ml_dtypes")
    x = np.ones(size)
    x[-1] = lost
    made = [x, x.astype("float32"), x[::-1], [1.0, lost], x.astype(object)[-2:]]
    if xbridge.is_available("jax") and not get_backend("jax").unsupported_dtype(dtype, xbridge.Device("cpu")):
        made.append(xbridge.to_jax(x.astype("float32")))
    for each in made[: 2 if size > 2 else None]:
        with pytest.raises(xbridge.DTypeError, match="neither NaN nor infinity"):
            xbridge.asarray(each, dtype=dtype)
    if xbridge.is_available("dask"):
        lazy = pytest.importorskip("dask.array").from_array(x, chunks=size // 2)
        for call in (lambda: xbridge.to_numpy(lazy, dtype=dtype), xbridge.to_dask(lazy, dtype=dtype).compute):
            with pytest.raises(xbridge.DTypeError, match="neither NaN nor infinity"):
                call()
    assert xbridge.asarray(x[:-1], dtype=dtype).astype(float).tolist() == x[:-1].tolist()
