"""Where tensors can be, in our words, and how memory of a device is taken over there."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from xbridge._core.devices import CPU, CUDA, CUDA_MANAGED, ROCM, device_named
from xbridge.errors import DeviceError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Exporter


def named(device: torch.device) -> Device:
    """What one of torch's devices is called here."""
    return CPU if device.type == "cpu" else device_named(str(device))


def accelerators() -> tuple[str, ...]:
    """The kinds of device that torch may have, the one of an extension last."""
    return ("cuda", "xpu", "mps", torch._C._get_privateuse1_backend_name())


def count(kind: str) -> int:
    """How many devices of a kind are here."""
    module = getattr(torch, kind, None)
    return int(module.device_count()) if module is not None else 0


def current(device: torch.device) -> AbstractContextManager[object]:
    """Makes a device the current one; for those that are always current, nothing."""
    module = getattr(torch, device.type, None)
    guard: AbstractContextManager[object] = getattr(module, "device", nullcontext)(device.index)
    return guard


def take(shown: Exporter) -> torch.Tensor:
    """A tensor over memory that somebody shows, by DLPack or else by the CUDA array interface."""
    if not hasattr(shown, "__dlpack__"):
        return _over(getattr(shown, "__cuda_array_interface__"), shown)  # noqa: B009 -- the other protocol
    kind, number = shown.__dlpack_device__()
    there = torch.cuda.device(number) if kind in (CUDA, ROCM, CUDA_MANAGED) else nullcontext()
    with there:
        taken: torch.Tensor = torch.from_dlpack(shown)  # type: ignore[attr-defined] # it is public
        return taken


def _over(interface: dict[str, Any], owner: object) -> torch.Tensor:
    """A tensor over what the CUDA array interface of its owner speaks of, on the device that has it.

    Torch does not ask which one that is, and copies from there to the one that it was told; nor does it wait
    for the stream on which the memory is being written.
    """
    now = torch.cuda.current_device()
    for number in (now, *(other for other in range(count("cuda")) if other != now)):
        tensor = torch.as_tensor(owner, device=f"cuda:{number}")
        if tensor.data_ptr() == interface["data"][0]:
            break
    else:
        raise DeviceError.build("take over memory that lies on no CUDA device", "torch copied it", "x.copy()")
    stream = interface.get("stream")
    if stream in (1, 2):  # the two default streams, of which torch has no handle
        torch.cuda.synchronize(tensor.device)
    elif stream is not None:
        torch.cuda.ExternalStream(stream, tensor.device).synchronize()  # type: ignore[no-untyped-call] # theirs
    return tensor
