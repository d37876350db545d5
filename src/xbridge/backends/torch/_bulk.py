"""Checks of many arrays at once, because a check of each would take as long as its conversion."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from xbridge._core.protocol import HostArray

_is_dense = attrgetter("flags.carray")
"""True for an aligned, writable array in C order. `fast_from_numpy` accepts more, but checks more slowly."""

_dtype = attrgetter("dtype")
_offset = torch.Tensor.storage_offset
_storage = torch.Tensor.untyped_storage


def fast_from_numpy_many(hosts: list[HostArray], /) -> list[torch.Tensor] | None:
    """Return `fast_from_numpy` of each array, or None if one of them is not ordinary."""
    if torch.is_inference_mode_enabled():
        return None
    if not all(map(_is_dense, hosts)):
        return None
    try:
        return list(map(torch.from_numpy, hosts))
    except (TypeError, ValueError):
        return None


def stack_many(xs: list[torch.Tensor], /) -> torch.Tensor | None:
    """Stack tensors along one axis, or return None if they differ or may differ.

    Without these checks, torch would promote dtypes and read freed storage, without an error.
    """
    if torch.compiler.is_dynamo_compiling() or xs[0].is_quantized:
        return None
    if not xs[0].is_cpu and any(x.is_conj() or x.is_neg() for x in xs):
        return None
    if len(set(map(_dtype, xs))) > 1:
        return None
    try:
        # The tensor that begins last reaches as far as any, if all have one shape: torch checks that.
        reach = max(map(_offset, xs)) * xs[0].itemsize + xs[0].nbytes
        dense = all(map(torch.Tensor.is_contiguous, xs))
        if not dense or min(map(len, map(_storage, xs))) < reach:
            return None
        return torch.stack(xs)
    except (RuntimeError, TypeError):
        return None
