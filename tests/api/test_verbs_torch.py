"""The options of the verbs where torch is the source or the target: gradients, devices, default dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from toylib import make_backend

import xbridge

torch = pytest.importorskip("torch")

from xbridge.backends import torch as backend  # noqa: E402 -- once torch is there

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

CPU = xbridge.Device("cpu")


@pytest.fixture
def tracked() -> Tensor:
    x: Tensor = torch.arange(3.0, requires_grad=True)
    return x


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch says of itself where there are two CUDA devices, the second one current."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


@pytest.fixture
def default_dtype() -> Iterator[Callable[[object], None]]:
    """Sets torch's default dtype, until the test is over."""
    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)


def test_a_graph_ends_where_its_library_ends_unless_it_was_to_be_kept(tracked: Tensor) -> None:
    assert not xbridge.to_numpy(tracked).flags.writeable
    with pytest.raises(xbridge.GradientError) as caught:
        xbridge.to_numpy(tracked, grad="keep")
    assert str(caught.value) == (
        "cannot convert a torch float32 array of shape (3,) on cpu to numpy: "
        "grad='keep' was asked, and a graph cannot leave its library; try grad=None"
    )
    assert xbridge.to_numpy(torch.ones(2), grad="keep").flags.writeable


def test_a_cast_keeps_the_graph_or_says_that_none_flows_through_the_dtype(tracked: Tensor) -> None:
    y = xbridge.to_backend(tracked * 2, "torch", dtype="float64", grad="keep")
    y.sum().backward()  # type: ignore[no-untyped-call] # theirs
    assert tracked.grad is not None
    assert tracked.grad.tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(xbridge.GradientError) as caught:
        xbridge.to_backend(tracked, "torch", dtype="int64", grad="keep")
    assert str(caught.value) == (
        "cannot convert a torch float32 array of shape (3,) on cpu to torch: "
        "grad='keep' was asked, and no gradient flows through int64; try grad=None"
    )
    assert xbridge.to_backend(tracked, "torch", dtype="int64").tolist() == [0, 1, 2]


def test_keeping_a_graph_where_gradients_are_off_is_refused_if_anything_changes(tracked: Tensor) -> None:
    with torch.no_grad():
        assert xbridge.to_backend(tracked, "torch", grad="keep") is tracked
        with pytest.raises(xbridge.GradientError) as caught:
            xbridge.to_backend(tracked, "torch", copy=True, grad="keep")
        with pytest.raises(xbridge.GradientError, match="torch records no graph now"):
            xbridge.asarray([tracked, tracked], grad="keep")
    assert str(caught.value) == (
        "cannot convert a torch float32 array of shape (3,) on cpu to torch: "
        "grad='keep' was asked while gradients are off; try grad=None, or turning them on"
    )


def test_detaching_within_torch_gives_memory_that_may_be_written(tracked: Tensor) -> None:
    free = xbridge.asarray(tracked, grad="detach")
    free[0] = 9.0
    assert not free.requires_grad
    assert tracked.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(xbridge.CopyError, match="torch has no read-only arrays"):
        xbridge.asarray(tracked, requires_grad=False, copy=False)
    plain = torch.ones(2)
    assert xbridge.asarray(plain, grad="detach") is plain


def test_requires_grad_gives_a_new_leaf_over_the_same_memory_and_leaves_its_source_alone() -> None:
    plain = torch.zeros(2)
    leaf = xbridge.asarray(plain, requires_grad=True)
    plain[0] = 5.0
    assert (leaf.is_leaf, leaf.requires_grad, plain.requires_grad) == (True, True, False)
    assert leaf.tolist() == [5.0, 0.0]
    apart = xbridge.asarray(plain, requires_grad=True, copy=True)
    plain[0] = 6.0
    assert apart.tolist() == [5.0, 0.0]
    a = np.zeros(2)
    from_numpy = xbridge.asarray(a, backend="torch", requires_grad=True)
    a[0] = 7.0
    assert from_numpy.tolist() == [7.0, 0.0]
    assert from_numpy.requires_grad


def test_requires_grad_does_not_cut_a_history_nor_begin_one_in_integers(tracked: Tensor) -> None:
    later = tracked * 2
    calls: tuple[Callable[[], Tensor], ...] = (
        lambda: xbridge.asarray(later, requires_grad=True),
        lambda: xbridge.asarray(tracked, requires_grad=True, copy=True),
        lambda: xbridge.asarray(tracked, requires_grad=True, dtype="float64"),
        lambda: xbridge.asarray(tracked, requires_grad=True, device="meta"),
    )
    for call in calls:
        for mode in (torch.enable_grad(), torch.no_grad(), torch.inference_mode()):
            with mode, pytest.raises(xbridge.GradientError, match="cut the graph that it has; try grad"):
                call()
    fresh = xbridge.asarray(tracked * 2, requires_grad=True, grad="detach")
    assert (fresh.is_leaf, fresh.requires_grad) == (True, True)
    with pytest.raises(xbridge.GradientError, match="no gradient flows through int64; try dtype='float32'"):
        xbridge.asarray([1, 2], backend="torch", requires_grad=True)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_leaf_that_requires_grad_already_is_the_new_leaf_itself(tracked: Tensor, mode: type[Any]) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    named: dict[str, Any] = {"dtype": "float32", "device": "cpu", "backend": "torch"}
    with mode():
        for x in (tracked, parameter):
            for options in ({}, {"copy": False}, {"grad": "keep"}, {"dtype": "nearest"}, {"like": x}, named):
                assert xbridge.asarray(x, requires_grad=True, **options) is x
                plan = xbridge.explain(x, "torch", requires_grad=True)
                assert (plan.steps, plan.error, plan.requires_grad, plan.cuts_graph) == (
                    (),
                    None,
                    True,
                    False,
                )
    made = xbridge.asarray(tracked, requires_grad=True, grad="detach")
    assert made is not tracked
    assert (made.is_leaf, made.requires_grad) == (True, True)
    assert made.data_ptr() != tracked.data_ptr()


def test_a_tensor_of_a_transform_cannot_become_a_leaf() -> None:
    def begin(x: Tensor) -> Tensor:
        made: Tensor = xbridge.asarray(x, requires_grad=True)
        return made

    with pytest.raises(xbridge.GradientError, match="cut the graph"):
        torch.func.vmap(begin)(torch.ones(2))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_forward_mode_tangents_are_history_too() -> None:
    primal, tangent = torch.ones(2), torch.ones(2)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(primal, tangent)
        with pytest.raises(xbridge.UnsupportedArrayError, match="tangent would be lost"):
            xbridge.to_numpy(dual)
        with pytest.raises(xbridge.GradientError, match="cut the graph"):
            xbridge.asarray(dual, requires_grad=True)
    _, out = torch.func.jvp(lambda v: xbridge.asarray(v, grad="detach") * 1.0, (primal,), (tangent,))
    assert out.tolist() == [0.0, 0.0]
    _, out = torch.func.jvp(lambda v: xbridge.asarray(v, dtype="float64"), (primal,), (tangent,))
    assert out.tolist() == [1.0, 1.0]


def test_the_default_dtype_of_torch_narrows_and_refuses_to_lose_a_value(
    default_dtype: Callable[[object], None],
) -> None:
    assert xbridge.to_backend(np.ones(2), "torch", dtype="default").dtype == torch.float32
    assert xbridge.to_backend(np.ones(2, "c16"), "torch", dtype="default").dtype == torch.complex64
    assert xbridge.to_backend(np.ones(2, "f2"), "torch", dtype="default").dtype == torch.float16
    assert xbridge.to_backend(np.ones(2, "u8"), "torch", dtype="default").dtype == torch.uint64
    wide = torch.tensor([1e300, float("nan"), float("inf")], dtype=torch.float64)
    for x in (wide, wide.numpy(), wide.to(torch.complex128), torch.complex(wide, wide).numpy()):
        with pytest.raises(xbridge.ValueLossError, match="a value does not fit"):
            xbridge.to_backend(x, "torch", dtype="default")
    assert xbridge.to_backend(wide[1:], "torch", dtype="default").isinf().tolist() == [False, True]
    assert xbridge.to_backend(wide[:0], "torch", dtype="default").dtype == torch.float32
    default_dtype(torch.float16)
    as_wide = torch.ones(2, dtype=torch.bfloat16)
    assert xbridge.to_backend(as_wide, "torch", dtype="default") is as_wide
    default_dtype(torch.float64)
    assert xbridge.asarray([1.5, 2j], backend="torch").dtype == torch.complex128
    assert xbridge.to_backend(wide, "torch", dtype="default") is wide


@pytest.mark.parametrize(("dtype", "large"), [("int64", 2**53), ("int64", -(2**53)), ("uint64", 2**63)])
def test_an_integer_of_a_tensor_is_not_rounded_in_a_list(dtype: str, large: int) -> None:
    half = torch.tensor([0.5], dtype=torch.float64)
    sign = -1 if large < 0 else 1
    exact, rounded = (torch.tensor([n], dtype=getattr(torch, dtype)) for n in (sign * 2**53, large + sign))
    assert xbridge.asarray([exact, half]).tolist() == [[sign * 2.0**53], [0.5]]
    assert xbridge.asarray([torch.tensor([7], dtype=torch.uint16), half]).tolist() == [[7.0], [0.5]]
    with pytest.raises(xbridge.ValueLossError, match=f"cannot turn {dtype} into float64 unasked"):
        xbridge.asarray([rounded, half])


@pytest.mark.parametrize("device", ["cuda", "gpu", "cuda:3", "xpu", "mps", "nonsense", "cpu:1"])
def test_a_device_that_is_not_here_is_refused_from_numpy(device: str) -> None:
    if torch.cuda.is_available() and device in ("cuda", "gpu"):
        pytest.skip("it is here")
    with pytest.raises(xbridge.DeviceError, match=r"no device .* here, only cpu.*; try device='cpu'$"):
        xbridge.to_backend(np.ones(2, "f4"), "torch", device=device)


@pytest.mark.parametrize("device", ["gpu", 0, "xpu:9", "nonsense"])
def test_a_device_that_is_not_here_is_refused_within_torch(device: object) -> None:
    if torch.cuda.is_available() and device in ("gpu", 0):
        pytest.skip("it is here")
    with pytest.raises(
        xbridge.DeviceError, match=r"(the step to_device|torch has no device gpu).*; try device='cpu'$"
    ):
        xbridge.to_backend(torch.ones(2), "torch", device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is here")
@pytest.mark.parametrize("device", ["gpu", 0])
def test_compiled_code_says_that_there_is_no_accelerator(device: object) -> None:
    moved = torch.compile(lambda x: xbridge.asarray(x, device=device), backend="eager")
    with pytest.raises(xbridge.DeviceError, match=r"no device gpu.*; try device='cpu'$"):
        moved(torch.ones(2))


@pytest.mark.parametrize("device", ["meta:0", torch.device("meta", 1)])
def test_a_meta_tensor_is_on_every_meta_device(device: object) -> None:
    x = torch.ones(2, device="meta")
    assert xbridge.asarray(x, device=device) is x


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="it is here")
def test_a_device_that_is_not_here_is_refused_before_a_dtype_that_it_would_lack() -> None:
    with pytest.raises(xbridge.DeviceError, match="no device mps"):
        xbridge.to_backend(np.ones(2), "torch", device="mps")


@pytest.mark.parametrize(
    "call",
    [
        lambda x: xbridge.to_backend(x, "torch", device="meta"),
        lambda x: xbridge.asarray(x, device=torch.device("meta"), copy=True),
        lambda x: xbridge.asarray(x, like=torch.ones(1, device="meta")),
        lambda x: xbridge.tree.to_backend({"x": [x]}, "torch", device="meta")["x"][0],
        lambda x: xbridge.align(x, device="meta")[0],
        lambda x: xbridge.align(torch.ones(1, device="meta"), x)[1],
    ],
)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
def test_within_torch_what_goes_to_meta_is_torchs_own_operation(call: Callable[[Tensor], Tensor]) -> None:
    leaf = torch.ones(2, 3, dtype=torch.float16, requires_grad=True)
    large = torch.ones(1 << 20)
    for x in (leaf, leaf.T, large, torch.eye(2).to_sparse(), torch.ones(2, dtype=torch.complex32)):
        there = call(x)
        own = x.to("meta")
        assert (there.device, there.dtype, there.shape) == (own.device, own.dtype, own.shape)
        assert (there.layout, there.requires_grad) == (own.layout, own.requires_grad)


def test_a_list_of_tensors_may_be_made_on_meta() -> None:
    made = xbridge.asarray([torch.ones(3), torch.zeros(3)], device="meta", dtype="float64")
    assert (made.is_meta, made.shape, made.dtype) == (True, (2, 3), torch.float64)


def test_what_comes_there_from_meta_was_not_shared() -> None:
    with pytest.raises(xbridge.CopyError, match="it moves from cpu to meta"):
        xbridge.to_backend(torch.ones(2), "torch", device="meta", copy=False)


def test_what_meta_holds_has_no_data_and_stays_there() -> None:
    empty = torch.ones(2, device="meta")
    with pytest.raises(xbridge.DeviceError, match=r"try torch\.empty_like\(x, device='cpu'\)$"):
        xbridge.to_backend(empty, "torch", device="cpu")
    assert xbridge.to_backend(empty, "torch", device="meta") is empty
    assert xbridge.to_backend(empty, "torch", dtype="float64").dtype == torch.float64
    assert xbridge.device_of(empty) == "meta"


@pytest.mark.usefixtures("two_gpus")
def test_a_device_without_an_index_stays_or_is_the_current_one() -> None:
    first, second = xbridge.Device("cuda:0"), xbridge.Device("cuda:1")
    assert backend.devices() == ("cpu", "cuda:0", "cuda:1")
    assert backend.resolve_device(xbridge.Device("cuda"), CPU) == second
    assert backend.resolve_device(xbridge.Device("gpu"), CPU) == second
    assert backend.resolve_device(xbridge.Device("gpu"), first) == first
    assert backend.resolve_device(xbridge.Device("cuda"), first) == first
    assert backend.resolve_device(second, first) == second
    assert backend.resolve_device(CPU, first) == CPU


def test_the_one_device_of_metal_has_no_current_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.mps, "device_count", lambda: 1)
    assert backend.resolve_device(xbridge.Device("mps"), CPU) == "mps:0"
    for dtype, instead in {"float64": "dtype='float32'", "complex128": "dtype='complex64'"}.items():
        lacking = backend.unsupported_dtype(dtype, xbridge.Device("mps:0"))
        assert lacking == (xbridge.DTypeError, f"MPS has no {dtype}", instead)
    assert backend.unsupported_dtype("float32", xbridge.Device("mps:0")) is None


def test_every_device_of_an_accelerator_is_one_of_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 2)
    assert backend.devices()[-2:] == ("xpu:0", "xpu:1")


def test_a_move_is_torchs_own() -> None:
    moved = backend.to_device(torch.ones(2), xbridge.Device("meta"))
    assert (moved.is_meta, moved.shape) == (True, (2,))


@pytest.mark.parametrize("thing", [3.5, list, object()], ids=lambda x: type(x).__name__)
def test_any_other_object_is_refused_as_a_dtype_or_device(thing: object) -> None:
    with pytest.raises(xbridge.DTypeError, match="or a library's native dtype"):
        xbridge.to_backend(np.ones(2), "torch", dtype=thing)
    with pytest.raises(xbridge.DeviceError, match="no library knows it as a device"):
        xbridge.to_backend(np.ones(2), "torch", device=thing)


def test_torch_casts_read_only_memory_without_a_copy_first() -> None:
    a = np.array([1.5, 70000.0], "f4")
    a.flags.writeable = False
    cast = xbridge.to_backend(a, "torch", dtype="float16")
    cast[0] = 9.0
    assert (cast.tolist(), a.tolist()) == ([9.0, float("inf")], [1.5, 70000.0])


def test_any_librarys_device_and_dtype_objects_are_understood() -> None:
    assert xbridge.to_backend(np.ones(2), "torch", device=torch.device("cpu")).device.type == "cpu"
    assert xbridge.to_numpy(np.ones(2), dtype=torch.float32).dtype == np.float32
    assert xbridge.to_backend(torch.ones(2), "torch", dtype=np.dtype("int8")).dtype == torch.int8
    assert xbridge.to_backend(torch.ones(2), "torch", dtype=np.int8).dtype == torch.int8
    with pytest.raises(xbridge.DeviceError, match="NumPy arrays are in host memory"):
        xbridge.to_backend(np.ones(2), "numpy", device=torch.device("cuda", 0))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
def test_a_dtype_that_the_target_lacks_is_refused_or_cast_by_the_source() -> None:
    wide = np.ones(2, np.longdouble)
    with pytest.raises(
        xbridge.DTypeError, match="torch has no longdouble; try dtype='nearest', or dtype='float64'"
    ):
        xbridge.to_backend(wide, "torch")
    assert xbridge.to_backend(wide, "torch", dtype="float64").tolist() == [1.0, 1.0]
    with pytest.raises(xbridge.DTypeError, match="NumPy has no complex32"):
        xbridge.to_numpy(torch.ones(2, dtype=torch.complex32))
    assert xbridge.to_numpy(torch.ones(2, dtype=torch.complex32), dtype="complex64").tolist() == [1, 1]
    assert xbridge.dtype_of(torch.ones(2, dtype=torch.complex32)) == "complex32"


def test_without_ml_dtypes_the_source_casts_to_a_dtype_that_both_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    monkeypatch.setattr(backend, "_ML_DTYPE_BY_TORCH", {})
    with pytest.raises(xbridge.DTypeError) as caught:
        xbridge.to_numpy(x)
    assert str(caught.value) == (
        "cannot convert a torch bfloat16 array of shape (2,) on cpu to numpy: NumPy knows bfloat16 through "
        "ml_dtypes, which is not installed; try dtype='nearest', or pip install ml_dtypes, or dtype='float32'"
    )
    for dtype in ("nearest", "float32"):
        assert xbridge.to_numpy(x, dtype=dtype).tolist() == [1.5, -2.0]
    assert xbridge.to_list(x) == [1.5, -2.0]


def test_to_list_is_exact_from_any_graph_device_and_dtype(tracked: Tensor) -> None:
    assert xbridge.to_list(tracked * 2) == [0.0, 2.0, 4.0]
    assert xbridge.to_list(torch.tensor([1 + 2j]).conj().imag) == [-2.0]
    assert xbridge.to_list(torch.tensor(True)) is True


def test_align_brings_torch_and_numpy_to_the_first_ones_side() -> None:
    t, a = torch.ones(2), np.ones(2)
    assert [type(x) for x in xbridge.align(t, a, 2.0)] == [torch.Tensor, torch.Tensor, float]
    assert [type(x) for x in xbridge.align(a, t)] == [np.ndarray, np.ndarray]
    assert [type(x) for x in xbridge.align(a, like=t)] == [torch.Tensor]
    assert [type(x) for x in xbridge.align(a, a, backend="torch")] == [torch.Tensor, torch.Tensor]
    assert xbridge.align(t, a)[0] is t
    cut, copied = xbridge.align(t.clone().requires_grad_(), t, copy=True, grad="detach")
    assert (cut.requires_grad, xbridge.shares_memory(copied, t)) == (False, False)


@pytest.mark.usefixtures("own_registry")
def test_a_graph_is_not_shared_where_its_memory_could_be_written(tracked: Tensor) -> None:
    xbridge.register_backend("toylib", make_backend(assumes_immutable=False))
    assert xbridge.to_backend(tracked, "toylib").data.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(xbridge.CopyError, match="it requires grad, and toylib has no read-only arrays"):
        xbridge.to_backend(tracked, "toylib", copy=False)


def test_the_namespace_of_torch_is_array_api_compats() -> None:
    assert xbridge.array_namespace(torch.ones(1), 2).__name__ == "array_api_compat.torch"
    with pytest.raises(xbridge.UnsupportedArrayError, match="torch and numpy"):
        xbridge.array_namespace(torch.ones(1), np.ones(1))


def test_the_native_device_of_a_tensor_is_torchs_own_object() -> None:
    assert xbridge.native_device(torch.ones(1)) == torch.device("cpu")
    assert xbridge.native_device(torch.ones(1, device="meta")) == torch.device("meta")


def test_memory_is_compared_across_the_libraries() -> None:
    t = torch.arange(6.0)
    a = xbridge.to_numpy(t)
    assert xbridge.shares_memory(t[::2], a[::2])
    assert not xbridge.shares_memory(t[::2], a[1::2])
    with pytest.raises(xbridge.UnsupportedArrayError, match=r"try x\.to_dense\(\)"):
        xbridge.shares_memory(t.to_sparse(), a)


def test_memory_that_is_gone_is_neither_shown_nor_read() -> None:
    x = torch.arange(1000.0)
    views = [x, x[2:], x[500:], x[::2]]
    x.untyped_storage().resize_(2000)
    for gone in views:
        assert xbridge.asarray(gone) is gone
        for convert in (
            xbridge.to_numpy,
            lambda y: xbridge.to_numpy(y.detach().requires_grad_()),
            lambda y: xbridge.to_backend(y, "torch", copy=True),
            lambda y: xbridge.to_backend(y, "torch", dtype="float64"),
            lambda y: xbridge.asarray([y, y]),
            xbridge.to_list,
        ):
            with pytest.raises(xbridge.UnsupportedArrayError, match="its storage was freed or shrunk"):
                convert(gone)


def test_memory_that_ends_before_the_last_element_is_not_read() -> None:
    x = torch.arange(10.0)
    view = x[1::3]
    x.untyped_storage().resize_(x.itemsize * 7)
    with pytest.raises(xbridge.UnsupportedArrayError, match="its storage was freed or shrunk"):
        xbridge.to_numpy(view)


def test_arrays_on_two_devices_share_no_memory() -> None:
    assert not xbridge.shares_memory(torch.ones(2), torch.ones(2, device="meta"))


def test_shared_memory_is_seen_through_more_axes_than_numpy_has() -> None:
    x = torch.arange(6.0)
    for many in (x.reshape(2, 3, *[1] * 70), x[:, *[None] * 70].expand(6, *[2] * 30, *[1] * 40)):
        assert xbridge.shares_memory(many, x[2:])
        assert xbridge.shares_memory(x[5:], many)
        assert not xbridge.shares_memory(many[:1, :1], x[2:].numpy())


def test_a_tensor_wrapped_by_hand_for_a_compiler_shows_no_memory() -> None:
    wrapped = torch._to_functional_tensor(torch.ones(4))
    for x in (wrapped, wrapped[1:]):
        with pytest.raises(xbridge.UnsupportedArrayError, match="a function transform is running over it"):
            xbridge.to_numpy(x)
