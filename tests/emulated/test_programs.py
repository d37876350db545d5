"""What programs do with a device beyond operators works on the emulated accelerator as on the host."""

from __future__ import annotations

import copy
import io
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch
from emulated.there import api
from fresh import forked
from rawmemory import same_bits
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

VALUES = torch.tensor([1.0, -2.0, 3.0])


def test_kernel__first_operator_imports_nothing() -> None:
    """No module is imported by the first operator on the device."""
    code = """
    import sys, torch
    from xbridge.testing import emulated

    emulated.install()
    before = set(sys.modules)
    ((2 * torch.ones(3, device="emu")).sum() > 1).item()
    print(sorted(set(sys.modules) - before))
    """
    assert forked(code, "torch") == (0, ["[]"])


@pytest.mark.parametrize("device", ["cpu", "emu"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint__recomputes_in_backward(device: str, reentrant: bool) -> None:
    """A checkpoint runs its function again on the backward pass."""
    x = VALUES.clone().to(device).requires_grad_()
    calls = []

    def square(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.device)
        return x * x

    y = checkpoint(square, x, use_reentrant=reentrant)
    y.sum().backward()

    assert len(calls) == 2
    assert x.grad is not None
    assert x.grad.tolist() == [2, -4, 6]


LAYERS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "conv1d": (lambda: torch.nn.Conv1d(4, 2, 2, groups=2, bias=False), (1, 4, 5)),
    "conv2d": (lambda: torch.nn.Conv2d(2, 3, 3), (1, 2, 5, 5)),
    "conv2d, transposed": (lambda: torch.nn.ConvTranspose2d(4, 6, 3, groups=2), (1, 4, 5, 5)),
    "lstm": (lambda: torch.nn.LSTM(3, 2, 2, bidirectional=True), (2, 1, 3)),
    "gru": (lambda: torch.nn.GRU(3, 2), (2, 1, 3)),
}
every_layer = pytest.mark.parametrize(("make", "shape"), LAYERS.values(), ids=LAYERS)


def first(result: Any) -> torch.Tensor:
    """What a layer gives, or the first of all that it gives."""
    found: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return found


@every_layer
def test_layer__agrees_with_the_host(make: Callable[[], torch.nn.Module], shape: tuple[int, ...]) -> None:
    """The gradients of a layer agree with those on the host."""
    torch.manual_seed(3)
    layer, x = make(), torch.randn(shape)
    twin, y = copy.deepcopy(layer).to("emu"), x.to("emu").requires_grad_()
    with torch.autograd.set_multithreading_enabled(False):  # coverage sees no thread of torch
        first(layer(x.requires_grad_())).square().sum().backward()  # type: ignore[no-untyped-call]
        first(twin(y)).square().sum().backward()  # type: ignore[no-untyped-call]

    assert x.grad is not None
    assert y.grad is not None
    torch.testing.assert_close(y.grad.cpu(), x.grad)
    for mine, theirs in zip(twin.parameters(), layer.parameters(), strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad)


@every_layer
def test_layer__works_without_a_graph(make: Callable[[], torch.nn.Module], shape: tuple[int, ...]) -> None:
    """In inference mode, a layer gives the result of the host."""
    torch.manual_seed(3)
    layer, x = make(), torch.randn(shape)
    expected = first(layer(x)).detach()
    with torch.inference_mode():
        result = first(layer.to("emu")(x.to("emu"))).cpu()

    torch.testing.assert_close(result, expected)


def test_kernel__missing_on_the_host_is_refused_at_the_call() -> None:
    """A kernel that the host lacks is refused at the call, and the device goes on."""
    cell = torch.nn.LSTMCell(3, 2).to("emu")

    with pytest.raises(NotImplementedError, match="the host, which computes"):
        cell(torch.ones(1, 3, device="emu"))

    assert torch.ones(2, device="emu").tolist() == [1, 1]


def test_pickle__loads_onto_the_device() -> None:
    """A tensor is unpickled onto the device, in memory of its own."""
    x = VALUES.to("emu")
    y = pickle.loads(pickle.dumps(x))

    x.fill_(0)

    assert str(y.device) == "emu:0"
    assert same_bits(y.cpu(), VALUES)


@pytest.mark.parametrize("source", ["cpu", "emu"])
@pytest.mark.parametrize("target", ["cpu", "emu", "emu:0"])
def test_load__maps_to_the_requested_device(source: str, target: str) -> None:
    """A saved file is loaded onto the device that is asked for, and views stay views."""
    x = VALUES.clone().to(source)
    file = io.BytesIO()
    torch.save([x, x[1:]], file)
    file.seek(0)

    y, view = torch.load(file, map_location=target)
    y[1] = 7

    assert y.device.type == target.partition(":")[0]
    assert (y.tolist(), view.tolist()) == ([1, 7, 3], [7, 3])


def test_current_device__is_always_the_first() -> None:
    """There is one device that can be current."""
    with api.device("emu:0"):
        assert api.current_device() == 0
        assert str(torch.ones(1, device="emu").device) == "emu:0"


def test_autocast__is_accepted() -> None:
    """A program may ask for autocast on the device."""
    with torch.autocast("emu", torch.bfloat16):
        x = VALUES.to("emu") * 2

    assert x.tolist() == [2, -4, 6]


def test_event__elapsed_time_is_zero() -> None:
    """No time passes between two events."""
    start, end = api.Event(enable_timing=True), api.Event(enable_timing=True)
    start.record()
    x = VALUES.to("emu") * 2
    end.record()
    end.synchronize()

    assert start.elapsed_time(end) == 0
    assert x.tolist() == [2, -4, 6]
