"""What xbridge promises of transfers, on a real accelerator if there is one, or else on the pretend one."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from emulated.there import DEVICE, KIND, PACES, api, paced
from inside import get_backend

import xbridge
from xbridge import tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


@pytest.fixture(params=PACES.values(), ids=list(PACES))
def pace(request: pytest.FixtureRequest) -> Iterator[None]:
    """What is complete when the call returns is so at every pace."""
    with paced(request.param):
        yield


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


def test_to_numpy__result_is_owned() -> None:
    """The result may be written without a change to the tensor on the device."""
    x = torch.ones(3, device=KIND)

    host = xbridge.to_numpy(x)
    host[:] = 7

    assert host.flags.writeable
    assert x.tolist() == [1, 1, 1]


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


@at_every_pace
def test_to_backend__copy_on_the_device_is_ordered() -> None:
    """A copy on the device sees nothing that is written later on the current stream."""
    side = api.Stream()
    with api.stream(side):
        x = torch.ones(10, device=KIND)
        mine = xbridge.to_backend(x, "torch", copy=True)
        x.fill_(7)
        assert mine.eq(1).all().item()
        assert mine.data_ptr() != x.data_ptr()


# -- devices ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [KIND, DEVICE, "gpu", torch.device(KIND), torch.device(DEVICE)])
def test_asarray__accepts_every_spelling_of_the_device(device: object) -> None:
    """Each spelling of the device places the array on it."""
    there = xbridge.asarray([1.5, 2.5], backend="torch", device=device)

    assert xbridge.device_of(there) == DEVICE
    assert there.tolist() == [1.5, 2.5]


def test_to_backend__keeps_the_device_of_a_tensor() -> None:
    """A tensor stays on its device unless another one is named."""
    x = torch.ones(3, device=KIND)

    assert xbridge.to_backend(x, "torch") is x
    assert xbridge.to_backend(x, "torch", device="gpu") is x
    assert xbridge.device_of(xbridge.to_backend(x, "torch", dtype="float64")) == DEVICE
    assert xbridge.device_of(xbridge.asarray([1, 2], like=x)) == DEVICE


def test_to_backend__refuses_an_unknown_device() -> None:
    """A device that does not exist is an error."""
    with pytest.raises(xbridge.DeviceError, match=f"no device {KIND}:99"):
        xbridge.to_backend(np.ones(2), "torch", device=f"{KIND}:99")


def test_to_numpy__copy_false_refuses_a_move() -> None:
    """A move between the host and the device is a copy, so `copy=False` refuses it."""
    x = torch.ones(3, device=KIND)

    for call in (
        lambda: xbridge.to_numpy(x, copy=False),
        lambda: xbridge.to_backend(x.cpu(), "torch", device=KIND, copy=False),
        lambda: xbridge.to_backend(np.ones(3), "torch", device=KIND, copy=False),
    ):
        with pytest.raises(xbridge.CopyError, match="moves from"):
            call()


def test_shares_memory__on_the_device() -> None:
    """Memory on the device is shared with its own views alone."""
    x = torch.ones(3, device=KIND)

    assert xbridge.shares_memory(x, x[1:])
    assert not xbridge.shares_memory(x, x.clone())
    assert not xbridge.shares_memory(x, x.cpu())


def test_align__uses_the_device_of_the_first_array() -> None:
    """Arrays are aligned on the device of the first one, unless a device is named."""
    on_device, on_host, weak = xbridge.align(torch.ones(3, device=KIND), np.full(3, 2.0), 5)
    there, here = xbridge.align(np.ones(3), torch.full((3,), 2.0, device=KIND), device="cpu")

    assert (xbridge.device_of(on_device), xbridge.device_of(on_host), weak) == (DEVICE, DEVICE, 5)
    assert on_host.tolist() == [2, 2, 2]
    assert (there.tolist(), here.tolist()) == ([1, 1, 1], [2, 2, 2])


def test_asarray__stacks_tensors_on_their_device() -> None:
    """A list of tensors is stacked on the device that holds them."""
    x = xbridge.asarray([torch.ones(2, device=KIND), torch.zeros(2, device=KIND)])

    assert xbridge.device_of(x) == DEVICE
    assert x.tolist() == [[1, 1], [0, 0]]


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


def test_to_backend__meta_device_is_left_to_torch() -> None:
    """A move to the meta device gives what torch's own move gives."""
    for place in ("cpu", KIND):
        for x in (torch.ones(100, device=place), torch.ones(2, 3, device=place).T):
            there = xbridge.to_backend(x, "torch", device="meta")
            assert (there.device.type, there.shape, there.stride()) == ("meta", x.shape, x.stride())
        (one, other) = xbridge.tree.to_backend([x, x.double()], "torch", device="meta")
        assert (one.is_meta, other.is_meta, other.dtype) == (True, True, torch.float64)


# -- dtypes and gradients --------------------------------------------------------------------------


@pytest.mark.parametrize("wide", [float, complex, int])
def test_to_backend__casts_to_the_default_dtype(wide: type) -> None:
    """A default dtype is applied on the way, after a check of the values."""
    array: np.ndarray = np.arange(4).astype(wide)

    there = xbridge.to_backend(array, "torch", device=KIND, dtype="default")

    assert there.dtype == {float: torch.float32, complex: torch.complex64, int: torch.int64}[wide]
    assert there.tolist() == array.tolist()


def test_to_backend__refuses_a_lost_value_on_the_device() -> None:
    """A value on the device that the default dtype cannot hold is refused."""
    x = torch.tensor([1.0, 1e300], dtype=torch.float64, device=KIND)

    with pytest.raises(xbridge.ValueLossError):
        xbridge.to_backend(x, "torch", dtype="default")


def test_to_backend__gradient_flows_both_ways() -> None:
    """A gradient flows through a move to the device and one back."""
    w = torch.ones(3, requires_grad=True)

    there = xbridge.to_backend(w, "torch", device=KIND, grad="keep")
    back = xbridge.to_backend(there * 3, "torch", device="cpu", grad="keep")
    back.sum().backward()  # type: ignore[no-untyped-call] # theirs

    assert w.grad is not None
    assert w.grad.tolist() == [3, 3, 3]


def test_to_numpy__ends_the_graph_on_the_device() -> None:
    """A result outside of torch has no graph, and `grad="keep"` refuses it."""
    w = torch.ones(3, device=KIND, requires_grad=True)
    y = w * 2

    assert xbridge.to_numpy(y).tolist() == [2, 2, 2]
    assert xbridge.to_list(y) == [2, 2, 2]
    with pytest.raises(xbridge.GradientError):
        xbridge.to_numpy(y, grad="keep")


def test_asarray__makes_a_leaf_on_the_device() -> None:
    """A NumPy array can become a leaf on the device."""
    leaf = xbridge.asarray(np.ones(3), backend="torch", device=KIND, requires_grad=True)
    (leaf * leaf).sum().backward()  # type: ignore[no-untyped-call] # theirs

    assert leaf.is_leaf
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [2, 2, 2]


def test_to_backend__detach_leaves_the_graph() -> None:
    """A tensor that is moved with `grad="detach"` does not require grad."""
    w = torch.ones(3, requires_grad=True)

    assert not xbridge.to_backend(w, "torch", device=KIND, grad="detach").requires_grad
