"""`dtype="nearest"`: the same dtype where it is there, else the nearest of its kind, and no value is lost."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from inside import DTYPES, category, get_backend, native_dtype
from toylib import Toy, make_backend

import xbridge
from xbridge.protocol import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable


def poor(*words: str) -> Callable[[str, xbridge.Device], Unsupported | None]:
    """Return the function `unsupported_dtype` of a library that has these dtypes and no others."""

    def unsupported_dtype(dtype: str, device: xbridge.Device) -> Unsupported | None:
        return None if dtype in words else Unsupported(xbridge.DTypeError, f"no {dtype}", "another library")

    return unsupported_dtype


def toys(*words: str) -> None:
    """A library of toys that has these dtypes."""
    pytest.importorskip("ml_dtypes")
    xbridge.register_backend("toylib", make_backend(unsupported_dtype=poor(*words)), replace=True)


@pytest.mark.usefixtures("own_registry")
@pytest.mark.parametrize("there", [("float32", "int32", "bool"), ("float64", "int64", "uint8"), ("float16",)])
def test_nearest__library_gets_every_dtype_of_a_kind_that_it_has(there: tuple[str, ...]) -> None:
    """A library gets every dtype of a kind that it has."""
    toys(*there)
    for dtype in DTYPES:
        values = np.array([1, 0.5 if category(dtype) == "float" else 0]).astype(native_dtype(dtype))
        if category(dtype) not in map(category, there):
            with pytest.raises(xbridge.DTypeError, match=f"no {dtype}; try another library$"):
                xbridge.to_backend(values, "toylib", dtype="nearest")
            continue
        made = xbridge.to_backend(values, "toylib", dtype="nearest")
        assert xbridge.dtype_of(made) in there
        assert category(xbridge.dtype_of(made)) == category(dtype)
        assert made.data.astype("f8").tolist() == values.astype("f8").tolist()
        if dtype not in there:
            with pytest.raises(
                xbridge.DTypeError, match=f"no {dtype}; try dtype='nearest', or another library$"
            ):
                xbridge.to_backend(values, "toylib")


@pytest.mark.usefixtures("own_registry")
def test_nearest__looks_at_the_values_only_where_one_could_be_lost() -> None:
    """Values are read only where one could be lost."""
    toys("float32", "int32")
    for dtype, there in {
        "bfloat16": "float32",
        "uint8": "int32",
        "float64": "float32",
        "uint32": "int32",
    }.items():
        x = np.ones(2, native_dtype(dtype))
        plan = xbridge.explain(x, "toylib", dtype="nearest")
        assert plan.target is not None
        assert plan.target.dtype == there
        assert [step.action for step in plan.checks] == (
            [] if dtype in ("bfloat16", "uint8") else [f"check_cast {there}"]
        )
        assert plan.exact is (dtype != "float64")


@pytest.fixture
def jax() -> Any:
    """JAX, whose 64 bits are off."""
    return pytest.importorskip("jax")


def test_nearest__to_numpy_takes_what_numpy_lacks(recwarn: pytest.WarningsRecorder) -> None:
    """`to_numpy` takes what NumPy lacks."""
    torch = pytest.importorskip("torch")
    x = torch.tensor([1 + 2j, 65504], dtype=torch.complex32)
    made = xbridge.to_numpy(x, dtype="nearest")
    assert (made.dtype, made.tolist()) == (np.dtype("complex64"), [1 + 2j, 65504])
    assert xbridge.asarray(x, dtype="nearest") is x
    assert all("ComplexHalf" in str(warning.message) for warning in recwarn)


def test_nearest__nothing_changes_where_the_dtype_is_there() -> None:
    """Nothing changes if the target has the dtype."""
    torch = pytest.importorskip("torch")
    for x in (
        np.ones(2),
        np.ones(2, "longdouble"),
        np.array(["a"]),
        torch.ones(2).double(),
        torch.eye(2).to_sparse(),
    ):
        assert xbridge.asarray(x, dtype="nearest", copy=False) is x
    t = xbridge.to_backend(a := np.arange(3.0), "torch", dtype="nearest", copy=False)
    assert np.shares_memory(a, t.numpy())
    assert xbridge.to_backend(np.ones(2, "longdouble"), "torch", dtype="nearest").dtype == torch.float64
    with pytest.raises(xbridge.ValueLossError, match="does not fit float64"):
        xbridge.to_backend(np.array(["1e4000"], "longdouble"), "torch", dtype="nearest")


def test_nearest__arrays_that_are_not_numeric_have_no_nearest_dtype(jax: Any) -> None:
    """Arrays that are not numeric have no nearest dtype."""
    for x in (np.array(["a"]), np.array(["2030-01-01"], "M8[D]")):
        for target in {"numpy", "jax"} - {xbridge.backend_of(x)}:
            with pytest.raises(xbridge.DTypeError):
                xbridge.to_backend(x, target, dtype="nearest")


def test_nearest__numbers_become_the_defaults_of_the_target(jax: Any) -> None:
    """Numbers become the defaults of the target."""
    torch = pytest.importorskip("torch")
    for numbers in ([1, 2], [1.5, 2], 1j, True, []):
        for target in ("numpy", "torch", "jax"):
            made = xbridge.asarray(numbers, backend=target, dtype="nearest")
            assert made.dtype == xbridge.asarray(numbers, backend=target).dtype
    with torch.device("cpu"):
        assert xbridge.asarray([0.5], backend="torch", dtype="nearest").dtype == torch.float32
    with pytest.raises(xbridge.ValueLossError):
        xbridge.asarray([2**40], backend="jax", dtype="nearest")


def test_nearest__arrays_of_a_list_are_promoted_first(jax: Any) -> None:
    """Arrays of a list are promoted first."""
    made = xbridge.asarray([np.ones(2, "f4"), np.array([3, 4])], backend="jax", dtype="nearest")
    assert (made.dtype, made.tolist()) == (np.dtype("f4"), [[1, 1], [3, 4]])
    both = [jax.numpy.ones(2), np.array([0.5, 1e300])]
    with pytest.raises(xbridge.ValueLossError, match="does not fit float32"):
        xbridge.asarray(both, dtype="nearest")


def test_nearest__array_from_when_64_bits_were_on_is_brought_to_what_is_there(jax: Any) -> None:
    """An array from when 64 bits were on is brought to what is there."""
    with jax.enable_x64(True):
        x = jax.numpy.array([1.5, 2.0])
        assert xbridge.asarray(x, dtype="nearest") is x
    assert xbridge.asarray(x, dtype="nearest").dtype == np.float32
    assert xbridge.asarray([x, x], dtype="nearest").dtype == np.float32


def test_nearest__tracer_stays_what_it_is(jax: Any) -> None:
    """A tracer stays what it is."""
    seen = []

    def inside(x: Any) -> Any:
        seen.append(xbridge.asarray(x, dtype="nearest") is x)
        return x

    jax.jit(inside)(jax.numpy.ones(2))
    assert seen == [True]


def test_nearest__is_a_matter_of_the_device() -> None:
    """The nearest dtype depends on the device."""
    strict = pytest.importorskip("array_api_strict")
    if "no_x64" not in get_backend("array_api_strict").devices():
        pytest.skip("came with array-api-strict 2.6")
    here = strict.asarray([1.5, 2.0])
    for x, name in product((here, np.array([1.5, 2.0])), ("array_api_strict",)):
        for device, dtype in (("no_x64", "float32"), ("no_float64", "float32"), ("device1", "float64")):
            made = xbridge.to_backend(x, name, device=device, dtype="nearest")
            assert (xbridge.dtype_of(made), xbridge.device_of(made)) == (dtype, device)
        with pytest.raises(xbridge.DTypeError, match=r"try dtype='nearest'$"):
            xbridge.to_backend(x, name, device="no_x64")
        with pytest.raises(xbridge.ValueLossError):
            xbridge.to_backend(np.array([1e300]), name, device="no_x64", dtype="nearest")


@pytest.mark.usefixtures("own_registry")
def test_nearest__what_comes_from_dask_is_checked_when_it_is_computed(jax: Any) -> None:
    """What comes from Dask is checked when it is computed."""
    da = pytest.importorskip("dask.array")
    x = da.from_array(np.array([1.0, 2.0, 3.0]), chunks=2)
    assert xbridge.to_backend(x, "jax", dtype="nearest").tolist() == [1, 2, 3]
    assert xbridge.asarray(x, dtype="nearest") is x
    with pytest.raises(xbridge.ValueLossError):
        xbridge.to_backend(x * 1e300, "jax", dtype="nearest")
    toys("int64", "float32")
    made = xbridge.to_backend(x.astype("uint8"), "toylib", dtype="nearest")
    assert (type(made), made.data.tolist()) == (Toy, [1, 2, 3])
