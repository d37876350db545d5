"""What this backend promises besides: to be found, to keep every bit, to make nothing dense unasked."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest
import sparse

import xbridge

if TYPE_CHECKING:
    from xbridge.protocol import Array, HostArray

HUGE = (1 << 20, 1 << 20)
"""A shape that nobody could lay out: where it is handled, nothing dense is made."""


def huge(dtype: str) -> Array:
    """Two elements of very many."""
    coords = np.array([[0, HUGE[0] - 1], [5, HUGE[1] - 1]])
    return sparse.COO(coords, np.array([1, -2], dtype), HUGE)


def words(host: HostArray) -> list[int]:
    """The bits of every element, one after the other."""
    bits: list[int] = host.reshape(-1).view(f"u{host.itemsize}").tolist()
    return bits


# -- found ---------------------------------------------------------------------------------------


def run(code: str) -> None:
    """Run code in an interpreter that has imported nothing yet."""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_plugin__is_imported_on_first_use() -> None:
    """The backend is known by name and imported when the name is first used."""
    run("""
import sys, xbridge
assert "sparse" in xbridge.known_backends()
xbridge.to_numpy(memoryview(b"ab"))
assert not {"sparse", "xbridge_sparse"} & set(sys.modules)
x = xbridge.asarray([[0.0, 1.0]], backend="sparse")
assert "xbridge_sparse" in sys.modules
assert type(x) is sys.modules["sparse"].COO
""")


def test_plugin__is_found_by_an_array() -> None:
    """The backend is found by an array of its library."""
    run("""
import sys, sparse, xbridge
x = sparse.eye(3)
assert "xbridge_sparse" not in sys.modules
assert xbridge.to_numpy(x).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
assert xbridge.backend_of(x) == "sparse"
""")


# -- bits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["coo", "gcxs", "dok"])
def test_sparse__keeps_nan_payloads(form: str) -> None:
    """NaN payloads survive next to a fill value with another payload."""
    bits = np.array([0x7FC00001, 0x7FC00002, 0x80000000, 0x7FC00001, 0, 0x7FC00001], np.uint32)
    values = bits.view(np.float32).reshape(2, 3)
    stored = np.nonzero(bits.reshape(2, 3) != bits[0])
    x = sparse.COO(np.stack(stored), values[stored], (2, 3), fill_value=values[0, 0]).asformat(form)
    assert words(xbridge.to_numpy(x)) == bits.tolist()
    two = xbridge.asarray([x, x])
    assert words(xbridge.to_numpy(two)) == [*bits.tolist(), *bits.tolist()]


@pytest.mark.parametrize("fills", [(0x7FC00001, 0x7FC00002), (0, 0x80000000), (0x3F800000, 0)])
def test_sparse__stacks_different_fill_values(fills: tuple[int, int]) -> None:
    """Arrays whose fill values differ in any bit are stacked bit for bit."""
    nothing = np.zeros((1, 0), int), np.zeros(0, np.float32)
    arrays = [sparse.COO(*nothing, (2,), fill_value=f) for f in np.array(fills, np.uint32).view(np.float32)]
    stacked = xbridge.asarray(arrays)
    assert xbridge.backend_of(stacked) == "sparse"
    assert words(xbridge.to_numpy(stacked)) == np.repeat(fills, 2).tolist()


def test_sparse__swaps_foreign_byte_order() -> None:
    """Arrays in foreign byte order are stored in native order."""
    x = xbridge.to_backend(np.array([0, 1.5], np.dtype("f4").newbyteorder()), "sparse")
    assert x.dtype.isnative
    assert x.todense().tolist() == [0, 1.5]


def test_sparse__stores_negative_zeros() -> None:
    """Negative zeros are stored, and positive zeros are not."""
    x = xbridge.to_backend(np.array([0.0, -0.0, 1.0]), "sparse")
    assert (x.nnz, float(x.fill_value)) == (2, 0.0)
    assert np.signbit(xbridge.to_numpy(x)).tolist() == [False, True, False]


@pytest.mark.parametrize("form", ["coo", "gcxs", "dok"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1)])
def test_sparse__keeps_empty_and_0d_shapes(form: str, shape: tuple[int, ...]) -> None:
    """Arrays without axes or without elements keep their shape."""
    values = np.full(shape, 7, np.int16)
    x = sparse.COO.from_numpy(values).asformat(form)
    host = xbridge.to_numpy(x)
    assert (host.dtype, host.shape, host.tolist()) == (values.dtype, shape, values.tolist())
    assert xbridge.to_backend(host, "sparse").shape == shape


def test_sparse__0d_array_is_independent() -> None:
    """An array without axes does not change with the memory it was made from."""
    host = np.array(7.0)
    x = xbridge.to_backend(host, "sparse")
    host[()] = 8.0
    assert xbridge.to_numpy(x).tolist() == 7.0


def test_sparse__dok_is_copied() -> None:
    """Writing to a DOK array does not change what was converted from it."""
    x = sparse.DOK((2,), {(0,): 1.0})
    host, copied = xbridge.to_numpy(x), xbridge.to_backend(x, "sparse", copy=True)
    x[1] = 5.0
    assert host.tolist() == [1.0, 0.0]
    assert xbridge.to_numpy(copied).tolist() == [1.0, 0.0]
    assert xbridge.to_numpy(x).tolist() == [1.0, 5.0]


# -- nothing dense -------------------------------------------------------------------------------


def test_sparse__stays_sparse() -> None:
    """Copies, casts and stacks within the library stay sparse."""
    x = huge("float64")
    assert xbridge.to_backend(x, "sparse") is x
    for made in (
        xbridge.to_backend(x, "sparse", copy=True),
        xbridge.to_backend(x, "sparse", dtype="float32"),
        xbridge.to_backend(x, "sparse", dtype="default"),
        xbridge.asarray([x, x]),
    ):
        assert made.nnz in (2, 4)


def test_sparse__refuses_arrays_too_large_to_densify() -> None:
    """An array too large to make dense raises an error of xbridge."""
    nothing = np.zeros((2, 0), int), np.zeros(0)
    with pytest.raises(xbridge.UnsupportedArrayError, match=r"the step materialize failed with ValueError"):
        xbridge.to_numpy(sparse.COO(*nothing, (1 << 31, 1 << 31)))


def test_check_cast__sees_stored_and_fill_values() -> None:
    """A value that does not fit is found among the stored values and as the fill value."""
    numbers = sparse.COO(np.array([[0, 1]]), np.array([1, 2]), (3,), fill_value=1 << 40)
    full = sparse.COO(np.array([[0, 1, 2]]), np.array([1, 2, 3]), (3,), fill_value=1 << 40)
    like = xbridge.asarray([1], backend="sparse", dtype="int32")
    backend = sys.modules["xbridge_sparse"]
    with pytest.raises(xbridge.ValueLossError):
        backend.check_cast(numbers, "int32")
    assert backend.check_cast(full, "int32") is full
    assert backend.check_cast(like, "int32") is like
    assert backend.check_cast(huge("int64"), "int32").nnz == 2


# -- refused -------------------------------------------------------------------------------------


def test_sparse__copy_false_raises() -> None:
    """No memory can be shared with sparse in either direction."""
    for source, target in ((np.ones(3), "sparse"), (sparse.eye(3), "numpy")):
        with pytest.raises(xbridge.CopyError, match="with copy=False: "):
            xbridge.to_backend(source, target, copy=False)


def test_sparse__bfloat16_leaves_but_does_not_enter() -> None:
    """A bfloat16 array can be converted from sparse but not to it."""
    values = np.array([0, 1.5, -2], ml_dtypes.bfloat16)
    x = sparse.COO.from_numpy(values)
    assert xbridge.to_numpy(x).tobytes() == values.tobytes()
    with pytest.raises(xbridge.DTypeError, match=r"sparse has no bfloat16; try dtype='nearest', or dtype="):
        xbridge.to_backend(values, "sparse")
    assert xbridge.to_backend(values, "sparse", dtype="float32").dtype == np.float32
