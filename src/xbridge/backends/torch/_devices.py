"""Find torch's devices, make one current, and exchange memory on a device with other libraries."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from xbridge._core.devices import CUDA, CUDA_MANAGED, ROCM
from xbridge._core.protocol import Exporter
from xbridge._host.device_exporter import OnDeviceExporter
from xbridge.backends.torch import _private


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
    """Return a tensor over the memory of an exporter."""
    kind, number = shown.__dlpack_device__()
    with torch.cuda.device(number) if kind in (CUDA, ROCM, CUDA_MANAGED) else nullcontext():
        taken: torch.Tensor = torch.from_dlpack(shown)  # type: ignore[attr-defined] # it is public
        return taken
