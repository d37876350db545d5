"""What the calls of `tests/api/messages.txt` name, if they need torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch_kinds import Wrapper  # noqa: F401 -- calls name it

import xbridge

if TYPE_CHECKING:
    from collections.abc import Callable

A = np.arange(3.0)
F = torch.ones(2)
META = torch.ones(2, device="meta")


def host(make: Callable[[], Any], **options: Any) -> object:
    return xbridge.to_numpy(make(), **options)


def torchs(make: Callable[[], Any], **options: Any) -> object:
    return xbridge.to_backend(make(), "torch", **options)


def leaf(make: Callable[[], Any]) -> object:
    return xbridge.asarray(make(), requires_grad=True)


def tracked() -> Any:
    return torch.ones(2, requires_grad=True)


def shrunk() -> Any:
    """A tensor whose storage no longer reaches as far as it does."""
    x = torch.ones(2)
    x.untyped_storage().resize_(4)
    return x


def ungraded(call: Callable[[], object]) -> object:
    """Make the call with gradients off."""
    with torch.no_grad():
        return call()


def dual() -> object:
    forward_ad: Any = torch.autograd.forward_ad
    with forward_ad.dual_level():
        return xbridge.to_numpy(forward_ad.make_dual(F, F))


def traced() -> object:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(lambda x: x + xbridge.to_numpy(F).sum())(F)


def faked() -> object:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return xbridge.to_numpy(F)
