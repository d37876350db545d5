"""What a backend need not write follows from what it writes."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from toylib import Toy, complete, gaps, make_backend

import xbridge
from xbridge._core.protocol import CONSTANTS, DERIVED, OPTIONAL, REQUIRED, VERBS, Backend
from xbridge._registry.registry import get
from xbridge.backends import numpy as host
from xbridge.protocol import Gap, Unsupported

pytestmark = pytest.mark.usefixtures("own_registry")

ROOT = __name__.partition(".")[0]
"""The package that the classes of this file come from."""

CPU, CHIP = xbridge.Device("cpu"), xbridge.Device("chip:0")


class Chip(Toy):
    """A toy in host memory or on one of two chips. Its memory on a chip is not for NumPy."""

    def __init__(self, data: Any, device: xbridge.Device = CPU) -> None:
        super().__init__(data)
        self.device = device


class Spaced(Toy):
    """A toy with an array API namespace."""

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.data.shape
        return shape

    def __array_namespace__(self) -> ModuleType:
        namespace: ModuleType = spaced
        return namespace


calls: list[str] = []
spaced: Any = ModuleType("spaced")


def _of_numpy(word: str) -> Any:
    def call(x: Any, *args: Any, **options: Any) -> Spaced:
        calls.append(word)
        given = [each.data for each in x] if isinstance(x, list) else x.data
        return Spaced(getattr(np, word)(given, *args, **options))

    return call


vars(spaced).update({word: _of_numpy(word) for word in ("asarray", "astype", "stack", "reshape")})
vars(spaced).update({word: np.dtype(word) for word in ("float32", "float64", "int16")})


def of_four_names(name: str, cls: type = Toy, **more: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(name=name, array_types=(cls,), to_numpy=_data_of, from_numpy=cls, **more)
    return module


def _data_of(x: Toy) -> Any:
    assert getattr(x, "device", CPU) == CPU, "it is not in host memory"
    return x.data


def chips(name: str = "chips", **more: Any) -> ModuleType:
    numpy = get("numpy")
    return of_four_names(
        name,
        Chip,
        devices=lambda: (CPU, CHIP, xbridge.Device("chip:1")),
        to_device=lambda x, device: Chip(x.data.copy(), device),
        array_info=lambda x: numpy.array_info(x.data)._replace(device=x.device),
        memory_layout=lambda x: numpy.memory_layout(x.data),
        **more,
    )


# -- four names ----------------------------------------------------------------------------------


def test_completed__has_every_name_of_the_protocol() -> None:
    """A completed backend has each constant, function and flag of the protocol."""
    backend = Backend(of_four_names("fours"), host)
    names = [word for word in vars(Backend) if not word.startswith("_")]
    assert set(names) == {*CONSTANTS, *VERBS, *OPTIONAL, *DERIVED}
    assert [word for word in names if not hasattr(backend, word)] == []
    assert [word for word in (*OPTIONAL, "functions") if getattr(backend, word) is not None] == []
    assert set(REQUIRED) <= set(names)


def test_completed__four_names_convert_both_ways() -> None:
    """A backend of the four required names converts, copies, casts, stacks and refuses."""
    xbridge.register_backend("fours", of_four_names("fours"), roots=("toylib",))
    a = np.arange(6.0).reshape(2, 3).T
    x = xbridge.to_backend(a, "fours")
    assert np.shares_memory(x.data, a)
    assert np.shares_memory(xbridge.to_numpy(x), a)
    assert xbridge.to_backend(x, "fours", dtype="float32").data.dtype == "f4"
    copied = xbridge.to_backend(x, "fours", copy=True).data
    assert (copied.flags.f_contiguous, np.shares_memory(copied, a)) == (True, False)
    stacked = xbridge.asarray([[x, x], [x, x]])
    assert np.array_equal(stacked.data, np.broadcast_to(a, (2, 2, 3, 2)))
    lossy = Toy(np.array([2**60 + 1]))
    assert get("fours").check_cast(lossy, "uint64") is lossy
    with pytest.raises(xbridge.ValueLossError):
        get("fours").check_cast(lossy, "float64")
    with pytest.raises(xbridge.GradientError, match="fours has no gradients"):
        xbridge.asarray(a, backend="fours", requires_grad=True)
    with pytest.raises(xbridge.GradientError, match="fours has no gradients"):
        get("fours").require_grad(x)
    with pytest.raises(xbridge.DeviceError, match="fours has arrays in host memory only; try device='cpu'"):
        xbridge.to_backend(a, "fours", device="cuda")
    with pytest.raises(xbridge.UnsupportedArrayError, match="fours has no array API namespace"):
        xbridge.array_namespace(x)
    with pytest.raises(xbridge.DTypeError, match=r"not a numeric|no numeric"):
        xbridge.to_numpy(Toy(np.array(["text"])))


def test_owns__includes_subclasses_and_scalars() -> None:
    """Subclasses and scalars of the listed types are owned, and only those types are fast."""
    backend = complete(scalar_types=(np.float32,))
    assert [backend.owns(cls) for cls in (Toy, Chip, np.float32, np.float64)] == [True, True, True, False]
    assert backend.fast.types == (Toy,)


# -- gaps ----------------------------------------------------------------------------------------


def test_completed__flags_follow_from_gaps() -> None:
    """A declared gap turns off the flag of its feature."""
    for feature, flag, value in (
        ("readonly", "readonly", False),
        ("autograd", "autograd", False),
        ("devices", "host_only", True),
    ):
        full = chips(detach=lambda x: x, require_grad=lambda x: x)
        assert getattr(Backend(full, host), flag) is not value
        vars(full)["gaps"] = gaps(feature)
        assert getattr(Backend(full, host), flag) is value


def test_gaps__missing_function_is_a_gap() -> None:
    """A feature without its function is a gap, and a reason that the module gives is kept."""
    found = Backend(of_four_names("fours"), host).gaps
    assert set(found) == {"devices", "autograd", "namespace"}
    assert {gap.status for gap in found.values()} == {"notimpl"}
    assert set(Backend(of_four_names("spaced", Spaced), host).gaps) == {"devices", "autograd"}
    mine = Gap("never", "toys do not learn")
    assert Backend(of_four_names("fours", gaps={"autograd": mine}), host).gaps["autograd"] is mine
    assert str(mine) == "never: toys do not learn"


# -- a namespace ---------------------------------------------------------------------------------


def test_completed__namespace_casts_copies_and_stacks() -> None:
    """Where an array has a namespace, its functions cast, copy and stack."""
    xbridge.register_backend("spaced", of_four_names("spaced", Spaced), roots=(ROOT,))
    x = Spaced(np.arange(3.0))
    assert xbridge.array_namespace(x) is spaced
    calls.clear()
    assert xbridge.to_backend(x, "spaced", dtype="float32").data.dtype == "f4"
    assert xbridge.to_backend(x, "spaced", copy=True).data.tolist() == [0, 1, 2]
    assert xbridge.asarray([[x], [x]], grad="keep").data.tolist() == [[[0, 1, 2]], [[0, 1, 2]]]
    assert calls == ["astype", "asarray", "stack", "reshape"]


class Unspaced(Toy):
    """A toy whose namespace cannot be found."""

    def __array_namespace__(self) -> ModuleType:
        raise ZeroDivisionError("no namespace today")


def test_array_namespace__chains_the_error_of_a_library() -> None:
    """An error raised by a library's `__array_namespace__` is the cause of ours."""
    xbridge.register_backend("spaced", of_four_names("spaced", Unspaced), roots=(ROOT,))
    x = Unspaced(np.arange(3.0))
    with pytest.raises(xbridge.UnsupportedArrayError) as caught:
        xbridge.array_namespace(x)
    error = caught.value
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert error.action == "find the namespace of an array of spaced"
    assert error.reason == "__array_namespace__ failed with ZeroDivisionError('no namespace today')"
    assert error.hint == "to_numpy(x)"
    assert xbridge.to_numpy(x).tolist() == [0, 1, 2]


# -- devices -------------------------------------------------------------------------------------


def test_completed__computes_with_numpy_and_keeps_the_device() -> None:
    """Without functions of its own, a backend computes with NumPy and returns to the device."""
    xbridge.register_backend("chips", chips(), roots=(ROOT,))
    x = Chip(np.arange(3.0), CHIP)
    for options in ({"dtype": "float32"}, {"copy": True}):
        made = xbridge.to_backend(x, "chips", **options)
        assert (made.device, made.data.tolist()) == (CHIP, [0, 1, 2])
        assert not np.shares_memory(made.data, x.data)
    assert xbridge.asarray([x, x]).device == CHIP
    with pytest.raises(xbridge.ValueLossError):
        get("chips").check_cast(Chip(np.array([1e300]), CHIP), "float32")
    assert xbridge.to_numpy(x).tolist() == [0, 1, 2]
    with pytest.raises(xbridge.DTypeError, match="<U4 is not a numeric dtype"):
        xbridge.to_numpy(Chip(np.array(["text"]), CHIP))
    assert get("chips").unsupported(Chip(np.array(["text"]), CHIP), leaving=False) is None
    assert isinstance(get("chips").unsupported(Chip(np.array(["text"])), leaving=True), Unsupported)


@pytest.mark.parametrize(
    ("device", "near", "found"),
    [
        ("chip:1", "cpu", "chip:1"),
        ("chip", "chip:1", "chip:1"),
        ("chip", "cpu", "chip:0"),
        ("gpu", "cpu", "chip:0"),
        ("gpu", "chip:1", "chip:1"),
        ("gpu", "cuda:0", "chip:0"),
        ("cpu", "chip:1", "cpu"),
    ],
)
def test_resolve_device__kind_without_an_index(device: str, near: str, found: str) -> None:
    """A kind without an index means the near device of that kind, or else the first."""
    backend = Backend(chips(), host)
    assert backend.resolve_device(xbridge.Device(device), xbridge.Device(near)) == found


@pytest.mark.parametrize(("device", "near"), [("chip:2", "chip:0"), ("cuda", "cpu"), ("cuda:0", "cpu")])
def test_resolve_device__refuses_missing_devices(device: str, near: str) -> None:
    """A device that does not exist is refused with a list of those that do; one of its kind is suggested."""
    with pytest.raises(xbridge.DeviceError, match=f"here, only cpu, chip:0, chip:1; try device={near!r}"):
        Backend(chips(), host).resolve_device(xbridge.Device(device), CPU)


class Leaf(Toy):
    """A toy that may require grad, and that NumPy must not see then."""

    tracked = False


def test_to_numpy__sees_detached_arrays_only() -> None:
    """A backend with gradients detaches an array before NumPy sees it."""

    def to_numpy(x: Leaf) -> Any:
        assert not x.tracked, "it requires grad"
        return x.data

    def require_grad(x: Leaf) -> Leaf:
        made = Leaf(x.data)
        made.tracked = True
        return made

    module = make_backend(
        array_types=(Leaf,),
        from_numpy=Leaf,
        to_numpy=to_numpy,
        array_info=lambda x: get("numpy").array_info(x.data)._replace(requires_grad=x.tracked),
        memory_layout=None,
        unsupported=None,
        detach=lambda x: Leaf(x.data),
        require_grad=require_grad,
        gaps=gaps("devices", "namespace"),
    )
    xbridge.register_backend("toylib", module, roots=(ROOT,))
    backend, a = get("toylib"), np.arange(3.0)
    assert (backend.autograd, backend.is_grad_enabled()) == (True, True)
    leaf = xbridge.asarray(a, backend="toylib", requires_grad=True)
    assert leaf.tracked
    assert np.shares_memory(xbridge.to_numpy(leaf), leaf.data)
    assert backend.check_cast(leaf, "float32") is leaf
