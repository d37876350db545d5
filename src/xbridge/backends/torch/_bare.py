"""Recognize tensors that can be moved as plain bytes, and the modes in which pinned buffers may move them.

Torch's dispatch keys of a tensor show in one integer all that its dispatcher would do for it: autograd,
transforms, a conjugate bit. A tensor whose keys are those of a new empty tensor has nothing of this.
"""

from __future__ import annotations

from functools import cache

import torch
from torch.autograd import forward_ad
from torch.utils import _python_dispatch

from xbridge.backends.torch._pinned import ITEMS
from xbridge.backends.torch._threads import is_captured, streams_of

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def may_use_buffers(place: torch.device) -> bool:
    """Return True if the device is one with pinned buffers, and no mode, transform or capture is active."""
    if place.type not in ("cuda", torch._C._get_privateuse1_backend_name()):
        return False
    if forward_ad._current_level >= 0 or _python_dispatch._is_in_torch_dispatch_mode:
        return False
    if torch._C._functorch.maybe_current_level() is not None or torch.compiler.is_dynamo_compiling():
        return False
    api = streams_of(place)
    return api is not None and not is_captured(api)


def is_bare(x: torch.Tensor, keys: frozenset[int]) -> bool:
    """Return True if a tensor can be moved as plain bytes: nothing is pending on it and nothing tracks it."""
    if type(x) not in _PLAIN or x.dtype not in ITEMS or x.requires_grad or not x.numel():
        return False
    return torch._C._dispatch_keys(x).raw_repr() in keys


@cache
def bare_keys(kind: str) -> frozenset[int]:
    """Return the dispatch keys of plain tensors on a kind of device, in and out of inference mode."""
    found = []
    for mode in (False, True):
        with torch.inference_mode(mode):
            found.append(torch._C._dispatch_keys(torch.empty(0, device=kind)).raw_repr())
    return frozenset(found)
