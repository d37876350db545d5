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
from toylib import Toy, make_backend

import xbridge
import xbridge.tree
from xbridge._core.devices import SHARDED
from xbridge._registry.registry import get
from xbridge.backends import INDEX
from xbridge.backends import numpy as backend

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("own_registry")


@pytest.mark.parametrize("copy", [0, 1, "yes", np.True_])
def test_copy_is_none_true_or_false_and_nothing_like_them(copy: object) -> None:
    with pytest.raises(xbridge.OptionError, match="copy=None"):
        xbridge.to_numpy(np.ones(2), copy=copy)  # type: ignore[arg-type] # that is the mistake


@pytest.mark.parametrize(
    ("grad", "meant"), [("drop", "detach"), (True, "keep"), (False, "detach"), (0, "detach"), ([], "detach")]
)
def test_grad_is_none_keep_or_detach(grad: object, meant: str) -> None:
    with pytest.raises(xbridge.OptionError, match=f"try grad='{meant}'$"):
        xbridge.to_numpy(np.ones(2), grad=grad)  # type: ignore[arg-type] # that is the mistake


@pytest.mark.parametrize("writable", [0, 1, "yes", np.True_])
def test_writable_is_true_or_false(writable: object) -> None:
    with pytest.raises(xbridge.OptionError, match="writable=True"):
        xbridge.to_numpy(np.ones(2), writable=writable)  # type: ignore[arg-type] # that is the mistake


@pytest.mark.parametrize("options", [{}, {"dtype": "float64"}, {"grad": "detach"}])
def test_a_writable_array_of_numpy_is_itself_or_one_copy_of_what_is_read_only(options: Any) -> None:
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


def test_memory_that_must_not_be_written_is_not_shared_as_a_writable_array() -> None:
    fixed = np.broadcast_to(1.0, 3)
    with pytest.raises(xbridge.CopyError, match="writable=True") as caught:
        xbridge.to_numpy(fixed, writable=True, copy=False)
    assert caught.value.hint == "copy=None"
    x = np.ones(2)
    assert xbridge.to_numpy(x, writable=True, copy=False) is x


def test_the_copy_for_a_writable_array_is_explained(own_registry: None) -> None:
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
def test_requires_grad_is_none_true_or_false(requires_grad: object) -> None:
    with pytest.raises(xbridge.OptionError, match="requires_grad=None"):
        xbridge.asarray(np.ones(2), requires_grad=requires_grad)  # type: ignore[call-overload] # likewise


def test_requires_grad_false_and_grad_keep_contradict_each_other() -> None:
    with pytest.raises(xbridge.OptionError, match="contradict"):
        xbridge.asarray(np.ones(2), grad="keep", requires_grad=False)
    with pytest.raises(xbridge.OptionError, match=r"take grad='cut'.* try grad='detach'"):
        xbridge.asarray(np.ones(2), grad="cut", requires_grad=False)  # type: ignore[call-overload]


def test_numpy_has_no_gradients_to_begin() -> None:
    with pytest.raises(xbridge.GradientError, match="NumPy does not differentiate"):
        xbridge.asarray(np.ones(2), requires_grad=True)
    with pytest.raises(xbridge.GradientError, match="NumPy does not differentiate"):
        get("numpy").require_grad(np.ones(2))


@pytest.mark.parametrize(
    "dtype", ["float32", np.float32, np.dtype("float32"), np.dtype("<f4"), np.dtype(">f4")]
)
def test_a_dtype_is_a_name_or_any_object_for_it(dtype: object) -> None:
    assert xbridge.to_numpy(np.ones(2), dtype=dtype).dtype.str == np.dtype("f4").str


@pytest.mark.parametrize(("dtype", "expected"), [(bool, "?"), (int, "i8"), (float, "f8"), (complex, "c16")])
def test_a_python_type_means_what_it_means_to_numpy(dtype: type, expected: str) -> None:
    assert xbridge.to_numpy(np.ones(2, "f4"), dtype=dtype).dtype == np.dtype(expected)


@pytest.mark.parametrize("dtype", ["double", ">f4"])
def test_a_dtype_that_has_a_name_by_another_word_is_answered_with_it(dtype: object) -> None:
    with pytest.raises(xbridge.DTypeError, match=r"try dtype='\w+'"):
        xbridge.to_numpy(np.ones(2), dtype=dtype)


@pytest.mark.parametrize("dtype", [3, [], list, object(), "f16", "O", "int128", "float8", "zzz"])
def test_any_other_object_is_refused_as_a_dtype_and_no_dtype_is_guessed(dtype: object) -> None:
    with pytest.raises(xbridge.DTypeError, match=r"; try one of bool, int8, .*, complex128$"):
        xbridge.to_numpy(np.ones(2), dtype=dtype)


@pytest.mark.parametrize("device", ["", ":0", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "cuda:\u00b2"])
def test_a_device_is_a_kind_or_a_kind_and_an_index(device: str) -> None:
    with pytest.raises(xbridge.DeviceError, match="kind:index"):
        xbridge.to_backend(np.ones(2), "numpy", device=device)


@pytest.mark.parametrize("device", [True, 0.0, object(), np.ones(2)])
def test_any_other_object_is_refused_as_a_device(device: object) -> None:
    with pytest.raises(xbridge.DeviceError, match="no library knows it as a device"):
        xbridge.to_backend(np.ones(2), "numpy", device=device)


@pytest.mark.parametrize("device", ["cuda", "gpu", "cpu:1", "meta"])
def test_numpy_lives_in_host_memory_only(device: str) -> None:
    with pytest.raises(xbridge.DeviceError, match="device='cpu'"):
        xbridge.to_backend(np.ones(2), "numpy", device=device)


def test_a_device_is_a_string_that_knows_its_parts() -> None:
    device = xbridge.Device("cuda:1")
    assert (device, device.kind, device.index) == ("cuda:1", "cuda", 1)
    assert (xbridge.Device("cpu:0"), xbridge.Device("device1").index) == ("cpu", None)
    assert {device: 1} == {"cuda:1": 1}


def test_a_device_equals_its_name_and_nothing_else() -> None:
    device, again, other = map(xbridge.Device, ("cuda:1", "cuda:1", "cuda:0"))
    same = [device == again, device == "cuda:1", "cuda:1" == device, not device != "cuda:1"]  # noqa: SIM202, SIM300
    apart = [device != other, device != "cuda:0", "cuda:0" != device, device != 1, device is not again]  # noqa: SIM300
    assert all(same)
    assert all(apart)
    assert {device, again, "cuda:1"} == {"cuda:1"}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_device_is_a_device_in_another_process_and_in_a_copy(protocol: int) -> None:
    for name in ("cuda:1", "cpu"):
        device = xbridge.Device(name)
        for again in (pickle.loads(pickle.dumps(device, protocol)), copy.deepcopy(device)):
            assert type(again) is xbridge.Device
            assert (str(again), again.kind, again.index) == (name, device.kind, device.index)


def test_an_array_with_nothing_to_change_comes_back_itself() -> None:
    for a in (np.ones(2), np.ones(2, ">f4"), np.ones(2)[::-1], np.array("2020", "M8[D]"), np.array([None])):
        assert xbridge.to_numpy(a) is a
        assert xbridge.asarray(a) is a
        assert xbridge.to_backend(a, "numpy", device="cpu", copy=False, grad="keep") is a


def test_copy_true_copies_within_a_library_and_keeps_layout_and_byte_order() -> None:
    a = np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3))
    b = xbridge.to_numpy(a, copy=True)
    assert (b.dtype, b.strides, b.tolist()) == (a.dtype, a.strides, a.tolist())
    assert not np.shares_memory(a, b)


def test_an_explicit_dtype_is_in_native_byte_order() -> None:
    a = np.arange(3, dtype=">i4")
    b = xbridge.to_numpy(a, dtype="int32")
    assert b.dtype == np.dtype("i4")
    assert b.tolist() == [0, 1, 2]
    with pytest.raises(xbridge.CopyError, match="not in the order of int32"):
        xbridge.to_numpy(a, dtype="int32", copy=False)


@pytest.mark.parametrize("length", [0, 1, 3])
def test_whether_a_cast_is_refused_without_a_copy_hangs_on_no_length(length: int) -> None:
    a = np.ones(length)
    for dtype in ("float32", "int8", "complex64"):
        with pytest.raises(xbridge.CopyError, match=f"float64 becomes {dtype}; try copy=None"):
            xbridge.to_numpy(a, dtype=dtype, copy=False)
    with pytest.raises(xbridge.CopyError, match="not in the order of float64"):
        xbridge.to_numpy(a.astype(">f8"), dtype="float64", copy=False)
    for same in (None, "float64", "default", "nearest"):
        assert xbridge.to_numpy(a, copy=False, dtype=same) is a


def test_a_cast_within_numpy_is_numpys_own() -> None:
    once = np.array([1 + 2**-11 + 2**-40, 2**14 - 2**-20, 1 / 3])  # by way of float32 some are other numbers
    for dtype in ("float16", "int64", "complex64"):
        assert xbridge.to_numpy(once, dtype=dtype).tolist() == once.astype(dtype).tolist()
    days = np.array(["2020-01-01"], "M8[D]")
    assert xbridge.to_numpy(days, dtype="int64").tolist() == days.astype("i8").tolist()
    with pytest.raises(xbridge.DTypeError, match="in numpy itself"):
        xbridge.to_numpy(np.array(["x"]), dtype="float64")


def test_a_cast_that_drops_the_imaginary_part_is_refused() -> None:
    with pytest.raises(xbridge.DTypeError, match=r"try x\.real"):
        xbridge.to_numpy(np.ones(2, "c16"), dtype="float64")
    assert xbridge.to_numpy(np.array([0j, 2j]), dtype="bool").tolist() == [False, True]


def test_the_default_dtype_of_numpy_is_its_widest() -> None:
    for dtype in ("f8", "f2", "i8", "u8", "c16", "?", "M8[D]"):
        a = np.zeros(2, dtype)
        assert xbridge.to_numpy(a, dtype="default") is a


def test_like_gives_the_backend_and_an_explicit_one_wins() -> None:
    xbridge.register_backend("toylib", make_backend())
    toy = xbridge.asarray([1.0, 2.0], like=Toy(np.ones(1, "f4")))
    assert isinstance(toy, Toy)
    assert toy.data.dtype == "f8"
    assert isinstance(xbridge.asarray(toy, like=toy, backend="numpy"), np.ndarray)
    assert isinstance(xbridge.asarray(np.ones(2), like=np.float32(1)), np.ndarray)


def test_align_follows_explicit_then_like_then_the_first_array() -> None:
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


def test_an_array_that_is_a_list_too_is_an_array() -> None:
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


def test_a_namespace_belongs_to_one_backend() -> None:
    xbridge.register_backend("toylib", make_backend())
    assert xbridge.array_namespace(1.0, np.ones(2), np.float32(2)) is array_api_compat.numpy
    with pytest.raises(xbridge.UnsupportedArrayError, match="align"):
        xbridge.array_namespace(np.ones(2), Toy(np.ones(2)))
    with pytest.raises(xbridge.UnsupportedArrayError, match="no argument is an array"):
        xbridge.array_namespace(1, 2.0)
    with pytest.raises(xbridge.UnsupportedArrayError, match="toylib has no array API namespace"):
        xbridge.array_namespace(Toy(np.ones(2)))


def test_a_namespace_is_found_beside_none_and_not_for_masked_arrays() -> None:
    assert xbridge.array_namespace(None, np.ones(2), None) is array_api_compat.numpy
    with pytest.raises(xbridge.UnsupportedArrayError, match="no argument is an array"):
        xbridge.array_namespace(None)
    with pytest.raises(xbridge.UnsupportedArrayError, match="its mask would be lost") as caught:
        xbridge.array_namespace(np.ones(2), np.ma.masked_array([1.0, 2.0], mask=[True, False]))
    assert caught.value.hint == "x.filled(value)"


@pytest.mark.parametrize("name", INDEX)
def test_a_native_device_goes_into_the_functions_of_the_namespace(name: str) -> None:
    if not xbridge.is_available(name):
        pytest.skip(f"{name} is not installed")
    for device in get(name).devices():
        x = xbridge.asarray([1.0], backend=name, device=device)
        made = xbridge.array_namespace(x).zeros((2,), device=xbridge.native_device(x))
        assert (xbridge.backend_of(made), xbridge.device_of(made)) == (name, device)


def test_an_object_that_is_not_an_array_has_no_native_device() -> None:
    with pytest.raises(xbridge.UnsupportedArrayError, match="no backend owns that type"):
        xbridge.native_device(SimpleNamespace(device="cpu"))


def test_questions_are_answered_for_whatever_a_backend_owns() -> None:
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


def test_to_list_reads_foreign_byte_order_in_every_dtype() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in ("int16", "complex64", ml_dtypes.bfloat16):
        native = np.array([1, 2], dtype)
        assert xbridge.to_list(native.byteswap().view(native.dtype.newbyteorder())) == [1, 2]


def test_to_list_gives_python_numbers_or_says_that_there_are_none() -> None:
    assert xbridge.to_list(np.array([[1, 2]], ">i2")) == [[1, 2]]
    assert xbridge.to_list(np.float32(0.5)) == 0.5
    assert xbridge.to_list(memoryview(b"ab")) == [97, 98]
    assert type(xbridge.to_list(np.array(True))) is bool
    for a in (np.ones(2, np.longdouble), np.array(["x"]), np.array([None]), np.array("2020", "M8[D]")):
        with pytest.raises(xbridge.DTypeError):
            xbridge.to_list(a)


def test_shares_memory_is_exact_where_numpys_bounds_are_not() -> None:
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
def test_shares_memory_is_exact_where_numpys_solver_gives_up(
    shape: tuple[int, ...], strides: tuple[int, ...], apart: int, *, shared: bool
) -> None:
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


def test_arrays_of_ctypes_are_typed_buffers() -> None:
    numbers = (ctypes.c_int32 * 3)(1, 2, 3)
    a = xbridge.to_numpy(numbers)
    a[0] = 7
    assert list(numbers) == [7, 2, 3]


def test_the_steps_that_numpy_never_needs_leave_an_array_as_it_is() -> None:
    a = np.ones(2)
    assert get("numpy").detach(a) is a
    assert get("numpy").materialize(a) is a
    assert get("numpy").to_device(a, xbridge.Device("cpu")) is a
    assert backend.fast_to_numpy(a) is a
    assert backend.fast_from_numpy(a) is a
    assert get("numpy").devices() == ("cpu",)
    assert get("numpy").is_grad_enabled() is False
    assert get("numpy").device_name("cpu") is None


def test_a_large_copy_is_made_by_one_thread_where_no_other_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
def test_an_abstract_or_custom_class_of_numbers_is_not_a_dtype(dtype: type) -> None:
    with pytest.raises(xbridge.DTypeError, match="or a library's native dtype"):
        xbridge.to_numpy(np.ones(2), dtype=dtype)


def test_a_name_of_a_backend_must_be_a_string() -> None:
    assert xbridge.is_available("numpy")
    assert xbridge.is_available("numpy")
    assert not xbridge.is_available(["numpy"])  # type: ignore[arg-type] # that is the mistake
    with pytest.raises(xbridge.OptionError, match="a name is a string"):
        xbridge.register_backend(3, "three")  # type: ignore[arg-type] # likewise


@pytest.mark.parametrize("name", ["to_torch", "to_jax"])
def test_the_conversions_to_one_library_have_the_options_of_to_backend(name: str) -> None:
    general = dict(inspect.signature(xbridge.to_backend).parameters)
    del general["backend"]
    assert dict(inspect.signature(getattr(xbridge, name)).parameters) == general


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_the_conversions_to_one_library_pass_every_option_on(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    monkeypatch.setattr("xbridge._api.to_backend", lambda *args, **options: seen.extend([args, options]))
    options = {"device": "cpu", "dtype": "float32", "copy": True, "grad": "detach"}
    getattr(xbridge, f"to_{name}")(2.0, **options)
    assert seen == [(2.0, name), options]


def test_integers_among_floats_are_exact_or_refused() -> None:
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


def test_a_sharded_array_is_gathered_only_if_a_device_is_named_and_is_not_compared() -> None:
    spread = make_backend(array_info=lambda x: backend.array_info(x.data)._replace(device=SHARDED))
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
