"""Find torch's devices, make one current, and exchange memory on a device with other libraries."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from xbridge._core.devices import CUDA, CUDA_MANAGED, ROCM
from xbridge._core.protocol import Exporter
from xbridge._host.device_exporter import OnDeviceExporter
from xbridge.backends.torch import _private
from xbridge.errors import DeviceError


def accelerators() -> tuple[str, ...]:
    """Return the kinds of devices that torch may have. The last is that of an extension (PrivateUse1)."""
    return ("cuda", "xpu", "mps", _private.get_plugin_device())


def count_devices(kind: str) -> int:
    """Return the number of devices of a kind that are present."""
    module = getattr(torch, kind, None)
    return int(module.device_count()) if module is not None else 0


def make_current(device: torch.device) -> AbstractContextManager[object]:
    """Return a context that makes a device current, if its kind has a current device."""
    module = getattr(torch, device.type, None)
    guard: AbstractContextManager[object] = getattr(module, "device", nullcontext)(device.index)
    return guard


def to_dlpack(x: torch.Tensor, /) -> Exporter:
    """Return an exporter of a tensor, whatever device is current."""
    return OnDeviceExporter(x, make_current(x.device))


def from_dlpack(shown: Exporter, /) -> torch.Tensor:
    """Return a tensor over the memory of an exporter, by DLPack or else by the CUDA array interface."""
    if not hasattr(shown, "__dlpack__"):
        return _wrap_interface(getattr(shown, "__cuda_array_interface__"), shown)  # noqa: B009 -- not in the type
    kind, number = shown.__dlpack_device__()
    with torch.cuda.device(number) if kind in (CUDA, ROCM, CUDA_MANAGED) else nullcontext():
        taken: torch.Tensor = torch.from_dlpack(shown)  # type: ignore[attr-defined] # it is public
        return taken


def _wrap_interface(interface: dict[str, Any], owner: object) -> torch.Tensor:
    """Return a tensor over the memory of a CUDA array interface, on the device that has it.

    The interface does not name the device, and torch copies to the device that it is told. So each device is
    tried until the address shows that nothing was copied. Torch does not wait for the stream that writes the
    memory, so this function does.
    """
    now = torch.cuda.current_device()
    for number in (now, *(other for other in range(count_devices("cuda")) if other != now)):
        tensor = torch.as_tensor(owner, device=f"cuda:{number}")
        if tensor.data_ptr() == interface["data"][0]:
            break
    else:
        raise DeviceError.build("share memory that is on no CUDA device", "torch copied it", "x.copy()")
    stream = interface.get("stream")
    if stream in (1, 2):  # the protocol's numbers for the two default streams, which are not addresses
        torch.cuda.synchronize(tensor.device)
    elif stream is not None:
        torch.cuda.ExternalStream(stream, tensor.device).synchronize()  # type: ignore[no-untyped-call] # torch leaves it untyped
    return tensor
