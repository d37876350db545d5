"""The backend of torch by itself: what its shortcuts take, its devices, and its rarer tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from rawmemory import overlaps

import xbridge
from xbridge._registry.registry import get

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

CPU = xbridge.Device("cpu")

TENSORS: dict[str, Callable[[], Tensor]] = {
    "dense": lambda: torch.arange(6.0),
    "a part": lambda: torch.arange(6.0)[2:],
    "reversed axes": lambda: torch.arange(6.0).reshape(2, 3).T,
    "every second": lambda: torch.arange(6.0)[::2],
    "tracked": lambda: torch.arange(6.0).requires_grad_(),
    "a tracked part": lambda: torch.arange(6.0).requires_grad_()[1:],
}


@pytest.mark.parametrize("name", TENSORS)
def test_the_shortcut_to_numpy_shares_plain_tensors_and_protects_a_graph(name: str) -> None:
    x = TENSORS[name]()
    host = get("torch").fast_to_numpy(x)
    assert host is not None
    assert overlaps(host, x.detach())
    assert host.tolist() == x.tolist()
    assert host.flags.writeable is not x.requires_grad


def test_the_shortcut_from_numpy_shares_plain_arrays_and_copies_read_only_ones() -> None:
    host = np.arange(3.0)
    made: Any = get("torch").fast_from_numpy(host)
    host[0] = 7
    assert made.tolist() == [7, 1, 2]
    host.flags.writeable = False
    copied: Any = get("torch").fast_from_numpy(host)
    copied[0] = 0
    assert host.tolist() == [7, 1, 2]


def test_tensors_alike_are_stacked_at_once() -> None:
    stack_many: Any = get("torch").stack_many
    assert stack_many([torch.ones(2), torch.zeros(2)]).tolist() == [[1, 1], [0, 0]]
    assert stack_many([torch.ones(2), torch.zeros(3)[1:]]) is None
    assert stack_many([torch.ones(2), torch.zeros(2).double()]) is None


def test_a_list_of_one_tensor_in_a_list_has_an_axis_for_each_list() -> None:
    assert xbridge.asarray([[torch.ones(2)]]).shape == (1, 1, 2)
    assert xbridge.asarray([[torch.ones(3)[1:]]]).shape == (1, 1, 2)


def test_numpys_second_dtype_of_64_unsigned_bits_keeps_its_values() -> None:
    host = np.array([0, 1, 2**64 - 1], np.ulonglong)
    made = get("torch").from_numpy(host)
    assert (made.dtype, made.tolist()) == (torch.uint64, [0, 1, 2**64 - 1])


def test_a_tensor_of_zeros_that_has_no_memory_is_made_on_its_device() -> None:
    x = torch._efficientzerotensor((3,), device="meta")
    assert get("torch").materialize(x).device.type == "meta"


def test_host_memory_is_one_device_of_torchs_whatever_its_index_elsewhere() -> None:
    assert get("torch").resolve_device(CPU, xbridge.Device("cpu:1")) == CPU


def test_an_accelerator_that_is_not_there_is_answered_with_the_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import xbridge.backends.torch as module

    monkeypatch.setattr(module, "accelerators", tuple)
    monkeypatch.setattr(module, "devices", lambda: (CPU, xbridge.Device("npu:0")))
    with pytest.raises(xbridge.DeviceError) as caught:
        get("torch").resolve_device(xbridge.Device("gpu"), CPU)
    assert caught.value.reason == "torch has no device gpu here, only cpu, npu:0"
