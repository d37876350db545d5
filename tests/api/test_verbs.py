"""The options of the verbs, NumPy only: what each may be, and how `like` and `align` choose."""

from __future__ import annotations

import copy
import inspect
import pickle
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


@pytest.mark.parametrize(
    ("grad", "meant"), [("drop", "detach"), (True, "keep"), (False, "detach"), (0, "detach"), ([], "detach")]
)
def test_to_numpy__grad_must_be_keep_detach_or_none(grad: object, meant: str) -> None:
    """Any other value of `grad` is rejected, and the hint says which was probably meant."""
    with pytest.raises(xbridge.OptionError, match=f"try grad='{meant}'$"):
        xbridge.to_numpy(np.ones(2), grad=grad)  # type: ignore[arg-type] # that is the mistake


@pytest.mark.parametrize("options", [{}, {"copy": True}, {"dtype": "float32"}, {"copy": False}])
def test_to_numpy__writable_false_is_read_only(options: Any) -> None:
    """The result is read-only, of shared memory or new, and the caller's own array stays writable."""
    a = np.arange(6.0)
    for x in (a, np.ones((1, 1)).view(np.matrix), a.copy()[::-2], a.astype(">f8")):
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


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_device__pickle_and_deepcopy_round_trip(protocol: int) -> None:
    """Pickling and deep copies keep the type and the parts of a device, which equals its name."""
    assert {xbridge.Device("cuda:1"), "cuda:1"} == {"cuda:1"}
    assert [xbridge.Device(name).index for name in ("cuda:1", "d1")] == [1, None]
    assert xbridge.Device("cpu:0") == "cpu"
    for name in ("cuda:1", "cpu"):
        device = xbridge.Device(name)
        for again in (pickle.loads(pickle.dumps(device, protocol)), copy.deepcopy(device)):
            assert type(again) is xbridge.Device
            assert (str(again), again.kind, again.index) == (name, device.kind, device.index)


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


def test_align__first_array_of_the_target_decides_the_device() -> None:
    """With `backend`, all arrays meet on the device of the first array of that library."""
    strict = pytest.importorskip("array_api_strict")
    far = strict.asarray([1.0, 2.0], device=strict.Device("device1"))
    made = xbridge.align(np.ones(2), far, backend="array_api_strict")
    assert [str(xbridge.device_of(x)) for x in made] == ["device1", "device1"]


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


def test_backend_of__accepts_anything_a_backend_owns() -> None:
    """Queries also answer for masked arrays, scalars and arrays of strings."""
    masked = np.ma.masked_array([1.0, 2.0], mask=[True, False])
    asked = [ask(masked) for ask in (xbridge.backend_of, xbridge.device_of, xbridge.dtype_of)]
    assert asked == ["numpy", "cpu", "float64"]
    assert xbridge.dtype_of(np.array("x")) == "<U1"
    assert xbridge.dtype_of(np.float32(1)) == "float32"
    assert xbridge.dtype_of(np.zeros(2, np.longdouble)) == "longdouble"
    for ask in (xbridge.backend_of, xbridge.device_of, xbridge.dtype_of):
        with pytest.raises(xbridge.UnsupportedArrayError, match=r"try asarray\(x\)"):
            ask([1, 2])


@pytest.mark.parametrize(
    "x", [np.zeros(2), np.float32(1), np.ma.masked_array([1.0]), np.array("x")], ids=repr
)
def test_is_array__agrees_with_backend_of(x: Any) -> None:
    """`is_array` is true for what `backend_of` names, convertible or not."""
    assert xbridge.is_array(x)
    assert xbridge.backend_of(x, default=None) == xbridge.backend_of(x) == "numpy"


@pytest.mark.parametrize("x", [3, 2.5, [np.zeros(1)], "text", None, {}, b"12"], ids=repr)
def test_is_array__false_for_other_objects(x: Any) -> None:
    """Numbers, containers and exporters are no arrays, and `backend_of` returns its default for them."""
    for _ in range(2):  # the second answer is cached
        assert not xbridge.is_array(x)
        assert xbridge.backend_of(x, default="none") == "none"


def test_to_list__returns_python_numbers() -> None:
    """`to_list` returns Python numbers and raises for dtypes that have no such numbers."""
    assert xbridge.to_list(np.array([[1, 2]], ">i2")) == [[1, 2]]
    assert xbridge.to_list(np.float32(0.5)) == 0.5
    assert xbridge.to_list(memoryview(b"ab")) == [97, 98]
    assert type(xbridge.to_list(np.array(True))) is bool
    for a in (np.ones(2, np.longdouble), np.array(["x"]), np.array([None]), np.array("2020", "M8[D]")):
        with pytest.raises(xbridge.DTypeError):
            xbridge.to_list(a)


def test_is_available__another_name_of_a_backend_is_an_error() -> None:
    """A usual name of a library that has another one here is an error, as in every other call."""
    with pytest.raises(xbridge.UnknownBackendError, match="try 'torch'"):
        xbridge.is_available("pytorch")
    assert not any(map(xbridge.is_available, ["nolib", "numpyro", "cupyx"]))


@pytest.mark.parametrize("name", ["to_torch", "to_jax"])
def test_to_torch__has_the_options_of_to_backend(name: str) -> None:
    """`to_torch` and `to_jax` have the signature of `to_backend` without `backend`."""
    general = dict(inspect.signature(xbridge.to_backend).parameters)
    del general["backend"]
    assert dict(inspect.signature(getattr(xbridge, name)).parameters) == general


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
    with pytest.raises(xbridge.UnsupportedArrayError, match=r"one of them is on several devices$"):
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
