"""Torch's `transfers`: packs of small arrays, pieces of large ones, and conversions in other threads.

`Tensor.to` makes all moves in which torch has to take part, because of gradients, tracing, modes or
subclasses, and those that would gain nothing from buffers: small tensors, and those in pinned memory.

The other modules of this package are imported when they are first needed: most programs move nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from xbridge._core.devices import CPU, Device
from xbridge._core.protocol import HostArray, Transfers
from xbridge.backends.torch import _private
from xbridge.backends.torch._private import dispatch_modes, dual_levels
from xbridge.backends.torch._unsupported import apply_pending, check_readable

_is_traced, _is_inference = torch.compiler.is_dynamo_compiling, torch.is_inference_mode_enabled
_keys, _raw = _private.dispatch_keys, _private.raw_keys

DECLINED = (AssertionError, RuntimeError, TypeError, ValueError)
"""What torch and its modes raise for a dtype, a device or a tensor that they refuse. Others are bugs."""


def to_device(x: torch.Tensor, device: Device, /) -> torch.Tensor:
    """Copy to new memory on another device, complete for any stream."""
    from xbridge.backends.torch._transfer.pinned import sizes  # noqa: PLC0415 -- for a device

    x = apply_pending(check_readable(x))
    if _is_traced():
        return x.to(device._word)  # an older compiler follows a plain string alone
    goal = torch.device(device)
    if x.numel() * x.itemsize < sizes().least:
        return x.to(goal)
    return _move_large(x, goal)


def _move_large(x: torch.Tensor, goal: torch.device) -> torch.Tensor:
    """Copy a large tensor to another device, through buffers if it is plain."""
    from xbridge.backends.torch._transfer import large  # noqa: PLC0415 -- for a device
    from xbridge.backends.torch._transfer.pinned import is_bare, may_use_buffers  # noqa: PLC0415 -- for a device

    place = goal if x.is_cpu else x.device
    if x.is_cpu is (goal.type == "cpu") or not may_use_buffers(place) or (x.is_cpu and x.is_pinned()):
        return x.to(goal)
    if not is_bare(x):
        return x.to(goal)
    return large.send_tensor(x, goal) if x.is_cpu else large.fetch_tensor(x)


def _late(module: str, word: str) -> Callable[..., Any]:
    """Return a method that calls a function of a module here, which is imported when it is first needed."""

    def call(_: Transfers, *args: Any) -> Any:
        return getattr(import_module(f"{__name__}.{module}"), word)(*args)

    return call


class _TorchTransfers(Transfers):
    has_packs = True

    def fast_to_device(self, device: Any, /) -> Callable[[HostArray], torch.Tensor | None] | None:
        try:
            goal = torch.device(device)
        except (RuntimeError, TypeError):
            return None
        if goal.type in ("cpu", "meta"):
            return None
        from xbridge.backends.torch._transfer.packs import DTYPE_OF  # noqa: PLC0415 -- for a device
        from xbridge.backends.torch._transfer.pinned import sizes  # noqa: PLC0415 -- for a device

        from_numpy = torch.from_numpy

        def there(host: HostArray) -> torch.Tensor | None:
            # NumPy's flag `carray` means aligned, writable and in C order: `from_numpy` warns of read-only
            # arrays, and refuses negative strides. `Tensor.to` without `non_blocking` waits for its copy.
            if not host.flags.carray or host.dtype not in DTYPE_OF:
                return None
            if _is_traced() or _is_inference() or dispatch_modes._is_in_torch_dispatch_mode:
                return None
            try:
                x = from_numpy(host)
                return x.to(goal) if host.nbytes < sizes().least else _move_large(x, goal)
            except DECLINED:  # an integer by its other C name; any other error comes from the plan too
                return None

        return there

    def fast_from_device(self, x: torch.Tensor, /) -> HostArray | None:
        from xbridge.backends.torch._transfer.packs import NUMPY_OF  # noqa: PLC0415 -- for a device
        from xbridge.backends.torch._transfer.pinned import bare_keys, sizes  # noqa: PLC0415 -- for a device

        if _is_traced() or dual_levels._current_level >= 0 or dispatch_modes._is_in_torch_dispatch_mode:
            return None
        try:
            if x.is_cpu or x.requires_grad or x.dtype not in NUMPY_OF:
                return None
            # The dispatch keys show in one integer that no conjugate is pending and no transform wraps the
            # tensor.
            if _raw(_keys(x)) not in bare_keys(x.device.type) or not x.is_contiguous():
                return None
            nbytes = x.nbytes
            if len(x.untyped_storage()) < x.storage_offset() * x.itemsize + nbytes:
                return None
            return (x.cpu() if nbytes < sizes().least else to_device(x, CPU)).numpy()
        except DECLINED:
            return None

    send_many = _late("packs", "send_many")
    fetch_many = _late("packs", "fetch_many")
    begin_send = _late("packs", "begin_send")
    begin_fetch = _late("packs", "begin_fetch")
    release_buffers = _late("pinned", "release_buffers")
    threaded = _late("streams", "threaded")
    thread_context = _late("streams", "thread_context")
    queue_mark = _late("streams", "queue_mark")

    def to_device_many(self, xs: list[torch.Tensor], device: Device, /) -> list[torch.Tensor]:
        from xbridge.backends.torch._transfer import packs  # noqa: PLC0415 -- for a device

        moved = packs.to_device_many(xs, device) or [None] * len(xs)
        return [to_device(x, device) if y is None else y for x, y in zip(xs, moved, strict=True)]

    def streams_to_device(self, nbytes: int, device: Device, /) -> bool:
        from xbridge.backends.torch._transfer.pinned import may_use_buffers, sizes  # noqa: PLC0415 -- for a device

        return nbytes >= sizes().least and may_use_buffers(torch.device(device))

    def stream_to_device(self, host: HostArray, device: Device, dtype: str | None = None, /) -> torch.Tensor:
        from xbridge.backends.torch._transfer import large  # noqa: PLC0415 -- for a device

        return large.send(host, torch.device(device), dtype)


transfers: Transfers = _TorchTransfers()
