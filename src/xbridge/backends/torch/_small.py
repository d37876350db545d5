"""Move one ordinary array between the host and a device by torch's own call, with the checks that it lacks.

The core calls these functions in place of a plan, once a plan has shown that it would do no more. They
decline what torch has to take part in: modes, tracing, gradients, subclasses, pending operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils import _python_dispatch

from xbridge._core.devices import CPU, Device
from xbridge._core.protocol import HostArray
from xbridge.backends.torch._bare import bare_keys
from xbridge.backends.torch._devices import name_device
from xbridge.backends.torch._packs import DTYPE_OF, NUMPY_OF
from xbridge.backends.torch._pinned import sizes
from xbridge.backends.torch._transfer import to_device

_is_traced, _is_inference = torch.compiler.is_dynamo_compiling, torch.is_inference_mode_enabled
_keys, _raw = torch._C._dispatch_keys, torch._C.DispatchKeySet.raw_repr

DECLINED = (AssertionError, RuntimeError, TypeError, ValueError)
"""What torch and its modes raise for a dtype, a device or a tensor that they refuse. Others are bugs."""


def fast_to_device(device: Any, /) -> Callable[[HostArray], torch.Tensor | None] | None:
    """Return a function that copies an ordinary host array to a device, or returns None to decline.

    A device without an index is the one that is current in each call. Return None if torch has no such name.
    """
    try:
        goal = torch.device(device)
    except (RuntimeError, TypeError):
        return None
    if goal.type in ("cpu", "meta"):
        return None
    from_numpy = torch.from_numpy

    def there(host: HostArray) -> torch.Tensor | None:
        # NumPy's flag `carray` means aligned, writable and in C order: `from_numpy` warns of read-only
        # arrays, and refuses negative strides. `Tensor.to` without `non_blocking` waits for its copy.
        if not host.flags.carray or host.dtype not in DTYPE_OF:
            return None
        if _is_traced() or _is_inference() or _python_dispatch._is_in_torch_dispatch_mode:
            return None
        try:
            x = from_numpy(host)
            return x.to(goal) if host.nbytes < sizes().least else to_device(x, _indexed_device(goal))
        except DECLINED:  # an integer by its other C name; any other error comes from the plan too
            return None

    return there


def fast_from_device(x: torch.Tensor, /) -> HostArray | None:
    """Copy an ordinary tensor on a device to a new host array; return None to decline."""
    if _is_traced() or forward_ad._current_level >= 0 or _python_dispatch._is_in_torch_dispatch_mode:
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


def _indexed_device(goal: torch.device) -> Device:
    """Return the name of a device with an index: that of the current device if it has none."""
    api = getattr(torch, goal.type, None)
    if goal.index is None and hasattr(api, "current_device"):
        goal = torch.device(goal.type, api.current_device())
    return name_device(goal)
