"""What xbridge promises of transfers, on a real accelerator if there is one, or else on the pretend one."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from emulated.there import DEVICE, KIND, api
from inside import get_backend

import xbridge
from xbridge import tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


at_every_pace = pytest.mark.usefixtures("pace")


# -- complete when the call returns ----------------------------------------------------------------


SOURCES: dict[str, Callable[[], torch.Tensor | np.ndarray]] = {
    "a numpy array": lambda: np.ones(10),
    "a tensor": lambda: torch.ones(10, dtype=torch.float64),
    "pinned memory": lambda: torch.ones(10, dtype=torch.float64).pin_memory(),
    "a numpy array in pinned memory": lambda: torch.ones(10, dtype=torch.float64).pin_memory().numpy(),
}


@at_every_pace
@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_to_backend__source_may_be_written_on_return(make: Callable[[], torch.Tensor | np.ndarray]) -> None:
    """The source may be written as soon as the call has returned."""
    source = make()

    there = xbridge.to_backend(source, "torch", device=KIND)
    source[:] = 7

    assert there.eq(1).all().item()


BACK: dict[str, Callable[[torch.Tensor], bool]] = {
    "to_numpy": lambda x: bool((xbridge.to_numpy(x) == 2).all()),
    "a tensor": lambda x: bool((xbridge.to_backend(x, "torch", device="cpu") == 2).all()),
    "a list": lambda x: xbridge.to_list(x) == [2.0] * 10,
    "a cast": lambda x: bool((xbridge.to_numpy(x, dtype="int64") == 2).all()),
    "align": lambda x: bool((xbridge.align(np.ones(1), x)[1] == 2).all()),
}


@at_every_pace
@pytest.mark.parametrize("all_are_two", BACK.values(), ids=BACK)
def test_to_numpy__result_is_complete_on_return(all_are_two: Callable[[torch.Tensor], bool]) -> None:
    """The result of pending work is there as soon as the call has returned."""
    still_computed = torch.ones(10, device=KIND) + 1

    assert all_are_two(still_computed)


@at_every_pace
@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_to_backend__runs_on_the_current_stream(make: Callable[[], torch.Tensor | np.ndarray]) -> None:
    """A transfer is ordered with the work of the current stream."""
    side = api.Stream()
    with api.stream(side):
        there = xbridge.to_backend(make(), "torch", device=KIND) + 1
        host = xbridge.to_numpy(there)

    assert (host == 2).all()


@at_every_pace
def test_to_backend__result_is_usable_on_any_stream() -> None:
    """What has arrived may be used on any stream without a wait."""
    there = xbridge.to_backend(np.ones(10), "torch", device=KIND)

    with api.stream(api.Stream()):
        assert there.eq(1).all().item()


CAST_THERE: dict[str, Callable[[], torch.Tensor]] = {
    "array": lambda: xbridge.to_backend(np.ones(10, "u1"), "torch", device=KIND, dtype="float32"),
    "tensor": lambda: xbridge.asarray(torch.ones(10, dtype=torch.uint8), device=KIND, dtype="float32"),
    "leaf": lambda: xbridge.asarray(
        np.ones(10, "u1"), backend="torch", device=KIND, dtype="float32", requires_grad=True
    ).detach(),
    "tree": lambda: tree.to_torch([np.ones(10, "u1"), np.ones(3, "u1")], device=KIND, dtype="float32")[0],
}


@pytest.mark.parametrize("convert", CAST_THERE.values(), ids=CAST_THERE)
@at_every_pace
def test_to_backend__cast_after_the_move_is_usable_on_any_stream(convert: Callable[[], torch.Tensor]) -> None:
    """A cast on the device is part of the transfer, which is complete on return."""
    there = convert()

    with api.stream(api.Stream()):
        assert there.cpu().tolist() == [1] * 10


# -- devices ---------------------------------------------------------------------------------------


def test_asarray__list_of_tensors_teaches_no_device_of_numbers() -> None:
    """Numbers become a NumPy array, which is not on the device that a list of tensors was put on."""
    for x in ([torch.ones(2)], (torch.ones(2),), [[torch.ones(2)]]):
        assert xbridge.device_of(xbridge.asarray(x, device=DEVICE)) == DEVICE
    for numbers in ([1.5], (2,), [[True]], range(2), []):
        with pytest.raises(xbridge.DeviceError, match="NumPy arrays are in host memory"):
            xbridge.asarray(numbers, device=DEVICE)


@pytest.mark.parametrize("observe", [nullcontext, xbridge.record])
def test_asarray__refuses_to_fetch_a_list_for_a_library_without_the_device(
    observe: Callable[[], AbstractContextManager[object]],
) -> None:
    """A list is moved to the host only if a device is named, as an array is, and if it is observed too."""
    pytest.importorskip("jax")
    if DEVICE in get_backend("jax").devices():
        pytest.skip("JAX is on this device too")
    there = torch.ones(2, device=KIND)
    with observe():
        for x in ([there, there], [there, there.double()]):
            with pytest.raises(xbridge.DeviceError, match=f"jax has no device {DEVICE} here"):
                xbridge.asarray(x, backend="jax")
        assert xbridge.asarray([there, there], backend="jax", device="cpu").tolist() == [[1, 1], [1, 1]]
        assert xbridge.asarray([there, there.double()], backend="numpy").tolist() == [[1, 1], [1, 1]]


def test_asarray__refuses_tensors_on_two_devices() -> None:
    """A list of tensors on two devices is refused, and `align` is suggested."""
    with pytest.raises(xbridge.DeviceError, match="align"):
        xbridge.asarray([torch.ones(2, device=KIND), torch.zeros(2)])
