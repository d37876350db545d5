"""array-api-strict, whose devices are there to be forgotten: what is shared, moved, cast and refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from inside import DTYPES
from numpy.lib.stride_tricks import as_strided

import xbridge

strict = pytest.importorskip("array_api_strict")

from xbridge._registry.registry import get  # noqa: E402
from xbridge.backends import array_api_strict as backend  # noqa: E402 -- only where the library is

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge.protocol import Array, HostArray

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
def test_to_backend__shares_writable_memory_of_any_layout(layout: str) -> None:
    """Writable host memory is shared in both directions, whatever its layout."""
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
def test_to_backend__shared_read_only_memory_stays_read_only(layout: str) -> None:
    """Memory that must not be written is shared, and can never be made writable again."""
    a = GUARDED[layout]()
    x = xbridge.to_backend(a, NAME)
    assert np.shares_memory(inside(x), a)
    with pytest.raises(ValueError, match="read-only"):
        x[...] = strict.asarray(7.0, dtype=x.dtype)
    with pytest.raises(ValueError, match="WRITEABLE"):
        inside(x).flags.writeable = True


@pytest.mark.parametrize("layout", GUARDED)
def test_to_numpy__shared_read_only_memory_stays_read_only(layout: str) -> None:
    """NumPy sees the same memory, and cannot make it writable either."""
    x = strict.asarray(GUARDED[layout](), copy=False)
    host = xbridge.to_numpy(x)
    assert np.shares_memory(host, inside(x))
    with pytest.raises(ValueError, match="WRITEABLE"):
        host.flags.writeable = True


def test_to_backend__flags_are_not_shared() -> None:
    """Arrays that share memory keep flags of their own."""
    a = np.arange(3.0)
    x = xbridge.to_backend(a, NAME)
    host = xbridge.to_numpy(x)
    a.flags.writeable = False
    host.flags.writeable = False
    x[0] = 7.0
    assert a.tolist() == host.tolist() == [7.0, 1.0, 2.0]


@pytest.mark.parametrize("options", [{}, {"copy": False}])
def test_to_backend__foreign_byte_order_is_copied_or_refused(options: dict[str, Any]) -> None:
    """A foreign byte order is copied, and refused with `copy=False`."""
    a = BASE.astype(">f8")
    if options:
        with pytest.raises(xbridge.CopyError, match="foreign order"):
            xbridge.to_backend(a, NAME, **options)
    else:
        x = xbridge.to_backend(a, NAME)
        assert not np.shares_memory(inside(x), a)
        assert inside(x).tobytes() == BASE.tobytes()


def test_to_backend__copy_is_writable_and_not_shared() -> None:
    """A copy can be written, shares no memory and stays on its device."""
    a = np.broadcast_to(BASE[0], (4, 6))
    for copied in (xbridge.to_backend(a, NAME, copy=True), xbridge.asarray(at("cpu"), copy=True)):
        assert inside(copied).flags.writeable
        assert not np.shares_memory(inside(copied), a)
    x = at("device1")
    copied = xbridge.to_backend(x, NAME, copy=True)
    assert copied.device == x.device
    assert not np.shares_memory(inside(copied), inside(x))


def test_shares_memory__is_false_across_devices() -> None:
    """Overlap is found on any device, but never between two devices."""
    x = at("device1")
    assert xbridge.shares_memory(x, x[1:])
    assert not xbridge.shares_memory(x, x.to_device(CPU))


# -- dtypes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", NATIVE)
def test_to_backend__keeps_the_bits_of_standard_dtypes(dtype: str) -> None:
    """Every dtype of the array API standard arrives with its bits unchanged."""
    bits = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 256, (7, 16), np.uint8)
    a = bits.view(dtype)
    x = xbridge.to_backend(a, NAME)
    assert xbridge.dtype_of(x) == dtype
    assert x.dtype == getattr(strict, dtype)
    assert inside(x).tobytes() == xbridge.to_numpy(x).tobytes() == bits.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "longdouble", "M8[s]", "U1"])
def test_to_backend__refuses_nonstandard_dtypes(dtype: str) -> None:
    """A dtype outside the standard is refused, and the fast path declines it."""
    a = np.zeros(2, dtype)
    assert backend.fast_from_numpy(a) is None
    with pytest.raises(xbridge.DTypeError):
        xbridge.to_backend(a, NAME)


def test_to_backend__float16_needs_a_wider_dtype() -> None:
    """The error for float16 suggests a wider dtype, and that dtype works."""
    a = np.array([0.5, np.inf], "float16")
    with pytest.raises(xbridge.DTypeError, match=r"has no float16; try dtype='nearest', or dtype='float32'$"):
        xbridge.to_backend(a, NAME)
    assert xbridge.to_list(xbridge.to_backend(a, NAME, dtype="float32")) == [0.5, np.inf]


def test_to_backend__overflowing_cast_is_silent() -> None:
    """A cast that overflows warns of nothing and gives the bits that NumPy gives."""
    a = np.array([np.nan, 1e300, -1.5])
    with np.errstate(all="ignore"):
        expected = a.astype("float32").tobytes(), a.astype("int8").tobytes()
    for x in (a, xbridge.to_backend(a, NAME), at("device1", a, "float64")):
        cast = [xbridge.to_backend(x, NAME, dtype=dtype) for dtype in ("float32", "int8")]
        assert tuple(inside(y).tobytes() for y in cast) == expected


def test_host_casts__match_the_library() -> None:
    """Every cast done on the host gives the bits that the library itself gives."""
    for source, target in backend.host_casts:
        a = np.array([0.0, 1.0, 2.75, 100.0]).astype(source)
        there = xbridge.to_backend(strict.asarray(a), NAME, dtype=target)
        assert inside(xbridge.to_backend(a, NAME, dtype=target)).tobytes() == inside(there).tobytes()


@pytest.mark.parametrize("device", HERE[:2])
def test_to_backend__complex_to_bool_compares_with_zero(device: str) -> None:
    """A complex number is true unless both its parts are zero."""
    a = np.array([0, -0.0, 1, 1j, complex(np.nan, 0)], "complex64")
    for x in (a, at(device, a, "complex64")):
        assert xbridge.to_list(xbridge.to_backend(x, NAME, dtype=bool)) == [False, False, True, True, True]


def test_dtype_name__knows_only_its_own_objects() -> None:
    """The library's dtype objects are understood, and NumPy's are not mistaken for them."""
    assert xbridge.to_numpy(np.ones(2), dtype=strict.float32).dtype == np.float32
    assert xbridge.dtype_of(xbridge.to_backend(at("cpu"), NAME, dtype=np.dtype("int8"))) == "int8"
    assert backend.dtype_name(np.dtype("float32")) is None
    assert backend.dtype_name("float32") is None


# -- devices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ELSEWHERE)
def test_to_backend__device_by_name_or_object(device: str) -> None:
    """A device can be given by name or as the library's own object."""
    a = np.ones(2, "float32")
    word = backend._DEVICES[xbridge.Device(device)]
    for x in (xbridge.to_backend(a, NAME, device=device), xbridge.to_backend(a, NAME, device=word)):
        assert xbridge.device_of(x) == device
        assert x.device == strict.Device(device)
        assert not np.shares_memory(inside(x), a)
    assert backend.device_name(strict.Device(device)) == device
    assert backend.device_name(device) is None


@pytest.mark.parametrize("device", ELSEWHERE)
def test_to_numpy__result_from_a_device_is_owned(device: str) -> None:
    """A result that was moved from another device is writable and independent of its source."""
    x = at(device)
    host = xbridge.to_numpy(x)
    host[0] = 7.0
    assert inside(x).tolist() == [1.0, 2.0, 3.0]
    there = xbridge.to_backend(x, NAME, device="cpu")
    there[0] = 7.0
    assert inside(x).tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(xbridge.CopyError, match=f"it moves from {device} to cpu"):
        xbridge.to_numpy(x, copy=False)


def test_to_numpy__avoids_dlpack(monkeypatch: pytest.MonkeyPatch) -> None:
    """No conversion uses DLPack, which reports every device as the CPU."""

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError

    for word in ("__dlpack__", "__dlpack_device__"):
        monkeypatch.setattr(type(at("cpu")), word, refuse)
    assert xbridge.to_numpy(at("device1")).tolist() == [1.0, 2.0, 3.0]
    assert xbridge.to_list(at("device1")) == [1.0, 2.0, 3.0]


def test_to_numpy__backend_function_refuses_device_memory() -> None:
    """The backend's own functions do not expose memory that was not moved to the host."""
    with pytest.raises(RuntimeError, match="device1"):
        backend.to_numpy(at("device1"))
    assert backend.fast_to_numpy(at("device1")) is None


def test_to_backend__missing_device_hint_works() -> None:
    """The error for a device that torch lacks suggests one that works."""
    pytest.importorskip("torch")
    with pytest.raises(xbridge.DeviceError, match=r"no device device1 here, .*try device='cpu'$"):
        xbridge.to_backend(at("device1"), "torch")
    assert xbridge.to_backend(at("device1"), "torch", device="cpu").tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("device", ["cuda:0", "device7", "device1:0"])
def test_to_backend__unknown_device_lists_known_ones(device: str) -> None:
    """The error for an unknown device lists the devices that there are."""
    for x in (np.ones(2), at("cpu")):
        with pytest.raises(xbridge.DeviceError, match=r"cpu, device1, device2.*try device='cpu'$"):
            xbridge.to_backend(x, NAME, device=device)


def test_to_backend__refuses_a_non_device_object() -> None:
    """An object that no library knows as a device is refused."""
    with pytest.raises(xbridge.DeviceError, match=r"no library knows it as a device; try device='cpu'$"):
        xbridge.to_backend(at("cpu"), NAME, device=["device1"])


def test_to_backend__gpu_means_a_device_other_than_the_cpu() -> None:
    """`device="gpu"` selects a device other than the CPU, or keeps the current one."""
    for x, device in ((np.ones(2), "device1"), (at("cpu"), "device1"), (at("device2"), "device2")):
        assert xbridge.device_of(xbridge.to_backend(x, NAME, device="gpu")) == device


@pytest.mark.parametrize("device", HERE)
def test_default_dtype__follows_the_device(device: str) -> None:
    """Python numbers get the default dtypes of their device."""
    for number, kind in ((True, "bool"), (1, "int"), (1.5, "float"), (1j, "complex")):
        x = xbridge.asarray([number], backend=NAME, device=device)
        theirs = strict.asarray(number, device=x.device)
        assert xbridge.device_of(x) == device
        assert x.dtype == theirs.dtype
        assert backend.default_dtype(kind, xbridge.Device(device)) == xbridge.dtype_of(theirs)


@pytest.mark.skipif("no_x64" not in HERE, reason="came with array-api-strict 2.6")
def test_to_backend__device_without_wide_dtypes() -> None:
    """On a device without 64-bit dtypes, they are refused or narrowed on request."""
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
def test_to_backend__casts_before_moving() -> None:
    """A dtype that the target device lacks is cast before the move."""
    for source in (np.ones(2), at("cpu", [1, 1], "float64")):
        x = xbridge.to_backend(source, NAME, device="no_float64", dtype="complex64")
        assert inside(x).tolist() == [1.0, 1.0]


def test_to_backend__ignores_strict_flags() -> None:
    """An older standard, or one without extensions, changes no conversion."""
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


def test_array_api_strict__code_that_forgets_the_device_fails() -> None:
    """Code that forgets the device of its argument fails even on a machine without a GPU."""
    assert xbridge.to_list(plus_one(at("cpu"))) == [2.0, 3.0, 4.0]
    with pytest.raises(ValueError, match="device"):
        plus_one(at("device1"))


def test_array_namespace__is_the_library() -> None:
    """The library is its own namespace, and it neither traces nor differentiates."""
    assert xbridge.array_namespace(at("device2")) is strict
    assert xbridge.backend_of(at("device2")) == NAME
    assert get(NAME).is_tracing() is get(NAME).is_grad_enabled() is False
    assert get(NAME).untraced(plus_one) is plus_one


def test_asarray__list_stays_on_its_device() -> None:
    """Arrays in a list stay on their device, and arrays of two devices are not mixed."""
    x = at("device1")
    nested = xbridge.asarray([[x, x], [x, [4, 5, 6]]])
    assert nested.device == x.device
    assert inside(nested).tolist() == [[[1, 2, 3], [1, 2, 3]], [[1, 2, 3], [4, 5, 6]]]
    with pytest.raises(xbridge.DeviceError, match=r"align\(\*arrays\) first"):
        xbridge.asarray([x, at("cpu")])
    aligned = xbridge.align(x, np.ones(3), at("cpu"))
    assert {y.device for y in aligned} == {x.device}


def test_asarray__has_no_gradients() -> None:
    """A request for gradients is refused; detaching changes nothing."""
    x = at("cpu")
    with pytest.raises(xbridge.GradientError, match="no gradients"):
        xbridge.asarray(x, requires_grad=True)
    with pytest.raises(xbridge.GradientError, match="the array API standard has no gradients"):
        get(NAME).require_grad(x)
    assert xbridge.asarray(x, grad="detach") is x
    assert get(NAME).detach(x) is get(NAME).materialize(x) is x
