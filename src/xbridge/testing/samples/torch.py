"""Samples of PyTorch: strides, pending conjugates and negations, and tensors in graphs.

Bits are stored as bytes, and a pending operation is compensated by inverting sign bits. So no arithmetic of
torch or of the backend is involved. A copy to a device may still be under way when the tensor is returned: a
reader must be ordered after it on the stream.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch.autograd.graph import get_gradient_edge

from xbridge.extend import CPU, category, is_inexact, native_dtype
from xbridge.testing.samples import LayoutCase
from xbridge.testing.samples import numpy as host

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from xbridge import Device
    from xbridge.protocol import Array, HostArray

    Shape: TypeAlias = tuple[int, ...]
    Make: TypeAlias = Callable[..., Array]


__all__ = ["cases", "dense", "reaches", "read", "refused", "write"]

_TOP = -1 if sys.byteorder == "little" else 0
"""The index of the byte with the sign."""

_PARENTS = {"float32": "complex64", "float64": "complex128"}
"""The complex dtype whose imaginary part a negated tensor is."""


# -- bits ----------------------------------------------------------------------------------------


def dense(values: HostArray, device: Device = CPU) -> Tensor:
    """Make a new tensor in torch's own memory; a device may copy the bytes later."""
    dtype = getattr(torch, values.dtype.name)
    tensor = torch.empty(values.shape, dtype=dtype)
    raw = tensor.reshape(-1).view(torch.uint8)
    raw.numpy()[...] = values.reshape(-1).view(np.uint8)
    if device == CPU:
        return tensor
    return raw.to(torch.device(device), non_blocking=True).view(dtype).reshape(values.shape)


def _negated(values: HostArray, *, first: int = 0) -> HostArray:
    """Invert the signs of the values, or of the imaginary parts alone if `first` is 1."""
    parts = 2 if values.dtype.kind == "c" else 1
    raw = values.copy().reshape(-1).view(np.uint8).reshape(values.size, parts, values.itemsize // parts)
    raw[:, first:, _TOP] ^= 0x80
    return raw.reshape(-1).view(values.dtype).reshape(values.shape)


def read(x: Tensor, /) -> HostArray:
    """Copy the storage to the host, and do the pending operation by inverting sign bits."""
    conj, neg = x.is_conj(), x.is_neg()
    raw = x.detach()
    raw = raw.conj() if conj else raw
    raw = torch._neg_view(raw) if neg else raw  # noqa: SLF001 -- the one way to take the bit off
    name = str(x.dtype).removeprefix("torch.")
    line = raw.cpu().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
    values = line.numpy().view(native_dtype(name)).reshape(tuple(x.shape))
    values = _negated(values) if neg else values
    return _negated(values, first=1) if conj else values


def write(x: Tensor, /) -> None:
    """Assign other bits; torch raises if autograd or inference mode forbids it."""
    if x.is_inference() and not torch.is_inference_mode_enabled():
        message = "torch would refuse this inference tensor, but only after writing it"
        raise RuntimeError(message)
    values = read(x)
    mask = np.uint8(1 if x.dtype == torch.bool else 0xFF)
    changed = values.reshape(-1).view(np.uint8) ^ mask
    x.copy_(dense(changed.view(values.dtype).reshape(values.shape)))


def reaches(result: Tensor, source: Tensor, /) -> bool:
    """Return True if the graph leads from one tensor to another."""
    if not (result.requires_grad and source.requires_grad):
        return False
    goal = get_gradient_edge(source).node
    ahead, seen = [get_gradient_edge(result).node], set()
    while ahead:
        node = ahead.pop()
        if node is goal:
            return True
        if node not in seen:
            seen.add(node)
            ahead += [before for before, _ in node.next_functions if before is not None]
    return False


# -- layouts -------------------------------------------------------------------------------------


_part = partial(host.part_of, dense)


def _unfolded(values: HostArray, device: Device = CPU) -> Tensor:
    line = host.base_of_overlapping(host.opaque(values)).view(values.dtype)
    return dense(line, device).as_strided(values.shape, (1,) * values.ndim)


def _without_nan(values: HostArray) -> HostArray:
    """Replace NaN, whose bits torch may change when it applies a pending operation."""
    return np.where(np.isnan(values), np.ones_like(values), values)


def _neg(values: HostArray, device: Device = CPU) -> Tensor:
    pairs = np.stack([values, _negated(values)], -1)
    return dense(pairs.view(_PARENTS[values.dtype.name])[..., 0], device).conj().imag


def _leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_()


def _view_of_a_grad(values: HostArray, device: Device = CPU) -> Tensor:
    """Make a view of a gradient, which keeps its leaf alive."""
    leaf = _leaf(dense(np.zeros_like(values), device))
    leaf.grad = dense(values, device)
    view = leaf.grad[...]
    view.leaf = leaf  # type: ignore[attr-defined] # tensors take any attribute
    return view


def _plain(make: Make, takes: Callable[[str, Shape], bool] = host.anywhere) -> LayoutCase:
    return LayoutCase(make, takes=takes, require_grad=_leaf, make_on_device=make)


def _folded(make: Make, takes: Callable[[str, Shape], bool]) -> LayoutCase:
    return _plain(make, takes)._replace(fold=lambda values: read(make(values)))


def _tracked(make: Make) -> LayoutCase:
    make = torch.enable_grad()(make)
    return LayoutCase(make, takes=_inexact, tracked=True, writable=False, make_on_device=make)


def _inexact(dtype: str, _shape: Shape) -> bool:
    return is_inexact(dtype)


_inference = torch.inference_mode()(dense)

cases: dict[str, LayoutCase] = {
    "contiguous": _plain(dense),
    "transposed": _plain(
        lambda values, device=CPU: dense(values.T.copy(), device).permute([*range(values.ndim)[::-1]]),
        host.stretched,
    ),
    "channels-last": _plain(
        lambda values, device=CPU: dense(np.moveaxis(values, 1, -1).copy(), device).movedim(-1, 1),
        lambda _, shape: len(shape) > 2,
    ),
    "strided": _plain(_part(*host.EVERY_SECOND), host.stretched),
    "offset": _plain(_part(slice(1, None), lambda n: n + 1)),
    "expanded": _folded(
        lambda values, device=CPU: dense(host.base_of_broadcast(values).copy(), device).expand(values.shape),
        host.repeated,
    )._replace(writable=False),  # torch refuses to assign to it
    "unfolded": _folded(_unfolded, host.slanted),
    "conj": _plain(
        lambda values, device=CPU: dense(_negated(values, first=1), device).conj(),
        lambda dtype, _: category(dtype) == "complex",
    )._replace(fold=_without_nan),
    "neg": _plain(_neg, lambda dtype, _: dtype in _PARENTS)._replace(fold=_without_nan),
    "shared memory": LayoutCase(
        lambda values: dense(values).share_memory_(),  # type: ignore[no-untyped-call] # torch leaves it untyped
        require_grad=_leaf,
    ),
    "inference": LayoutCase(_inference, writable=False, make_on_device=_inference),
    "leaf": _tracked(lambda values, device=CPU: _leaf(dense(values, device))),
    "Parameter": _tracked(lambda values, device=CPU: torch.nn.Parameter(dense(values, device))),
    "non-leaf": _tracked(lambda values, device=CPU: _leaf(dense(values, device)).clone())._replace(
        writable=True
    ),
    "view of a leaf": _tracked(lambda values, device=CPU: _leaf(dense(values, device))[...]),
    "view of a grad": _plain(_view_of_a_grad, _inexact),
}


# -- unsupported arrays --------------------------------------------------------------------------


def _freed(dtype: torch.dtype = torch.float32) -> Tensor:
    """Make a tensor whose storage has released its memory."""
    tensor = torch.ones(4, dtype=dtype)
    tensor.untyped_storage().resize_(0)
    return tensor


refused: dict[str, Callable[[], Array]] = {
    "sparse": lambda: torch.eye(2).to_sparse(),
    "sparse, tracked": lambda: torch.eye(2).to_sparse().requires_grad_(),
    "mkldnn": lambda: torch.ones(2, 2).to_mkldnn(),
    "meta": lambda: torch.ones(2, device="meta"),
    "uninitialized": torch.nn.UninitializedParameter,
    "freed": _freed,
    "freed, conjugated": lambda: _freed(torch.complex64).conj(),
    "complex32, conjugated": lambda: torch.view_as_complex(torch.ones(2, 2).half()).conj(),
}
