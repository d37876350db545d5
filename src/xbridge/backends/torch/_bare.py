"""Tensors that are nothing but their bytes, and the devices and modes in which buffers may move them."""

from __future__ import annotations

from functools import cache

import torch
from torch.autograd import forward_ad
from torch.utils import _python_dispatch

from xbridge.backends.torch._pinned import ITEMS
from xbridge.backends.torch._threads import is_captured, streams_of

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_open(place: torch.device) -> bool:
    """Return True if pinned buffers are tested with the device, and no mode or transform is active."""
    if place.type not in ("cuda", torch._C._get_privateuse1_backend_name()):
        return False
    if forward_ad._current_level >= 0 or _python_dispatch._is_in_torch_dispatch_mode:
        return False
    if torch._C._functorch.maybe_current_level() is not None or torch.compiler.is_dynamo_compiling():
        return False
    api = streams_of(place)
    return api is not None and not is_captured(api)


def is_bare(x: torch.Tensor, keys: frozenset[int]) -> bool:
    """Return True if a tensor is nothing but its bytes."""
    if type(x) not in _PLAIN or x.dtype not in ITEMS or x.requires_grad or not x.numel():
        return False
    return torch._C._dispatch_keys(x).raw_repr() in keys


@cache
def bare_keys(kind: str) -> frozenset[int]:
    """Return the dispatch keys of a tensor on a kind of device with nothing pending."""
    found = []
    for mode in (False, True):
        with torch.inference_mode(mode):
            found.append(torch._C._dispatch_keys(torch.empty(0, device=kind)).raw_repr())
    return frozenset(found)
