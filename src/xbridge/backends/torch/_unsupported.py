"""Recognize tensors whose memory is not their values, and give the reason and a hint for each kind.

A tensor may be fake, meta, freed, traced or wrapped by a transform, and still look like any other. Torch's
own conversions refuse some of these kinds and read garbage from the others.
"""

from __future__ import annotations

from functools import partial

import torch
from torch.autograd import forward_ad
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from xbridge._core.protocol import HostArray, Unsupported
from xbridge.backends.torch import _private
from xbridge.backends.torch._private import dual_levels
from xbridge.errors import UnsupportedArrayError, type_of

_refused = partial(Unsupported, UnsupportedArrayError)
_ALIGNED = "a function with @xbridge.aligned"
_is_traced = torch.compiler.is_dynamo_compiling


def why_not_memory(x: torch.Tensor) -> Unsupported | None:  # noqa: PLR0911 -- one for each reason
    """Say why a tensor is not an array in memory; None if it is."""
    cls = type(x)
    if cls is not torch.Tensor and isinstance(x, (UninitializedParameter, UninitializedBuffer)):
        return _refused("an uninitialized parameter has no memory yet", "x.materialize(shape)")
    if x.is_nested:
        return _refused("a nested tensor is ragged", "x.unbind()")
    if cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        ways = {"DTensor": "x.full_tensor() or x.to_local()", "MaskedTensor": "x.to_tensor(value)"}
        return _refused(f"{type_of(x)} is not plain memory", ways.get(cls.__name__, ""))
    if x.is_quantized:
        return _refused("a quantized tensor holds codes, not values", "x.dequantize()")
    if x.layout is not torch.strided:
        return _refused(f"its layout is {x.layout}", "x.to_dense()")
    if x.is_meta:
        return _refused("a meta tensor holds no data")
    if _private.is_wrapped(x) or _private.is_functional(x):
        return _refused("a function transform is running over it", _ALIGNED)
    return None


def why_not_values(x: torch.Tensor) -> Unsupported | None:
    """Say why the bytes of a tensor are not its values; None if they are."""
    if is_dual(x):
        return _refused("its forward-mode tangent would be lost", "forward_ad.unpack_dual(x).primal")
    if _private.get_dispatch_mode(_private.PROXY) is not None:
        return _refused("a tracer would bake its values into the program", _ALIGNED)
    if _private.get_dispatch_mode(_private.FAKE) is not None:
        return _refused("a fake mode is running, which computes no values")
    return storage_fault(x)


def storage_fault(x: torch.Tensor) -> Unsupported | None:
    """Return the refusal of a tensor whose storage is too small for its elements; None of any other."""
    # The arithmetic of `MemoryLayout.span`, whose caller must be sure that there is memory.
    if x.is_contiguous():
        reach = x.numel()
    else:
        reach = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1
    need = (x.storage_offset() + reach) * x.itemsize
    has_memory = x.numel() and not _private.is_zerotensor(x)
    if has_memory and (not x.data_ptr() or x.untyped_storage().nbytes() < need):
        return _refused("its storage was freed or shrunk")
    return None


def outside_storage(x: torch.Tensor) -> Unsupported | None:
    """Return the refusal of a tensor whose operations would read beyond its storage, unchecked by torch."""
    if is_whole(x) or _is_traced():
        return None
    inside = x
    while _private.is_wrapped(inside):
        inside = _private.get_unwrapped(inside)
    return storage_fault(inside) if why_not_memory(inside) is None else None


def check_readable(x: torch.Tensor) -> torch.Tensor:
    """Return `x`; raise if torch would read beyond its storage."""
    refused = None if is_whole(x) else outside_storage(x)
    if refused:
        raise refused.error.build("read a torch tensor", refused.reason, refused.hint)
    return x


def is_whole(x: torch.Tensor) -> bool:
    """Return True for an ordinary tensor without gaps, at the start of a storage that holds all of it.

    Return False if torch cannot tell, as for a tensor without storage.
    """
    if type(x) is not torch.Tensor or _is_traced():
        return False
    try:
        return x.is_contiguous() and not x.storage_offset() and len(x.untyped_storage()) >= x.nbytes
    except (RuntimeError, TypeError):
        return False


def apply_pending(x: torch.Tensor) -> torch.Tensor:
    """Return `x` with a pending conjugate or negative applied; `x` itself if none is pending."""
    return x.resolve_conj().resolve_neg()


def may_require_grad(x: torch.Tensor) -> bool:
    """Return True if autograd records a tensor, or may do so: a transform hides the tensor that it wraps."""
    if x.requires_grad or is_dual(x):
        return True
    return not torch.compiler.is_dynamo_compiling() and _private.is_wrapped(x)


def is_dual(x: torch.Tensor) -> bool:
    if dual_levels._current_level < 0:
        return False
    try:
        return forward_ad.unpack_dual(x).tangent is not None  # type: ignore[no-untyped-call] # torch leaves it untyped
    except RuntimeError:  # the tensor has no strides, so that torch gives it no tangent
        return False


def shape_of(x: torch.Tensor) -> tuple[int, ...]:
    """Return the shape of a tensor; of a nested one the first axis, of an uninitialized one no axes."""
    if isinstance(x, (UninitializedParameter, UninitializedBuffer)):
        return ()
    return (x.size(0),) if x.is_nested else tuple(x.shape)


def is_inside(x: torch.Tensor, host: HostArray) -> bool:
    """Return True if all elements are inside the storage. `host` is a view of the tensor."""
    # This and `overlaps` are `MemoryLayout.span` and `may_overlap_itself`, written out. They run in each call
    # of `fast_to_numpy` for a view, where a `MemoryLayout` would make them take 3 to 5 times as long: 14 us
    # in place of 4.7 us, and 11 us in place of 2 us (measured side by side). Torch has no negative strides.
    start = x.storage_offset() * host.itemsize
    ends = zip(host.shape, host.strides)  # noqa: B905 -- of one array
    reach = sum([(n - 1) * stride for n, stride in ends]) + host.itemsize
    return x.data_ptr() > start and len(x.untyped_storage()) >= start + reach


def overlaps(host: HostArray) -> bool:
    """Return True if two elements may share memory. No stride is negative."""
    behind = host.itemsize
    for stride, n in sorted(zip(host.strides, host.shape)):  # noqa: B905 -- of one array
        if n > 1 and stride < behind:
            return True
        behind += (n - 1) * stride
    return False
