"""A move that is repeated does what its plan did, and leaves to a plan what is not ordinary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from emulated.there import DEVICE, KIND, PACES, api, paced
from inside import get_backend, planned_arrays

import xbridge

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The inputs that are planned from now on. A move each way was planned before."""
    for device in (KIND, KIND, DEVICE, torch.device(KIND)):  # the first call may have loaded the backend
        xbridge.to_backend(np.ones(3), "torch", device=device)
    xbridge.to_numpy(torch.ones(3, device=KIND))
    return planned_arrays(monkeypatch)


@pytest.mark.parametrize("pace", PACES.values(), ids=PACES)
def test_fast_to_device__ordinary_array_is_not_planned(planned: list[Any], pace: bool) -> None:
    """The result is complete, of the same values, and in memory of its own."""
    with paced(pace):
        for word in ("float64", "int8", "bool", "complex64", "uint16"):
            for shape in ((), (0,), (5,), (2, 3)):
                a = np.ones(shape, word)
                for device in (KIND, DEVICE, torch.device(KIND)):
                    there = xbridge.to_backend(a, "torch", device=device)
                    with api.stream(api.Stream()):
                        assert str(there.device) == DEVICE
                        back = there.cpu().numpy()
                    assert (back.dtype, back.shape) == (a.dtype, a.shape)
                    assert (back == a).all()
    assert not planned


@pytest.mark.parametrize("pace", PACES.values(), ids=PACES)
def test_fast_from_device__ordinary_tensor_is_not_planned(planned: list[Any], pace: bool) -> None:
    """The result is new writable memory with all that the current stream has computed."""
    with paced(pace), api.stream(api.Stream()):
        for dtype in (torch.float64, torch.int8, torch.bool, torch.complex64):
            for shape in ((), (5,), (2, 3)):
                x = torch.full(shape, 1, device=KIND).to(dtype)
                host = xbridge.to_numpy(x)
                assert type(host) is np.ndarray
                assert host.flags.writeable
                assert (host.shape, host.tolist()) == (tuple(shape), np.ones(shape).tolist())
        assert xbridge.to_numpy(torch.arange(6, device=KIND)[2:]).tolist() == [2, 3, 4, 5]
    assert not planned


ODD_ARRAYS: dict[str, Callable[[], np.ndarray]] = {
    "read-only": lambda: np.frombuffer(bytes(16)),
    "strided": lambda: np.arange(6.0)[::2],
    "empty, with negative strides": lambda: np.lib.stride_tricks.as_strided(
        np.ones((0, 3)), strides=(-24, 8)
    ),
    "in Fortran order": lambda: np.ones((2, 3), order="F"),
    "of another byte order": lambda: np.arange(3.0).astype(">f8"),
    "of a dtype of another package": lambda: np.ones(3, pytest.importorskip("ml_dtypes").bfloat16),
    "of another name in C": lambda: np.arange(3, dtype=np.ulonglong),
    "of dates": lambda: np.zeros(2, "M8[s]"),
}


@pytest.mark.parametrize("make", ODD_ARRAYS.values(), ids=ODD_ARRAYS)
def test_fast_to_device__unusual_array_is_planned(make: Callable[[], np.ndarray], planned: list[Any]) -> None:
    """Unusual arrays arrive, or are refused, as in a first call."""
    a = make()
    try:
        there = xbridge.to_backend(a, "torch", device=KIND)
    except xbridge.DTypeError:
        assert a.dtype.kind == "M"
    else:
        assert there.cpu().tolist() == a.astype("float64").tolist()
    assert len(planned) == 1


ODD_TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "in other order": lambda: torch.arange(6.0, device=KIND).reshape(2, 3).t(),
    "conjugate": lambda: torch.ones(3, dtype=torch.complex64, device=KIND).conj(),
    "negative": lambda: torch.ones(3, dtype=torch.complex64, device=KIND).conj().imag,
    "of a dtype of another package": lambda: torch.ones(3, device=KIND).to(torch.bfloat16),
    "with grad": lambda: torch.ones(3, device=KIND, requires_grad=True),
}


@pytest.mark.parametrize("make", ODD_TENSORS.values(), ids=ODD_TENSORS)
def test_fast_from_device__unusual_tensor_is_planned(
    make: Callable[[], torch.Tensor], planned: list[Any]
) -> None:
    """Unusual tensors come back as in a first call."""
    x = make()
    host = xbridge.to_numpy(x)
    assert len(planned) == 1
    assert host.tolist() == x.detach().cpu().resolve_conj().resolve_neg().tolist()


def test_to_numpy__pending_operation_on_a_device_after_one_on_the_host() -> None:
    """What was cached for a conjugate on the host is not done with one on a device."""
    for device in ("cpu", "cpu", KIND):
        x = torch.full((3,), 1 + 2j, device=device).conj()
        assert xbridge.to_numpy(x).tolist() == [1 - 2j] * 3


@pytest.mark.parametrize("device", ["cpu", "meta", "gpu", "nowhere", 3.5, "cuda:x"])
def test_fast_to_device__declines_other_devices(device: object) -> None:
    """A device that is not torch's own name of an accelerator is left to a plan."""
    assert get_backend("torch").transfers.fast_to_device(device) is None
