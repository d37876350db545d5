"""The options of the verbs, NumPy only: what each may be, and how `like` and `align` choose."""

from __future__ import annotations

import copy
import ctypes
import inspect
import pickle
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import array_api_compat.numpy
import numpy as np
import pytest
from inside import get_backend
from toylib import Toy, make_backend

import xbridge
import xbridge.tree
from xbridge.backends import INDEX
from xbridge.backends import numpy as backend

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("own_registry")


@pytest.mark.parametrize("copy", [0, 1, "yes", np.True_])
def test_to_numpy__copy_must_be_bool_or_none(copy: object) -> None:
    """Values that merely resemble a bool are rejected for `copy`."""
    with pytest.raises(xbridge.OptionError, match=r"try copy=(None|True|False)$"):
        xbridge.to_numpy(np.ones(2), copy=copy)  # type: ignore[arg-type] # that is the mistake


@pytest.mark.parametrize(
    ("grad", "meant"), [("drop", "detach"), (True, "keep"), (False, "detach"), (0, "detach"), ([], "detach")]
)
def test_to_numpy__grad_must_be_keep_detach_or_none(grad: object, meant: str) -> None:
    """Any other value of `grad` is rejected, and the hint says which was probably meant."""
    with pytest.raises(xbridge.OptionError, match=f"try grad='{meant}'$"):
        xbridge.to_numpy(np.ones(2), grad=grad)  # type: ignore[arg-type] # that is the mistake


@pytest.mark.parametrize("writable", [0, 1, "yes", np.True_])
def test_to_numpy__writable_must_be_bool(writable: object) -> None:
    """Any value of `writable` other than None, True and False is rejected."""
    with pytest.raises(xbridge.OptionError, match=r"try writable=(True|False)$"):
        xbridge.to_numpy(np.ones(2), writable=writable)  # type: ignore[arg-type] # that is the mistake


@pytest.mark.parametrize("options", [{}, {"dtype": "float64"}, {"grad": "detach"}])
def test_to_numpy__writable_copies_read_only_arrays(options: Any) -> None:
    """With `writable=True` a writable array is returned as is, and a read-only one is copied."""
    x, fixed = np.arange(6.0), np.arange(6.0)
    fixed.flags.writeable = False
    for _ in range(2):  # the second call may be learned from the first
        assert xbridge.to_numpy(x, writable=True, **options) is x
        own = xbridge.to_numpy(fixed, writable=True, **options)
        assert not np.shares_memory(own, fixed)
        own[0] = 7.0
    assert fixed[0] == 0.0


@pytest.mark.parametrize("options", [{}, {"copy": True}, {"dtype": "float32"}, {"copy": False}])
def test_to_numpy__writable_false_is_read_only(options: Any) -> None:
    """The result is read-only, of shared memory or new, and the caller's own array stays writable."""
    for x in (
        np.arange(6.0),
        np.ones((1, 1)).view(np.matrix),
        np.arange(6.0)[::-2],
        np.arange(6.0, dtype=">f8"),
    ):
        for _ in range(3):  # the second call may be learned from the first
            plan = xbridge.explain(x, "numpy", writable=False, **options)
            if plan.error:
                continue
            y = xbridge.to_numpy(x, writable=False, **options)
            assert (y.flags.writeable, plan.writable) == (False, False)
            assert xbridge.shares_memory(x, y) is plan.shares_memory
            assert (y == xbridge.to_numpy(x, **options)).all()
            with pytest.raises(ValueError, match="WRITEABLE"):
                y.flags.writeable = True
            assert type(y) is type(x)
            assert x.flags.writeable


def test_to_numpy__writable_false_of_python_objects_is_a_view() -> None:
    """NumPy alone may hold Python objects, so their view is made by NumPy's own flag."""
    x = np.array([None, "a"])
    y = xbridge.to_numpy(x, writable=False)
    assert (y.tolist(), y.flags.writeable, x.flags.writeable) == ([None, "a"], False, True)


def test_to_numpy__writable_without_copy_refuses_read_only() -> None:
    """`writable=True, copy=False` raises for a read-only array."""
    fixed = np.broadcast_to(1.0, 3)
    with pytest.raises(xbridge.CopyError, match="writable=True") as caught:
        xbridge.to_numpy(fixed, writable=True, copy=False)
    assert caught.value.hint == "copy=None"
    x = np.ones(2)
    assert xbridge.to_numpy(x, writable=True, copy=False) is x


def test_explain__shows_the_copy_for_writable(own_registry: None) -> None:
    """A plan with `writable=True` shows the copy and says why it is made."""
    xbridge.register_backend("toylib", make_backend())
    x, fixed = np.arange(6.0), np.broadcast_to(1.0, 3)
    assert xbridge.explain(x, "numpy", writable=True).shares_memory
    plan = xbridge.explain(fixed, "numpy", writable=True)
    assert (plan.writable, [step.nbytes for step in plan.steps]) == (True, [24])
    assert "writable=True, and a shared array would be read-only" in str(plan)
    plan = xbridge.explain(fixed, "numpy", writable=True, copy=False)
    assert isinstance(plan.error, xbridge.CopyError)
    with pytest.raises(xbridge.OptionError, match=r"for toylib: only to_numpy has writable"):
        xbridge.explain(x, "toylib", writable=True)
    with pytest.raises(xbridge.OptionError, match="it is None, True or False"):
        xbridge.explain(x, "numpy", writable=1)  # type: ignore[call-overload] # the mistake


@pytest.mark.parametrize("requires_grad", ["yes", 1, np.False_])
def test_asarray__requires_grad_must_be_bool_or_none(requires_grad: object) -> None:
    """Values that merely resemble a bool are rejected for `requires_grad`."""
    with pytest.raises(xbridge.OptionError, match=r"try requires_grad=(True|False)$"):
        xbridge.asarray(np.ones(2), requires_grad=requires_grad)  # type: ignore[call-overload] # likewise


def test_asarray__requires_grad_contradicts_grad_keep() -> None:
    """`requires_grad=False` and `grad="keep"` cannot be combined."""
    with pytest.raises(xbridge.OptionError, match="contradict"):
        xbridge.asarray(np.ones(2), grad="keep", requires_grad=False)
    with pytest.raises(xbridge.OptionError, match=r"take grad='cut'.* try grad='detach'"):
        xbridge.asarray(np.ones(2), grad="cut", requires_grad=False)  # type: ignore[call-overload]


def test_asarray__numpy_refuses_requires_grad() -> None:
    """NumPy arrays cannot require gradients."""
    with pytest.raises(xbridge.GradientError, match="NumPy does not differentiate"):
        xbridge.asarray(np.ones(2), requires_grad=True)
    with pytest.raises(xbridge.GradientError, match="NumPy does not differentiate"):
        get_backend("numpy").require_grad(np.ones(2))


@pytest.mark.parametrize(
    "dtype", ["float32", np.float32, np.dtype("float32"), np.dtype("<f4"), np.dtype(">f4")]
)
def test_to_numpy__accepts_dtype_objects(dtype: object) -> None:
    """A dtype is a name or any object NumPy accepts for it; the result is in native byte order."""
    assert xbridge.to_numpy(np.ones(2), dtype=dtype).dtype.str == np.dtype("f4").str


@pytest.mark.parametrize(("dtype", "expected"), [(bool, "?"), (int, "i8"), (float, "f8"), (complex, "c16")])
def test_to_numpy__python_types_mean_what_they_mean_in_numpy(dtype: type, expected: str) -> None:
    """`bool`, `int`, `float` and `complex` are the dtypes NumPy takes them for."""
    assert xbridge.to_numpy(np.ones(2, "f4"), dtype=dtype).dtype == np.dtype(expected)


@pytest.mark.parametrize("dtype", ["double", ">f4"])
def test_to_numpy__dtype_alias_suggests_the_name(dtype: object) -> None:
    """A NumPy alias such as "double" is rejected with the name to use instead."""
    with pytest.raises(xbridge.DTypeError, match=r"try dtype='\w+'"):
        xbridge.to_numpy(np.ones(2), dtype=dtype)


@pytest.mark.parametrize("dtype", [3, [], list, object(), "f16", "int128", "zzz"])
def test_to_numpy__refuses_unknown_dtypes(dtype: object) -> None:
    """Anything else is rejected as a dtype with the list of names."""
    with pytest.raises(xbridge.DTypeError, match=r"; try one of bool, int8, .*, complex128$"):
        xbridge.to_numpy(np.ones(2), dtype=dtype)


@pytest.mark.parametrize("device", ["", ":0", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "cuda:\u00b2"])
def test_to_backend__device_must_be_kind_or_kind_index(device: str) -> None:
    """A malformed device string is rejected with the expected format."""
    with pytest.raises(xbridge.DeviceError, match="kind:index"):
        xbridge.to_backend(np.ones(2), "numpy", device=device)


@pytest.mark.parametrize("device", [True, 0.0, object(), np.ones(2)])
def test_to_backend__refuses_unknown_device_objects(device: object) -> None:
    """An object that no library knows as a device is rejected."""
    with pytest.raises(xbridge.DeviceError, match=r"no library knows it as a device|it is an array"):
        xbridge.to_backend(np.ones(2), "numpy", device=device)


@pytest.mark.parametrize("device", ["cuda", "gpu", "cpu:1", "meta"])
def test_to_backend__numpy_supports_only_cpu(device: str) -> None:
    """NumPy arrays can only be on "cpu"."""
    with pytest.raises(xbridge.DeviceError, match="device='cpu'"):
        xbridge.to_backend(np.ones(2), "numpy", device=device)


def test_device__has_kind_and_index() -> None:
    """A device is a string with the attributes `kind` and `index`."""
    device = xbridge.Device("cuda:1")
    assert (device, device.kind, device.index) == ("cuda:1", "cuda", 1)
    assert (xbridge.Device("cpu:0"), xbridge.Device("device1").index) == ("cpu", None)
    assert {device: 1} == {"cuda:1": 1}


def test_device__equals_its_name() -> None:
    """A device equals, and hashes like, its name and nothing else."""
    device, again, other = map(xbridge.Device, ("cuda:1", "cuda:1", "cuda:0"))
    same = [device == again, device == "cuda:1", "cuda:1" == device, not device != "cuda:1"]  # noqa: SIM202, SIM300
    apart = [device != other, device != "cuda:0", "cuda:0" != device, device != 1, device is not again]  # noqa: SIM300
    assert all(same)
    assert all(apart)
    assert {device, again, "cuda:1"} == {"cuda:1"}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_device__pickle_and_deepcopy_round_trip(protocol: int) -> None:
    """Pickling and deep copies keep the type and the parts of a device."""
    for name in ("cuda:1", "cpu"):
        device = xbridge.Device(name)
        for again in (pickle.loads(pickle.dumps(device, protocol)), copy.deepcopy(device)):
            assert type(again) is xbridge.Device
            assert (str(again), again.kind, again.index) == (name, device.kind, device.index)


def test_asarray__returns_unchanged_arrays_as_is() -> None:
    """An array that needs no conversion is returned as the same object."""
    for a in (np.ones(2), np.ones(2, ">f4"), np.ones(2)[::-1], np.array("2020", "M8[D]"), np.array([None])):
        assert xbridge.to_numpy(a) is a
        assert xbridge.asarray(a) is a
        assert xbridge.to_backend(a, "numpy", device="cpu", copy=False, grad="keep") is a


def test_to_numpy__copy_keeps_layout_and_byte_order() -> None:
    """`copy=True` within NumPy keeps strides and byte order."""
    a = np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3))
    b = xbridge.to_numpy(a, copy=True)
    assert (b.dtype, b.strides, b.tolist()) == (a.dtype, a.strides, a.tolist())
    assert not np.shares_memory(a, b)


def test_to_numpy__explicit_dtype_has_native_byte_order() -> None:
    """Naming the dtype converts foreign byte order, which takes a copy."""
    a = np.arange(3, dtype=">i4")
    b = xbridge.to_numpy(a, dtype="int32")
    assert b.dtype == np.dtype("i4")
    assert b.tolist() == [0, 1, 2]
    with pytest.raises(xbridge.CopyError, match="not in the order of int32"):
        xbridge.to_numpy(a, dtype="int32", copy=False)


@pytest.mark.parametrize("length", [0, 1, 3])
def test_to_numpy__copy_false_refuses_casts_of_any_length(length: int) -> None:
    """`copy=False` refuses a cast even for empty arrays."""
    a = np.ones(length)
    for dtype in ("float32", "int8", "complex64"):
        with pytest.raises(xbridge.CopyError, match=f"float64 becomes {dtype}; try copy=None"):
            xbridge.to_numpy(a, dtype=dtype, copy=False)
    with pytest.raises(xbridge.CopyError, match="not in the order of float64"):
        xbridge.to_numpy(a.astype(">f8"), dtype="float64", copy=False)
    for same in (None, "float64", "default", "nearest"):
        assert xbridge.to_numpy(a, copy=False, dtype=same) is a


def test_to_numpy__casts_like_astype() -> None:
    """A cast within NumPy gives the values of `astype`, without an intermediate dtype."""
    once = np.array([1 + 2**-11 + 2**-40, 2**14 - 2**-20, 1 / 3])  # by way of float32 some are other numbers
    for dtype in ("float16", "int64", "complex64"):
        assert xbridge.to_numpy(once, dtype=dtype).tolist() == once.astype(dtype).tolist()
    days = np.array(["2020-01-01"], "M8[D]")
    assert xbridge.to_numpy(days, dtype="int64").tolist() == days.astype("i8").tolist()
    with pytest.raises(xbridge.DTypeError, match="in numpy itself"):
        xbridge.to_numpy(np.array(["x"]), dtype="float64")


def test_to_numpy__refuses_to_drop_imaginary_parts() -> None:
    """A cast from complex to real raises and suggests `x.real`."""
    with pytest.raises(xbridge.DTypeError, match=r"try x\.real"):
        xbridge.to_numpy(np.ones(2, "c16"), dtype="float64")
    assert xbridge.to_numpy(np.array([0j, 2j]), dtype="bool").tolist() == [False, True]


def test_to_numpy__default_dtype_changes_nothing() -> None:
    """`dtype="default"` never narrows a NumPy array."""
    for dtype in ("f8", "f2", "i8", "u8", "c16", "?", "M8[D]"):
        a = np.zeros(2, dtype)
        assert xbridge.to_numpy(a, dtype="default") is a


def test_asarray__backend_overrides_like() -> None:
    """`like` sets the backend unless `backend` is given."""
    xbridge.register_backend("toylib", make_backend())
    toy = xbridge.asarray([1.0, 2.0], like=Toy(np.ones(1, "f4")))
    assert isinstance(toy, Toy)
    assert toy.data.dtype == "f8"
    assert isinstance(xbridge.asarray(toy, like=toy, backend="numpy"), np.ndarray)
    assert isinstance(xbridge.asarray(np.ones(2), like=np.float32(1)), np.ndarray)


def test_align__precedence_of_backend_like_and_first() -> None:
    """`align` uses `backend`, then `like`, then the first array."""
    xbridge.register_backend("toylib", make_backend())
    a, toy = np.ones(2), Toy(np.ones(2))
    assert [type(x) for x in xbridge.align(2, a, toy, 1j)] == [int, np.ndarray, np.ndarray, complex]
    assert [type(x) for x in xbridge.align(toy, a)] == [Toy, Toy]
    assert [type(x) for x in xbridge.align(a, a, like=toy)] == [Toy, Toy]
    assert [type(x) for x in xbridge.align(a, toy, like=toy, backend="numpy")] == [np.ndarray, np.ndarray]
    assert xbridge.align() == ()
    assert xbridge.align(True, 2.5) == (True, 2.5)
    assert [type(x) for x in xbridge.align([1, 2], toy, 3, a)] == [Toy, Toy, int, Toy]
    with pytest.raises(xbridge.DeviceError, match="put an array of numpy on 'cuda'"):
        xbridge.align(a, device="cuda")


def test_align__list_subclass_can_be_an_array() -> None:
    """A registered array type that subclasses list is treated as an array."""

    class Listed(list[float]):
        """An array type of a library that builds on lists."""

    listed = make_backend(
        array_types=(Listed,),
        array_info=lambda x: backend.array_info(np.array(x)),
        unsupported=lambda x, *, leaving: None,
        memory_layout=lambda x: backend.memory_layout(np.array(x)),
        to_numpy=np.array,
        from_numpy=lambda x: Listed(x.tolist()),
    )
    xbridge.register_backend("toylib", listed, roots=(__name__.partition(".")[0],))
    assert [type(x) for x in xbridge.align(Listed([1.0]), np.ones(2))] == [Listed, Listed]
    assert type(xbridge.align_back(Listed([1.0]), np.ones(2))[1](np.ones(1))) is Listed


def test_array_namespace__requires_one_backend() -> None:
    """Arrays of different backends have no common namespace."""
    xbridge.register_backend("toylib", make_backend())
    assert xbridge.array_namespace(1.0, np.ones(2), np.float32(2)) is array_api_compat.numpy
    with pytest.raises(xbridge.UnsupportedArrayError, match="align"):
        xbridge.array_namespace(np.ones(2), Toy(np.ones(2)))
    with pytest.raises(xbridge.UnsupportedArrayError, match="no argument is an array"):
        xbridge.array_namespace(1, 2.0)
    with pytest.raises(xbridge.UnsupportedArrayError, match="toylib has no array API namespace"):
        xbridge.array_namespace(Toy(np.ones(2)))


def test_array_namespace__ignores_none_and_refuses_masked_arrays() -> None:
    """None is skipped, and a masked array is rejected because its mask would be lost."""
    assert xbridge.array_namespace(None, np.ones(2), None) is array_api_compat.numpy
    with pytest.raises(xbridge.UnsupportedArrayError, match="no argument is an array"):
        xbridge.array_namespace(None)
    with pytest.raises(xbridge.UnsupportedArrayError, match="its mask would be lost") as caught:
        xbridge.array_namespace(np.ones(2), np.ma.masked_array([1.0, 2.0], mask=[True, False]))
    assert caught.value.hint == "x.filled(value)"


@pytest.mark.parametrize("name", INDEX)
def test_native_device__is_accepted_by_the_namespace(name: str) -> None:
    """Functions of the namespace accept the native device of an array."""
    if not xbridge.is_available(name):
        pytest.skip(f"{name} is not installed")
    for device in get_backend(name).devices():
        x = xbridge.asarray([1.0], backend=name, device=device)
        made = xbridge.array_namespace(x).zeros((2,), device=xbridge.native_device(x))
        assert (xbridge.backend_of(made), xbridge.device_of(made)) == (name, device)


def test_native_device__requires_an_array() -> None:
    """Objects that only have a `device` attribute are rejected."""
    with pytest.raises(xbridge.UnsupportedArrayError, match="it is not an array of a known library"):
        xbridge.native_device(SimpleNamespace(device="cpu"))


def test_backend_of__accepts_anything_a_backend_owns() -> None:
    """Queries also answer for masked arrays, scalars and arrays of strings."""
    masked = np.ma.masked_array([1.0, 2.0], mask=[True, False])
    assert [ask(masked) for ask in (xbridge.backend_of, xbridge.device_of, xbridge.dtype_of)] == [
        "numpy",
        "cpu",
        "float64",
    ]
    assert xbridge.dtype_of(np.array("x")) == "<U1"
    assert xbridge.dtype_of(np.float32(1)) == "float32"
    assert xbridge.dtype_of(np.zeros(2, np.longdouble)) == "longdouble"
    for ask in (xbridge.backend_of, xbridge.device_of, xbridge.dtype_of):
        with pytest.raises(xbridge.UnsupportedArrayError, match=r"try asarray\(x\)"):
            ask([1, 2])


def test_to_list__reads_foreign_byte_order() -> None:
    """Numbers are right in any byte order and dtype."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in ("int16", "complex64", ml_dtypes.bfloat16):
        native = np.array([1, 2], dtype)
        assert xbridge.to_list(native.byteswap().view(native.dtype.newbyteorder())) == [1, 2]


def test_to_list__returns_python_numbers() -> None:
    """`to_list` returns Python numbers and raises for dtypes that have no such numbers."""
    assert xbridge.to_list(np.array([[1, 2]], ">i2")) == [[1, 2]]
    assert xbridge.to_list(np.float32(0.5)) == 0.5
    assert xbridge.to_list(memoryview(b"ab")) == [97, 98]
    assert type(xbridge.to_list(np.array(True))) is bool
    for a in (np.ones(2, np.longdouble), np.array(["x"]), np.array([None]), np.array("2020", "M8[D]")):
        with pytest.raises(xbridge.DTypeError):
            xbridge.to_list(a)


def test_shares_memory__is_exact() -> None:
    """`shares_memory` is exact where `np.may_share_memory` only compares bounds."""
    a = np.arange(24)
    assert not xbridge.shares_memory(a[::2], a[1::2])
    assert np.may_share_memory(a[::2], a[1::2])
    assert xbridge.shares_memory(a[::3], a[::2])
    assert not xbridge.shares_memory(a[:0], a)
    assert not xbridge.shares_memory(np.float64(1), np.float64(1))
    masked = np.ma.masked_array(a, mask=a > 3)
    assert xbridge.shares_memory(masked, a)


@pytest.mark.parametrize(
    ("shape", "strides", "apart", "shared"),
    [
        ((6, 6, 3, 3, 5, 6), (87100, 28019, 41638, 38697, 25884, 15130), 8, True),
        ((6, 5, 6, 5, 7), (57125, 7306, 35936, 69013, 65691), 14, False),
    ],
)
def test_shares_memory__solves_hard_cases(
    shape: tuple[int, ...], strides: tuple[int, ...], apart: int, *, shared: bool
) -> None:
    """`shares_memory` is exact where `np.shares_memory` raises `TooHardError`."""
    buffer = np.zeros(3_000_000, "i1")
    a = np.lib.stride_tricks.as_strided(buffer, shape, strides)
    b = np.lib.stride_tricks.as_strided(buffer[apart:], shape[::-1], strides[::-1])
    with pytest.raises(np.exceptions.TooHardError):
        np.shares_memory(a, b, max_work=1000)  # type: ignore[arg-type] # any int
    assert np.shares_memory(a, b) is shared
    for x in (a, a[::-1, ::-1]):
        for y in (b, b[..., ::-1]):
            assert xbridge.shares_memory(x, y) is shared
            assert xbridge.shares_memory(y, x) is shared


def test_to_numpy__ctypes_array_is_shared() -> None:
    """A ctypes array is a typed buffer, and its memory is shared."""
    numbers = (ctypes.c_int32 * 3)(1, 2, 3)
    a = xbridge.to_numpy(numbers)
    a[0] = 7
    assert list(numbers) == [7, 2, 3]


def test_numpy_backend__trivial_operations_return_the_array() -> None:
    """Operations that NumPy does not need return the array itself."""
    a = np.ones(2)
    assert get_backend("numpy").detach(a) is a
    assert get_backend("numpy").materialize(a) is a
    assert get_backend("numpy").to_device(a, xbridge.Device("cpu")) is a
    assert backend.fast_to_numpy(a) is a
    assert backend.fast_from_numpy(a) is a
    assert get_backend("numpy").devices() == ("cpu",)
    assert get_backend("numpy").is_grad_enabled() is False
    assert get_backend("numpy").device_name("cpu") is None


def test_to_backend__copies_without_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A large copy succeeds on one thread if no thread can be started."""

    def refuse(*_: object) -> None:
        message = "cannot schedule new futures after interpreter shutdown"
        raise RuntimeError(message)

    monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor.__init__", refuse)
    xbridge.register_backend("toylib", make_backend())
    a = np.arange(1 << 23, dtype=">f8")
    copied = xbridge.to_backend(a, "toylib").data
    assert copied.dtype == np.dtype("f8")
    assert np.array_equal(copied, a)


class Metre(np.float64):
    """A number with a unit."""


class Angle(np.floating):
    """A number of no dtype."""


@pytest.mark.filterwarnings("ignore:Converting .np.inexact. or .np.floating.:DeprecationWarning")
@pytest.mark.parametrize("dtype", [np.floating, np.integer, np.generic, np.number, Metre, Angle])
def test_to_numpy__refuses_abstract_dtypes(dtype: type) -> None:
    """Abstract scalar types and user-defined number classes are not dtypes."""
    with pytest.raises(xbridge.DTypeError, match="or a library's native dtype"):
        xbridge.to_numpy(np.ones(2), dtype=dtype)


def test_is_available__backend_name_must_be_a_string() -> None:
    """Backend names are strings; `is_available` is False for anything else."""
    assert xbridge.is_available("numpy")
    assert xbridge.is_available("numpy")
    assert not xbridge.is_available(["numpy"])  # type: ignore[arg-type] # that is the mistake
    with pytest.raises(xbridge.OptionError, match="a name is a string"):
        xbridge.register_backend(3, "three")  # type: ignore[arg-type] # likewise


@pytest.mark.parametrize("name", ["to_torch", "to_jax"])
def test_to_torch__has_the_options_of_to_backend(name: str) -> None:
    """`to_torch` and `to_jax` have the signature of `to_backend` without `backend`."""
    general = dict(inspect.signature(xbridge.to_backend).parameters)
    del general["backend"]
    assert dict(inspect.signature(getattr(xbridge, name)).parameters) == general


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_to_torch__forwards_every_option(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`to_torch` and `to_jax` pass all options on to the plan."""
    seen: list[object] = []
    monkeypatch.setattr(
        "xbridge._api._plan_conversion", lambda *args, **options: seen.extend([args, options])
    )
    options = {"device": "cpu", "dtype": "float32", "copy": True, "grad": "detach"}
    getattr(xbridge, f"to_{name}")(2.0, **options)
    assert seen == [(2.0, name), options]


def test_asarray__mixed_integers_are_exact_or_refused() -> None:
    """Integers mixed with floats become floats only if each is represented exactly."""
    assert xbridge.asarray([0, 0.5, 2**60]).tolist() == [0.0, 0.5, 2.0**60]
    assert xbridge.asarray([2**64 - 1, 0]).dtype == np.uint64
    assert xbridge.asarray([2**70, 0.5]).tolist() == [2.0**70, 0.5]
    assert xbridge.asarray([2**53 + 1, 1j], dtype="complex128").tolist() == [2.0**53, 1j]
    assert xbridge.asarray([-1, 2**63], dtype="float64").tolist() == [-1.0, 2.0**63]
    for x in ([2**53 + 1, 0.5], [2**53 + 1, 1j], [-1, 2**64], [10**400, 0.5]):
        with pytest.raises(xbridge.ValueLossError):
            xbridge.asarray(x)
    with pytest.raises(xbridge.ValueLossError, match="larger than any float"):
        xbridge.asarray([10**400, 0.5], dtype="float64")


def test_to_numpy__gathers_sharded_arrays_only_if_asked() -> None:
    """An array on several devices is gathered only if the target device is named."""
    spread = make_backend(
        array_info=lambda x: backend.array_info(x.data)._replace(device=xbridge.Device("sharded"))
    )
    xbridge.register_backend("toylib", spread)
    x = Toy(np.ones(2))
    with pytest.raises(xbridge.DeviceError, match=r"try to_backend\(x, 'numpy', device='cpu'\)"):
        xbridge.to_numpy(x)
    assert xbridge.asarray(x) is x
    with pytest.raises(
        xbridge.UnsupportedArrayError,
        match="cannot compare the memory of these arrays: one of them is on several devices; try its parts",
    ):
        xbridge.shares_memory(x, np.ones(2))


class Measured(np.ndarray[Any, Any]):
    """An array with a unit, which its views and copies have too."""

    unit: str = ""

    def __array_finalize__(self, obj: object) -> None:
        """Take the unit of the array that this one is a view or a copy of."""
        self.unit = getattr(obj, "unit", "")


@pytest.mark.parametrize("options", [{}, {"copy": True}, {"dtype": "float32"}, {"copy": False}], ids=str)
def test_to_numpy__writable_false_keeps_the_facts_of_a_subclass(options: Any, tmp_path: Path) -> None:
    """A read-only array of a subclass has what a view or copy of it has, such as a unit or a file."""
    measured = np.ones(3).view(Measured)
    measured.unit = "m"
    mapped = np.memmap(tmp_path / "values", "f8", "w+", shape=3)
    for x in (measured, mapped):
        for _ in range(2):
            usual = xbridge.to_numpy(x, **options)
            (y,) = xbridge.tree.to_numpy([x], writable=False, **options)
            for made in (y, xbridge.to_numpy(x, writable=False, **options)):
                assert type(made) is type(usual)
                assert vars(made) == vars(usual)
                assert not made.flags.writeable
                assert xbridge.shares_memory(x, made) == xbridge.shares_memory(x, usual)
