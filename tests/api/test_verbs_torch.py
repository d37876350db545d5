"""The options of the verbs where torch is the source or the target: gradients, devices, default dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from torch_modes import default_dtype

import xbridge

torch = pytest.importorskip("torch")

from xbridge.backends import torch as backend  # noqa: E402 -- once torch is there

if TYPE_CHECKING:
    from collections.abc import Callable

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


def test_to_backend__grad_keep_under_no_grad(tracked: Tensor) -> None:
    """`grad="keep"` under `torch.no_grad` raises unless the tensor itself is returned."""
    with torch.no_grad():
        assert xbridge.to_backend(tracked, "torch", grad="keep") is tracked
        with pytest.raises(xbridge.GradientError) as caught:
            xbridge.to_backend(tracked, "torch", copy=True, grad="keep")
        for others in ([tracked], [tracked.detach()]):
            with pytest.raises(xbridge.GradientError, match="torch records no graph now"):
                xbridge.asarray([tracked, *others], grad="keep")
    assert str(caught.value) == (
        "cannot convert a torch float32 array of shape (3,) on cpu to torch: "
        "grad='keep' was asked while gradients are off; try grad=None"
    )


def test_asarray__requires_grad_refuses_history_and_integers(tracked: Tensor) -> None:
    """`requires_grad=True` never cuts a graph silently and needs a dtype with gradients."""
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
def test_asarray__requires_grad_returns_a_leaf_as_is(tracked: Tensor, mode: type[Any]) -> None:
    """A leaf that already requires grad is returned as is unless it is to be detached."""
    parameter = torch.nn.Parameter(torch.ones(2))
    named: dict[str, Any] = {"dtype": "float32", "device": "cpu", "backend": "torch"}
    with mode():
        for x in (tracked, parameter):
            for options in ({}, {"copy": False}, {"grad": "keep"}, {"dtype": "nearest"}, {"like": x}, named):
                assert xbridge.asarray(x, requires_grad=True, **options) is x
                plan = xbridge.explain(x, "torch", requires_grad=True)
                assert (plan.steps, plan.error) == ((), None)
                assert (plan.requires_grad, plan.cuts_graph) == (True, False)
    made = xbridge.asarray(tracked, requires_grad=True, grad="detach")
    assert made is not tracked
    assert (made.is_leaf, made.requires_grad) == (True, True)
    assert made.data_ptr() != tracked.data_ptr()


def test_to_backend__default_dtype_narrows_exactly() -> None:
    """`dtype="default"` casts to torch's default dtype and raises if a value does not fit."""
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
    with default_dtype("float16"):
        as_wide = torch.ones(2, dtype=torch.bfloat16)
        assert xbridge.to_backend(as_wide, "torch", dtype="default") is as_wide
    with default_dtype("float64"):
        assert xbridge.asarray([1.5, 2j], backend="torch").dtype == torch.complex128
        assert xbridge.to_backend(wide, "torch", dtype="default") is wide


@pytest.mark.parametrize(
    "call",
    [
        lambda x: xbridge.to_backend(x, "torch", device="meta"),
        lambda x: xbridge.asarray(x, device=torch.device("meta"), copy=True),
        lambda x: xbridge.asarray(x, like=torch.ones(1, device="meta")),
        lambda x: xbridge.asarray(x, like=torch.ones(1), device="meta"),
        lambda x: xbridge.tree.to_backend({"x": [x]}, "torch", device="meta")["x"][0],
        lambda x: xbridge.align(x, device="meta")[0],
        lambda x: xbridge.align(torch.ones(1, device="meta"), x)[1],
    ],
)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
def test_to_backend__meta_is_torch_to(call: Callable[[Tensor], Tensor]) -> None:
    """Moving a tensor to meta gives what `Tensor.to("meta")` gives."""
    leaf = torch.ones(2, 3, dtype=torch.float16, requires_grad=True)
    large = torch.ones(1 << 20)
    for x in (leaf, leaf.T, large, torch.eye(2).to_sparse(), torch.ones(2, dtype=torch.complex32)):
        there = call(x)
        own = x.to("meta")
        assert (there.device, there.dtype, there.shape) == (own.device, own.dtype, own.shape)
        assert (there.layout, there.requires_grad) == (own.layout, own.requires_grad)


@pytest.mark.usefixtures("two_gpus")
def test_resolve_device__kind_without_index() -> None:
    """ "cuda" is the array's own device, or else the current one."""
    first, second = xbridge.Device("cuda:0"), xbridge.Device("cuda:1")
    assert backend.devices() == ("cpu", "cuda:0", "cuda:1")
    assert backend.resolve_device(xbridge.Device("cuda"), CPU) == second
    assert backend.resolve_device(xbridge.Device("gpu"), CPU) == second
    assert backend.resolve_device(xbridge.Device("gpu"), first) == first
    assert backend.resolve_device(xbridge.Device("cuda"), first) == first
    assert backend.resolve_device(second, first) == second
    assert backend.resolve_device(CPU, first) == CPU


def test_resolve_device__mps_has_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metal has the single device "mps:0", which lacks 64-bit floats."""
    monkeypatch.setattr(torch.mps, "device_count", lambda: 1)
    assert backend.resolve_device(xbridge.Device("mps"), CPU) == "mps:0"
    for dtype in ("float64", "complex128"):
        lacking = backend.unsupported_dtype(dtype, xbridge.Device("mps:0"))
        assert lacking == (xbridge.DTypeError, f"MPS has no {dtype}", "")
    assert backend.unsupported_dtype("float32", xbridge.Device("mps:0")) is None


def test_devices__lists_every_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """`devices` lists each device that torch reports."""
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 2)
    assert backend.devices()[-2:] == ("xpu:0", "xpu:1")


def test_to_numpy__bfloat16_without_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ml_dtypes, bfloat16 raises unless it is cast to a dtype both libraries have."""
    x = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    monkeypatch.setattr(backend, "_ml_dtypes", {})
    with pytest.raises(xbridge.DTypeError) as caught:
        xbridge.to_numpy(x)
    assert str(caught.value) == (
        "cannot convert a torch bfloat16 array of shape (2,) on cpu to numpy: NumPy knows bfloat16 through "
        "ml_dtypes, which is not installed; try dtype='nearest', or pip install ml_dtypes"
    )
    for dtype in ("nearest", "float32"):
        assert xbridge.to_numpy(x, dtype=dtype).tolist() == [1.5, -2.0]
    assert xbridge.to_list(x) == [1.5, -2.0]


def test_shares_memory__accepts_more_axes_than_numpy() -> None:
    """`shares_memory` handles tensors with more axes than NumPy allows."""
    x = torch.arange(6.0)
    for many in (x.reshape(2, 3, *[1] * 70), x[:, *[None] * 70].expand(6, *[2] * 30, *[1] * 40)):
        assert xbridge.shares_memory(many, x[2:])
        assert xbridge.shares_memory(x[5:], many)
        assert not xbridge.shares_memory(many[:1, :1], x[2:].numpy())


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is here")
def test_align__error_of_a_missing_device_names_the_argument() -> None:
    """If the device does not exist, the error begins with the first argument that cannot go there."""
    with pytest.raises(xbridge.DeviceError, match=r"^at xs\[0\]: .* 'gpu'"):
        xbridge.align(torch.ones(2), np.ones(2), device="gpu")


SEVERAL: dict[str, Callable[[], Any]] = {
    "max": lambda: torch.max(torch.ones(2, 3), 0),
    "lstm": lambda: torch.nn.LSTM(3, 2)(torch.ones(4, 3)),
    "pair": lambda: (torch.ones(2), torch.ones(2)),
}
"""Results of torch that are several arrays."""


@pytest.mark.parametrize("make", SEVERAL.values(), ids=SEVERAL)
def test_to_numpy__several_results_are_a_tree(make: Callable[[], Any]) -> None:
    """The hint for a tuple of arrays converts each: stacked, values and indices would be one array."""
    x = make()
    with pytest.raises(xbridge.UnsupportedArrayError) as caught:
        xbridge.to_numpy(x)
    assert caught.value.hint == "xbridge.tree.to_backend(x, 'numpy')"
    assert all(isinstance(y, np.ndarray) for y in xbridge.tree.to_numpy(x)[:1])


@pytest.mark.parametrize(
    "ask", [xbridge.backend_of, xbridge.device_of, xbridge.dtype_of], ids=lambda f: f.__name__
)
def test_backend_of__of_a_module_is_that_of_its_parameters(ask: Callable[[Any], object]) -> None:
    """The hint for a question about a module of torch asks one of its parameters."""
    x = torch.nn.Linear(2, 1)
    with pytest.raises(xbridge.UnsupportedArrayError) as caught:
        ask(x)
    assert eval(caught.value.hint, {"x": x, ask.__name__: ask}) == ask(x.weight)


def test_hint__of_a_tangent_keeps_the_value() -> None:
    """A tensor with a tangent is refused, and its primal, which the hint takes, is converted."""
    forward_ad: Any = torch.autograd.forward_ad
    with forward_ad.dual_level():
        x = forward_ad.make_dual(torch.ones(2), torch.ones(2))
        with pytest.raises(xbridge.UnsupportedArrayError) as caught:
            xbridge.to_numpy(x)
        value = eval(caught.value.hint, {"forward_ad": forward_ad, "x": x})
        assert caught.value.hint == "forward_ad.unpack_dual(x).primal"
        assert xbridge.to_list(value) == [1.0, 1.0]
