"""Arrays that are drawn for one call: of one device, with shapes and dtypes that go together."""

from __future__ import annotations

import numpy as np
import pytest
from drawing import drawn

import xbridge
from xbridge.testing.strategies import arrays_together, xp_dtypes


@pytest.mark.parametrize("library", ["numpy", "torch", "array_api_strict"])
def test_arrays_together__same_device_dtype_and_shape(library: str) -> None:
    """By default, arrays drawn together have the same device, dtype and shape."""
    if not xbridge.is_available(library):
        pytest.skip(f"{library} is not installed")
    for x, y, z in drawn(arrays_together(library, 3), 30):
        assert tuple(x.shape) == tuple(y.shape) == tuple(z.shape)
        assert xbridge.dtype_of(x) == xbridge.dtype_of(y) == xbridge.dtype_of(z)
        assert xbridge.device_of(x) == xbridge.device_of(y) == xbridge.device_of(z)


def test_arrays_together__shapes() -> None:
    """Shapes broadcast to that of the first array, or are the given ones."""
    some = drawn(arrays_together("numpy", 3, shapes="broadcastable"), 80)
    for group in some:
        assert np.broadcast_shapes(*(x.shape for x in group)) == group[0].shape
    assert {len({x.shape for x in group}) for group in some} >= {1, 2, 3}
    ((x, y),) = drawn(arrays_together("numpy", shapes=[(2, 3), (3,)]), 1)
    assert (x.shape, y.shape) == ((2, 3), (3,))


def test_arrays_together__dtypes() -> None:
    """Dtypes are ones that the standard promotes, or the given one for every array."""
    strict = pytest.importorskip("array_api_strict")
    some = drawn(arrays_together("array_api_strict", dtypes="promotable", devices="cpu"), 80)
    for x, y in some:
        strict.result_type(x, y)
    assert any(x.dtype != y.dtype for x, y in some)
    for dtype in ("float32", xp_dtypes("numpy", "float").filter(lambda word: word == "float32")):
        assert {x.dtype.name for pair in drawn(arrays_together("numpy", dtypes=dtype), 10) for x in pair} == {
            "float32"
        }


def test_xp_dtypes__follow_the_configuration() -> None:
    """Dtypes of the standard are drawn only if the library has them in its current configuration."""
    assert set(drawn(xp_dtypes("numpy", ("float", "complex")))) == {
        "float32",
        "float64",
        "complex64",
        "complex128",
    }
    if xbridge.is_available("jax"):
        import jax

        with jax.enable_x64(False):
            assert set(drawn(xp_dtypes("jax", "float"))) == {"float32"}


def test_arrays_together__of_a_dtype_that_one_device_lacks() -> None:
    """Arrays of a named dtype are drawn on the devices that have it."""
    pytest.importorskip("array_api_strict")
    for x, y in drawn(arrays_together("array_api_strict", dtypes="float64"), 30):
        assert x.dtype == y.dtype
        assert "float64" in str(x.dtype)
