"""JAX as a source and as a target: what is shared, what is copied, which dtypes there are and when."""

from __future__ import annotations

import threading
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import xbridge

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402 -- once JAX is there
from jax.experimental.layout import Format, Layout  # noqa: E402 -- likewise
from jax.sharding import SingleDeviceSharding  # noqa: E402 -- likewise

from xbridge.backends import jax as backend  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jax import Array

CPU = xbridge.Device("cpu")


@pytest.fixture
def wide() -> Iterator[None]:
    """64 bits are on, for this thread."""
    with jax.enable_x64(True):
        yield


# -- sharing -------------------------------------------------------------------------------------


def test_to_numpy__view_outlives_a_deleted_or_donated_array() -> None:
    """A view keeps its memory alive after JAX deletes or donates the array."""
    x, y = jnp.arange(1e5), jnp.arange(1e5)
    views = [xbridge.to_numpy(x), xbridge.to_numpy(y)]
    x.delete()
    jax.jit(lambda y: y * 0 - 1, donate_argnums=0)(y).block_until_ready()
    others = [jnp.full(100_000, 7.0) for _ in range(8)]
    for view in views:
        np.testing.assert_array_equal(view, np.arange(1e5, dtype="f4"))
    assert all((other == 7).all() for other in others)


# -- dtypes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_asarray__promotion_keeps_subnormal_numbers(wide: None, dtype: str) -> None:
    """A host array beside a wider JAX array keeps numbers that JAX's own cast flushes to zero."""
    least = np.finfo(dtype).smallest_subnormal
    made = xbridge.asarray([jnp.ones(2), np.array([least, 1], dtype)])
    assert made.dtype == np.result_type(dtype, "float64")
    assert np.asarray(made)[1].tolist() == [float(least), 1]


def test_to_backend__x64_mode_is_per_thread(wide: None) -> None:
    """x64 mode is read in the thread that converts."""
    refused = []

    def elsewhere() -> None:
        try:
            xbridge.to_backend(np.ones(2), "jax")
        except xbridge.DTypeError as error:
            refused.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(refused) == 1
    assert xbridge.to_backend(np.ones(2), "jax").dtype == "float64"


@pytest.mark.parametrize("copy", [None, True])
@pytest.mark.parametrize("library", ["numpy", "jax"])
def test_asarray__wide_dtype_of_a_cached_call_is_refused_without_x64(library: str, copy: bool | None) -> None:
    """A call that was cached with x64 mode on is not repeated with it off, where JAX would truncate."""
    x = xbridge.to_backend(np.ones(3, "f4"), library)
    with jax.enable_x64(True):
        for _ in range(2):
            assert xbridge.asarray(x, backend="jax", dtype="float64", copy=copy).dtype == "float64"
    with pytest.raises(xbridge.DTypeError):
        xbridge.asarray(x, backend="jax", dtype="float64", copy=copy)


def test_asarray__wide_array_stays_wide_without_x64() -> None:
    """An array made with x64 mode on keeps its 64 bits after it is turned off."""
    with jax.enable_x64(True):
        x = xbridge.to_backend(np.array([2**40 + 1, 2**62]), "jax")
    for y in (x, xbridge.asarray(x, copy=True), xbridge.asarray(x, device="cpu"), xbridge.asarray([x])[0]):
        assert (xbridge.dtype_of(y), xbridge.to_list(y)) == ("int64", [2**40 + 1, 2**62])
    assert xbridge.asarray(x, dtype="float32").tolist() == [2.0**40, 2.0**62]
    with pytest.raises(xbridge.ValueLossError):
        xbridge.asarray(x, dtype="default")
    with jax.enable_x64(True):
        small = xbridge.to_backend(np.array([1, 2]), "jax")
    assert xbridge.asarray(small, dtype="default").dtype == "int32"


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64", "complex128"])
def test_to_device__keeps_64_bits_without_x64(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A move between platforms keeps 64 bits where JAX alone would narrow them."""
    values = np.array([2**40 + 1, 2**62]).astype(dtype)
    put = jax.device_put

    def narrowing(x: Any, *args: Any, **options: Any) -> Any:
        """Move as JAX does between a GPU and the host, and make 32 bits of 64."""
        if not jax.config.jax_enable_x64:
            x = put(x, *args, **options).astype(backend._WITHOUT_X64[str(x.dtype)])
        return put(x, *args, **options)

    with jax.enable_x64(True):
        x = xbridge.to_backend(values, "jax")
        columns = Format(Layout((1, 0)), SingleDeviceSharding(jax.local_devices(backend="cpu")[0]))
        y = put(xbridge.to_backend(values.reshape(2, 1), "jax"), columns)
    monkeypatch.setattr(jax, "device_put", narrowing)
    monkeypatch.setattr(backend, "_device_put", None)
    for moved in (
        backend.to_device(x, CPU),
        backend.from_numpy(values),
        backend.materialize(x),
        backend.to_device(y, CPU).reshape(2),
    ):
        assert (moved.dtype, xbridge.to_numpy(moved).tobytes()) == (dtype, values.tobytes())


# -- what must not leave, and what has no gradient -----------------------------------------------


def test_to_numpy__integers_of_one_bit_do_not_become_bools() -> None:
    """JAX exports int1 as bool; a conversion refuses it, with a hint that gives the integers."""
    try:
        x = jnp.array([0, 1, 1]).astype("int1")
    except TypeError:
        pytest.skip("this ml_dtypes has no int1")
    for _ in range(2):
        with pytest.raises(xbridge.DTypeError, match=r"int1 has no canonical name; try x.astype\('int8'\)"):
            xbridge.to_numpy(x)
        assert xbridge.to_numpy(jnp.array([True])).tolist() == [True]
    assert abs(xbridge.to_numpy(x.astype("int8"))).tolist() == [0, 1, 1]


def deleted() -> Array:
    x = jnp.ones(2)
    x.delete()
    return x


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: jax.random.key(0), r"key<fry> is not a numeric dtype; try jax.random.key_data\(x\)"),
        (deleted, r"its memory was deleted or donated"),
    ],
)
def test_to_numpy__refuses_arrays_without_values(make: Callable[[], Array], reason: str) -> None:
    """Arrays with no values in memory pass within JAX and are refused elsewhere."""
    x = make()
    assert xbridge.asarray(x) is x
    assert xbridge.device_of(x) == "cpu"
    assert xbridge.backend_of(x) == "jax"
    assert backend.fast_to_numpy(x) is None
    for call in (
        xbridge.to_numpy,
        lambda x: xbridge.to_backend(x, "torch"),
        lambda x: xbridge.shares_memory(x, x),
    ):
        with pytest.raises(xbridge.UnsupportedArrayError, match=reason):
            call(x)


@pytest.mark.parametrize("backend", [None, "jax", "numpy"])
def test_asarray__refuses_deleted_arrays_in_lists(backend: str | None) -> None:
    """A list with an array that was deleted is refused with the reason, by any library that stacks it."""
    for xs in ([jax.numpy.ones(2), deleted()], [deleted(), deleted()]):
        with pytest.raises(xbridge.UnsupportedArrayError, match=r"its memory was deleted or donated"):
            xbridge.asarray(xs, backend=backend)


# -- lists, names --------------------------------------------------------------------------------


def test_asarray__default_narrows_a_wide_list() -> None:
    """A list whose common dtype has 64 bits is narrowed on request, if no value is lost."""
    wide = [np.float64(0.1), np.int64(2**24), np.complex128(2j)]
    for other, dtype in zip(wide, ("float32", "float32", "complex64"), strict=True):
        pair = [jnp.ones((), "float32"), other]
        with pytest.raises(xbridge.DTypeError, match=f"try dtype='{dtype}'"):
            xbridge.asarray(pair, backend="jax")
        for asked in ("default", "nearest"):
            x = xbridge.asarray(pair, backend="jax", dtype=asked)
            assert x.dtype == dtype
            assert x.tolist() == [1, np.asarray(other).astype(dtype).item()]
    for lost in (np.float64(1e300), np.int64(2**24 + 1)):
        with pytest.raises(xbridge.ValueLossError, match="does not fit float32"):
            xbridge.asarray([jnp.ones((), "float32"), lost], dtype="default")
        with pytest.raises(xbridge.ValueLossError, match="does not fit float32"):
            xbridge.asarray([jnp.ones((), "float32"), lost], dtype="nearest")
    assert xbridge.asarray([jnp.ones((), bool), 2], dtype="default").dtype == "int32"
    with pytest.raises(xbridge.DTypeError, match="longdouble"):
        xbridge.asarray([jnp.ones(()), np.longdouble(1)], dtype="default")


# -- lists ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "dtypes"),
    [
        ((), ("int32", "float32")),
        ((2,), ("int32", "float32")),
        ((), ("bfloat16", "float16")),
        ((), ("int8", "float16")),
        ((), ("uint8", "int8")),
        ((), ("bool", "complex64", "int32")),
    ],
)
def test_asarray__promotes_as_jax_does(shape: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
    """Arrays of JAX in a list get the dtype and the bits of `jnp.stack`."""
    x = [jnp.full(shape, value, dtype) for value, dtype in enumerate(dtypes, 1)]
    expected = jnp.stack(x)
    for made in (xbridge.asarray(x), jax.jit(lambda: xbridge.asarray(x))()):
        assert made.dtype == expected.dtype
        assert np.asarray(made).tobytes() == np.asarray(expected).tobytes()


def test_asarray__promotes_as_jax_does_with_x64(wide: None) -> None:
    """With x64 mode on, a list is promoted to 64 bits unless that loses a value."""
    assert xbridge.asarray([jnp.int32(1), 3.5]).dtype == jnp.result_type(jnp.int32, 3.5) == "float64"
    assert xbridge.asarray([jnp.int64(2**53), jnp.float64(0.5)]).tolist() == [2.0**53, 0.5]
    with pytest.raises(xbridge.ValueLossError, match="does not fit"):
        xbridge.asarray([jnp.int64(2**53 + 1), jnp.float64(0.5)])


def test_asarray__refuses_a_promotion_that_rounds() -> None:
    """An integer that JAX would round is refused, and one that fits is not."""
    for x in (
        [jnp.int32(2**24 + 1), 0.5],
        [jnp.int32(1), 2**24 + 1, 0.5],
        [jnp.arange(258), jnp.ones(258, "bfloat16")],
    ):
        with pytest.raises(xbridge.ValueLossError, match="; try "):
            xbridge.asarray(x)
    assert xbridge.asarray([jnp.int32(2**24), 0.5]).tolist() == [2**24, 0.5]


def test_asarray__falls_back_to_numpy_promotion() -> None:
    """A pair for which JAX has no rule is promoted as NumPy promotes it."""
    pair = [jnp.ones(2, "float8_e5m2"), jnp.ones(2)]
    with pytest.raises(ValueError, match="no available implicit dtype promotion path"):
        jnp.result_type(*pair)
    assert xbridge.asarray(pair).dtype == "float32"
    assert xbridge.asarray([jnp.ones(2, "int4"), jnp.ones(2)]).dtype == "float32"


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [
        *product([2**40, [1, 2**40], [[-(2**31) - 1]]], [None, "nearest", "default", "int32"]),
        *product([[np.int64(1), 2**40], [[np.int64(1), 2**31]]], ["nearest", "default", "int32"]),
    ],
)
def test_asarray__refuses_too_large_python_integers(numbers: Any, dtype: Any) -> None:
    """A Python integer that fits no dtype of JAX is refused, with a hint that helps."""
    with pytest.raises(xbridge.ValueLossError, match="x64 mode is off; try jax"):
        xbridge.asarray(numbers, backend="jax", dtype=dtype)


@pytest.mark.parametrize("other", [2.0, np.float32(2), jnp.float32(2), 7, True], ids=type)
@pytest.mark.parametrize(
    "given", [("float64", 1e300), ("int64", 2**40), ("uint64", 2**63), ("complex128", 1e300j)], ids=str
)
@pytest.mark.parametrize("turn", [1, -1])
def test_promote__wide_array_in_a_list_stays_wide(given: tuple[str, complex], other: Any, turn: int) -> None:
    """A value that 32 bits cannot hold is kept or refused, never rounded."""
    dtype, value = given
    with jax.enable_x64(True):
        x = jnp.asarray(value, dtype)
    choices: tuple[dict[str, Any], ...] = (
        {},
        {"dtype": "nearest"},
        {"dtype": "default"},
        {"backend": "numpy"},
    )
    for options in (*choices, *choices):
        try:
            made = np.asarray(xbridge.asarray([x, other][::turn], **options)).tolist()
        except (xbridge.DTypeError, xbridge.ValueLossError) as error:
            made = str(error)
        assert isinstance(made, str) or value in made
    assert xbridge.asarray([jnp.float32(1), other]).dtype == jnp.float32
