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


@pytest.mark.parametrize("fills", [(0x7FC00001, 0x7FC00002), (0, 0x80000000), (0x3F800000, 0)])
def test_sparse__stacks_different_fill_values(fills: tuple[int, int]) -> None:
    """Arrays whose fill values differ in any bit are stacked bit for bit."""
    nothing = np.zeros((1, 0), int), np.zeros(0, np.float32)
    arrays = [sparse.COO(*nothing, (2,), fill_value=f) for f in np.array(fills, np.uint32).view(np.float32)]
    stacked = xbridge.asarray(arrays)
    assert xbridge.backend_of(stacked) == "sparse"
    assert words(xbridge.to_numpy(stacked)) == np.repeat(fills, 2).tolist()


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


def test_sparse__bfloat16_leaves_but_does_not_enter() -> None:
    """A bfloat16 array can be converted from sparse but not to it."""
    values = np.array([0, 1.5, -2], ml_dtypes.bfloat16)
    x = sparse.COO.from_numpy(values)
    assert xbridge.to_numpy(x).tobytes() == values.tobytes()
    with pytest.raises(xbridge.DTypeError, match=r"sparse has no bfloat16; try dtype='nearest', or dtype="):
        xbridge.to_backend(values, "sparse")
    assert xbridge.to_backend(values, "sparse", dtype="float32").dtype == np.float32
