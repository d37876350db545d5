"""array-api-strict, whose devices are there to be forgotten: what is shared, moved, cast and refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import xbridge
from xbridge._core.dtypes import DTYPES

strict = pytest.importorskip("array_api_strict")

from xbridge._registry.registry import get  # noqa: E402
from xbridge.backends import array_api_strict as backend  # noqa: E402 -- only where the library is

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge._core.protocol import Array, HostArray

NAME = "array_api_strict"
BASE = np.arange(24.0).reshape(4, 6)
NATIVE = [word for word in DTYPES if hasattr(strict, word)]
HERE = backend.devices()
ELSEWHERE = HERE[1:]
CPU = strict.Device("CPU_DEVICE")


def inside(x: Array) -> HostArray:
    """The memory of a strict array, wherever it claims to be."""
    memory: HostArray = x._array
    return memory


def at(device: str, values: object = (1.0, 2.0, 3.0), dtype: str = "float32") -> Array:
    """A strict array made by the library itself."""
    return strict.asarray(np.asarray(values, dtype), device=backend._DEVICES[xbridge.Device(device)])


# -- memory --------------------------------------------------------------------------------------


def guarded(a: HostArray) -> HostArray:
    """A view that is read-only, of memory that is not."""
    view = a.view()
    view.flags.writeable = False
    return view


LAYOUTS: dict[str, Callable[[], HostArray]] = {
    "C": BASE.copy,
    "transposed": lambda: BASE.copy().T,
    "reversed": lambda: BASE.copy()[::-1, ::-2],
    "0-d": lambda: np.array(1.5),
    "unaligned": lambda: np.frombuffer(bytearray(17), "f4", offset=1),
    "odd strides": lambda: np.zeros(4, "f4,i1")["f0"],
}
GUARDED: dict[str, Callable[[], HostArray]] = {
    "read-only": lambda: np.frombuffer(bytes(16)),
    "read-only view": lambda: guarded(BASE.copy()),
    "broadcast": lambda: np.broadcast_to(BASE[0], (4, 6)),
    "overlapping": lambda: as_strided(BASE.copy(), (3, 3), (8, 8)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_writable_host_memory_of_any_layout_is_shared_both_ways(layout: str) -> None:
    a = LAYOUTS[layout]()
    x = xbridge.to_backend(a, NAME)
    back = xbridge.to_numpy(x)
    assert inside(x).strides == back.strides == a.strides
    x[...] = strict.asarray(7.0, dtype=x.dtype)
    assert (a == 7.0).all()
    back[...] = 8.0
    assert (a == 8.0).all()
    assert (inside(x) == 8.0).all()


@pytest.mark.parametrize("layout", GUARDED)
def test_what_may_not_be_written_is_shared_and_read_only_for_good(layout: str) -> None:
    a = GUARDED[layout]()
    x = xbridge.to_backend(a, NAME)
    assert np.shares_memory(inside(x), a)
    with pytest.raises(ValueError, match="read-only"):
        x[...] = strict.asarray(7.0, dtype=x.dtype)
    with pytest.raises(ValueError, match="WRITEABLE"):
        inside(x).flags.writeable = True


@pytest.mark.parametrize("layout", GUARDED)
def test_it_is_shown_to_numpy_by_the_same_rule(layout: str) -> None:
    x = strict.asarray(GUARDED[layout](), copy=False)
    host = xbridge.to_numpy(x)
    assert np.shares_memory(host, inside(x))
    with pytest.raises(ValueError, match="WRITEABLE"):
        host.flags.writeable = True


def test_flags_and_shape_of_the_one_array_are_not_those_of_the_other() -> None:
    a = np.arange(3.0)
    x = xbridge.to_backend(a, NAME)
    host = xbridge.to_numpy(x)
    a.flags.writeable = False
    host.flags.writeable = False
    x[0] = 7.0
    assert a.tolist() == host.tolist() == [7.0, 1.0, 2.0]


@pytest.mark.parametrize("options", [{}, {"copy": False}])
def test_foreign_byte_order_is_copied_or_refused(options: dict[str, Any]) -> None:
    a = BASE.astype(">f8")
    if options:
        with pytest.raises(xbridge.CopyError, match="foreign order"):
            xbridge.to_backend(a, NAME, **options)
    else:
        x = xbridge.to_backend(a, NAME)
        assert not np.shares_memory(inside(x), a)
        assert inside(x).tobytes() == BASE.tobytes()


def test_a_copy_shares_no_memory_and_can_be_written() -> None:
    a = np.broadcast_to(BASE[0], (4, 6))
    for copied in (xbridge.to_backend(a, NAME, copy=True), xbridge.asarray(at("cpu"), copy=True)):
        assert inside(copied).flags.writeable
        assert not np.shares_memory(inside(copied), a)
    x = at("device1")
    copied = xbridge.to_backend(x, NAME, copy=True)
    assert copied.device == x.device
    assert not np.shares_memory(inside(copied), inside(x))


def test_shared_memory_is_seen_on_every_device_and_never_across_two() -> None:
    x = at("device1")
    assert xbridge.shares_memory(x, x[1:])
    assert not xbridge.shares_memory(x, x.to_device(CPU))


# -- dtypes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", NATIVE)
def test_every_dtype_of_the_standard_keeps_its_bits(dtype: str) -> None:
    bits = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 256, (7, 16), np.uint8)
    a = bits.view(dtype)
    x = xbridge.to_backend(a, NAME)
    assert xbridge.dtype_of(x) == dtype
    assert x.dtype == getattr(strict, dtype)
    assert inside(x).tobytes() == xbridge.to_numpy(x).tobytes() == bits.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "longdouble", "M8[s]", "U1"])
def test_no_other_dtype_comes_in(dtype: str) -> None:
    a = np.zeros(2, dtype)
    assert backend.fast_from_numpy(a) is None
    with pytest.raises(xbridge.DTypeError):
        xbridge.to_backend(a, NAME)


def test_a_half_comes_in_by_naming_a_wider_dtype() -> None:
    a = np.array([0.5, np.inf], "float16")
    with pytest.raises(xbridge.DTypeError, match=r"has no float16; try dtype='nearest', or dtype='float32'$"):
        xbridge.to_backend(a, NAME)
    assert xbridge.to_list(xbridge.to_backend(a, NAME, dtype="float32")) == [0.5, np.inf]


def test_a_cast_that_overflows_is_silent_and_numpys_own() -> None:
    a = np.array([np.nan, 1e300, -1.5])
    with np.errstate(all="ignore"):
        expected = a.astype("float32").tobytes(), a.astype("int8").tobytes()
    for x in (a, xbridge.to_backend(a, NAME), at("device1", a, "float64")):
        cast = [xbridge.to_backend(x, NAME, dtype=dtype) for dtype in ("float32", "int8")]
        assert tuple(inside(y).tobytes() for y in cast) == expected


def test_the_host_casts_as_the_library_does() -> None:
    for source, target in backend.host_casts:
        a = np.array([0.0, 1.0, 2.75, 100.0]).astype(source)
        there = xbridge.to_backend(strict.asarray(a), NAME, dtype=target)
        assert inside(xbridge.to_backend(a, NAME, dtype=target)).tobytes() == inside(there).tobytes()


@pytest.mark.parametrize("device", HERE[:2])
def test_a_complex_number_is_true_unless_both_its_parts_are_zero(device: str) -> None:
    a = np.array([0, -0.0, 1, 1j, complex(np.nan, 0)], "complex64")
    for x in (a, at(device, a, "complex64")):
        assert xbridge.to_list(xbridge.to_backend(x, NAME, dtype=bool)) == [False, False, True, True, True]


def test_its_dtype_objects_are_understood_and_numpys_are_not_taken_for_them() -> None:
    assert xbridge.to_numpy(np.ones(2), dtype=strict.float32).dtype == np.float32
    assert xbridge.dtype_of(xbridge.to_backend(at("cpu"), NAME, dtype=np.dtype("int8"))) == "int8"
    assert backend.dtype_name(np.dtype("float32")) is None
    assert backend.dtype_name("float32") is None


# -- devices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ELSEWHERE)
def test_a_device_is_reached_by_its_name_and_by_its_object(device: str) -> None:
    a = np.ones(2, "float32")
    word = backend._DEVICES[xbridge.Device(device)]
    for x in (xbridge.to_backend(a, NAME, device=device), xbridge.to_backend(a, NAME, device=word)):
        assert xbridge.device_of(x) == device
        assert x.device == strict.Device(device)
        assert not np.shares_memory(inside(x), a)
    assert backend.device_name(strict.Device(device)) == device
    assert backend.device_name(device) is None


@pytest.mark.parametrize("device", ELSEWHERE)
def test_what_comes_from_another_device_is_the_callers_own_and_writable(device: str) -> None:
    x = at(device)
    host = xbridge.to_numpy(x)
    host[0] = 7.0
    assert inside(x).tolist() == [1.0, 2.0, 3.0]
    there = xbridge.to_backend(x, NAME, device="cpu")
    there[0] = 7.0
    assert inside(x).tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(xbridge.CopyError, match=f"it moves from {device} to cpu"):
        xbridge.to_numpy(x, copy=False)


def test_no_conversion_uses_the_dlpack_that_calls_every_device_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise AssertionError

    for word in ("__dlpack__", "__dlpack_device__"):
        monkeypatch.setattr(type(at("cpu")), word, refuse)
    assert xbridge.to_numpy(at("device1")).tolist() == [1.0, 2.0, 3.0]
    assert xbridge.to_list(at("device1")) == [1.0, 2.0, 3.0]


def test_the_library_itself_refuses_to_show_the_host_what_was_not_moved() -> None:
    with pytest.raises(RuntimeError, match="device1"):
        backend.to_numpy(at("device1"))
    assert backend.fast_to_numpy(at("device1")) is None


def test_a_missing_device_is_refused_with_a_hint_that_works() -> None:
    pytest.importorskip("torch")
    with pytest.raises(xbridge.DeviceError, match=r"no device device1 here, .*try device='cpu'$"):
        xbridge.to_backend(at("device1"), "torch")
    assert xbridge.to_backend(at("device1"), "torch", device="cpu").tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("device", ["cuda:0", "device7", "device1:0"])
def test_a_device_that_it_has_not_is_answered_with_those_that_it_has(device: str) -> None:
    for x in (np.ones(2), at("cpu")):
        with pytest.raises(xbridge.DeviceError, match=r"cpu, device1, device2.*try device='cpu'$"):
            xbridge.to_backend(x, NAME, device=device)


def test_an_object_that_is_not_a_device_is_refused() -> None:
    with pytest.raises(xbridge.DeviceError, match=r"no library knows it as a device; try device='cpu'$"):
        xbridge.to_backend(at("cpu"), NAME, device=["device1"])


def test_another_device_stands_for_the_gpu() -> None:
    for x, device in ((np.ones(2), "device1"), (at("cpu"), "device1"), (at("device2"), "device2")):
        assert xbridge.device_of(xbridge.to_backend(x, NAME, device="gpu")) == device


@pytest.mark.parametrize("device", HERE)
def test_numbers_become_the_defaults_of_their_device(device: str) -> None:
    for number, kind in ((True, "bool"), (1, "int"), (1.5, "float"), (1j, "complex")):
        x = xbridge.asarray([number], backend=NAME, device=device)
        theirs = strict.asarray(number, device=x.device)
        assert xbridge.device_of(x) == device
        assert x.dtype == theirs.dtype
        assert backend.default_dtype(kind, xbridge.Device(device)) == xbridge.dtype_of(theirs)


@pytest.mark.skipif("no_x64" not in HERE, reason="came with array-api-strict 2.6")
def test_a_device_without_wide_dtypes_refuses_or_narrows_them() -> None:
    for x in (np.array([1.0, 2.0]), at("device1", [1.0, 2.0], "float64")):
        with pytest.raises(
            xbridge.DTypeError, match="its device no_x64 has no float64; try dtype='nearest', or"
        ):
            xbridge.to_backend(x, NAME, device="no_x64")
        narrow = xbridge.to_backend(x, NAME, device="no_x64", dtype="default")
        assert xbridge.dtype_of(narrow) == "float32"
        assert inside(narrow).tolist() == [1.0, 2.0]
    with pytest.raises(xbridge.ValueLossError):
        xbridge.to_backend(at("device1", [1 << 40], "int64"), NAME, device="no_x64", dtype="default")


@pytest.mark.skipif("no_float64" not in HERE, reason="came with array-api-strict 2.5")
def test_a_cast_comes_before_a_move_to_where_there_is_no_such_dtype() -> None:
    for source in (np.ones(2), at("cpu", [1, 1], "float64")):
        x = xbridge.to_backend(source, NAME, device="no_float64", dtype="complex64")
        assert inside(x).tolist() == [1.0, 1.0]


def test_an_older_standard_or_one_without_extras_changes_no_conversion() -> None:
    with strict.ArrayAPIStrictFlags(
        api_version="2022.12", boolean_indexing=False, data_dependent_shapes=False, enabled_extensions=()
    ):
        assert backend.devices() == HERE
        x = xbridge.asarray([at("device1"), at("device1")], dtype="int8")
        assert xbridge.device_of(x) == "device1"
        assert xbridge.to_list(x) == [[1, 2, 3], [1, 2, 3]]
        assert xbridge.to_backend(np.ones(2), NAME, device="device2", copy=True).device != CPU


# -- what users do with it -----------------------------------------------------------------------


def plus_one(x: Array) -> Array:
    """A function that forgets the device of its argument."""
    xp = xbridge.array_namespace(x)
    return x + xp.ones(x.shape, dtype=x.dtype)


def test_code_that_forgets_a_device_fails_on_a_cpu() -> None:
    assert xbridge.to_list(plus_one(at("cpu"))) == [2.0, 3.0, 4.0]
    with pytest.raises(ValueError, match="device"):
        plus_one(at("device1"))


def test_its_namespace_is_the_library() -> None:
    assert xbridge.array_namespace(at("device2")) is strict
    assert xbridge.backend_of(at("device2")) == NAME
    assert get(NAME).is_tracing() is get(NAME).is_grad_enabled() is False
    assert get(NAME).untraced(plus_one) is plus_one


def test_arrays_in_a_list_stay_on_their_device_and_are_not_mixed() -> None:
    x = at("device1")
    nested = xbridge.asarray([[x, x], [x, [4, 5, 6]]])
    assert nested.device == x.device
    assert inside(nested).tolist() == [[[1, 2, 3], [1, 2, 3]], [[1, 2, 3], [4, 5, 6]]]
    with pytest.raises(xbridge.DeviceError, match=r"align\(\*arrays\) first"):
        xbridge.asarray([x, at("cpu")])
    aligned = xbridge.align(x, np.ones(3), at("cpu"))
    assert {y.device for y in aligned} == {x.device}


def test_it_has_no_gradients() -> None:
    x = at("cpu")
    with pytest.raises(xbridge.GradientError, match="no gradients"):
        xbridge.asarray(x, requires_grad=True)
    with pytest.raises(xbridge.GradientError, match="the array API standard has no gradients"):
        get(NAME).require_grad(x)
    assert xbridge.asarray(x, grad="detach") is x
    assert get(NAME).detach(x) is get(NAME).materialize(x) is x
