"""Modes that change what torch makes change nothing of what a conversion promises."""

from __future__ import annotations

import array
from typing import TYPE_CHECKING

import numpy as np
import pytest
from exporters import capsule
from inside import planned_arrays
from rawmemory import overlaps, same_bits
from torch_modes import Passes, PassesFunctions

import xbridge

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

A = np.arange(3.0)

INTO_TORCH: dict[str, Callable[[], Tensor]] = {
    "an array": lambda: xbridge.to_backend(A, "torch"),
    "a read-only array": lambda: xbridge.to_backend(np.broadcast_to(A, (2, 3)), "torch"),
    "a reversed array": lambda: xbridge.to_backend(A[::-1], "torch"),
    "a copy": lambda: xbridge.to_backend(A, "torch", copy=True),
    "another dtype": lambda: xbridge.to_backend(A, "torch", dtype="bfloat16"),
    "the default dtype": lambda: xbridge.to_backend(A, "torch", dtype="default"),
    "a scalar": lambda: xbridge.to_backend(np.float32(1), "torch"),
    "a number": lambda: xbridge.asarray(1.5, backend="torch"),
    "a list": lambda: xbridge.asarray([1.0, 2.0], backend="torch"),
    "a list of arrays": lambda: xbridge.asarray([A, A], backend="torch"),
    "a buffer": lambda: xbridge.to_backend(array.array("d", [1, 2]), "torch"),
    "a capsule": lambda: xbridge.asarray(capsule(A), backend="torch"),
    "an aligned array": lambda: xbridge.align(A, array.array("d", [1]), backend="torch")[1],
    "a new leaf": lambda: xbridge.asarray(A, backend="torch", requires_grad=True),
    "a new leaf of a list": lambda: xbridge.asarray([1.0], backend="torch", requires_grad=True),
}


@pytest.mark.parametrize("name", INTO_TORCH)
def test_to_backend__inference_mode_result_serves_autograd(name: str) -> None:
    """A tensor that was converted in inference mode can be used by autograd later."""
    with torch.inference_mode():
        made = INTO_TORCH[name]()
    assert not made.is_inference()
    if name != "the default dtype":
        assert same_bits(made.detach(), INTO_TORCH[name]().detach())
    w = torch.ones((), dtype=made.dtype, requires_grad=True)
    (w * made).sum().backward()
    assert w.grad is not None


PLANNED = ("a buffer", "a capsule", "an aligned array")


@pytest.mark.parametrize("name", [name for name in INTO_TORCH if name not in PLANNED])
def test_to_backend__inference_mode_repeats_calls(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call is not planned again in inference mode, and its result can be used by autograd in any mode."""
    for _ in range(3):
        INTO_TORCH[name]()
    planned = planned_arrays(monkeypatch)
    for mode in (True, False, True):
        with torch.inference_mode(mode):
            assert not INTO_TORCH[name]().is_inference()
    assert not planned


def test_asarray__inference_mode_of_lists_with_tensors() -> None:
    """A list of tensors is stacked in the mode of the caller, and one with arrays of NumPy outside of it."""
    x = torch.ones(3, dtype=torch.float64)
    for mode in (False, True, False, True):
        with torch.inference_mode(mode):
            assert xbridge.asarray([x, x], backend="torch").is_inference() is mode
            assert xbridge.asarray(x, dtype="float32").is_inference() is mode
            assert not xbridge.asarray([x, A], backend="torch").is_inference()


def test_to_numpy__inference_tensor() -> None:
    """An inference tensor is shared, copied and refused like any other."""
    with torch.inference_mode():
        x = torch.ones(3)
        tracked = torch.ones(3, requires_grad=True)
    assert overlaps(xbridge.to_numpy(x), x)
    assert not xbridge.to_numpy(tracked).flags.writeable
    assert not xbridge.asarray(x, copy=True).is_inference()
    assert xbridge.asarray(x, requires_grad=True, copy=True).is_leaf
    with pytest.raises(xbridge.GradientError, match="; try "):
        xbridge.asarray(x, requires_grad=True)


@pytest.mark.parametrize("name", INTO_TORCH)
def test_to_backend__ignores_the_default_device(name: str) -> None:
    """A default device does not move a converted array."""
    with torch.device("meta"):
        made = INTO_TORCH[name]()
    assert made.device.type == "cpu"
    assert made.tolist() == INTO_TORCH[name]().tolist()


def test_asarray__ignores_the_default_device() -> None:
    """A default device does not move a tensor that is cast, copied or stacked."""
    x = torch.arange(3.0)
    with torch.device("meta"):
        assert xbridge.asarray([x, A]).device.type == "cpu"
        assert xbridge.asarray(x, dtype="float64", copy=True).tolist() == [0.0, 1.0, 2.0]
        assert xbridge.to_backend(x.double(), "torch", dtype="default").tolist() == [0.0, 1.0, 2.0]
        assert overlaps(xbridge.to_numpy(x), x)


@pytest.mark.parametrize("mode", [Passes, PassesFunctions])
def test_to_numpy__works_under_dispatch_modes(mode: type[Passes | PassesFunctions]) -> None:
    """A mode that watches torch's operations does not change what a conversion shares."""
    x, tracked = torch.arange(3.0), torch.ones(2, requires_grad=True)
    with mode():
        assert overlaps(xbridge.to_numpy(x), x)
        assert not xbridge.to_numpy(tracked).flags.writeable
        assert overlaps(xbridge.to_backend(A, "torch"), A)
        assert xbridge.to_numpy(torch.ones(2, dtype=torch.complex64).conj()).tolist() == [1, 1]
        assert xbridge.asarray([x, A]).tolist() == [[0, 1, 2], [0, 1, 2]]
