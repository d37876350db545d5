"""Compute norms by operations that torch differentiates as often as asked.

The third derivatives of norms that depend on the numbers of a batch are wrong in torch 2.13, in every mode.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_OF_FUNCTIONAL = ("input", "running_mean", "running_var", "weight", "bias")
_OF_TORCH = ("input", "weight", "bias", "running_mean", "running_var")
_SETTINGS = ("training", "momentum", "eps")
_OF_LAYER = ("input", "normalized_shape", "weight", "bias", "eps")
_aten = torch.ops.aten
_NORMS: dict[Any, tuple[str, ...]] = {
    **dict.fromkeys((functional.layer_norm, torch.layer_norm, torch.native_layer_norm), _OF_LAYER),
    **dict.fromkeys((functional.batch_norm, functional.instance_norm), _OF_FUNCTIONAL + _SETTINGS),
    **dict.fromkeys((torch.batch_norm, torch.native_batch_norm, torch.instance_norm), _OF_TORCH + _SETTINGS),
    # Exported programs call operators.
    **dict.fromkeys((_aten.layer_norm, _aten.layer_norm.default), _OF_LAYER),
    **dict.fromkeys((_aten.native_layer_norm, _aten.native_layer_norm.default), _OF_LAYER),
    **dict.fromkeys((_aten.batch_norm, _aten.batch_norm.default), _OF_TORCH + _SETTINGS),
    **dict.fromkeys((_aten.native_batch_norm, _aten.native_batch_norm.default), _OF_TORCH + _SETTINGS),
    **dict.fromkeys((_aten.instance_norm, _aten.instance_norm.default), _OF_TORCH + _SETTINGS),
}
"""The parameters of the functions, in order. A norm of instances calls `training` another name."""

_DERIVING = {TransformType.Grad, TransformType.Jvp}


def is_norm(func: Any) -> bool:
    """Return True if third derivatives of a function of torch are wrong."""
    return func in _NORMS


def is_derived(level: int) -> bool:
    """Return True within a transform that differentiates, and that is inside of a level of transforms."""
    return any(it.key() in _DERIVING for it in (get_interpreter_stack() or [])[level:])


class ExactNorms(TorchFunctionMode):
    """A mode that computes norms by operations whose derivatives are right."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))  # which may write to running statistics
        names = _NORMS.get(func)
        if names is None:
            return made
        given = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
        of_instances = func.__name__.startswith("instance")
        trains = given.get("training", given.get("use_input_stats", of_instances))
        if names is not _OF_LAYER and not trains:
            return made
        x, weight, bias = given["input"], given.get("weight"), given.get("bias")
        axes = [*range(-len(given["normalized_shape"]), 0)] if names is _OF_LAYER else [*range(2, x.ndim)]
        if names is not _OF_LAYER:
            axes += [] if of_instances else [0]
            weight, bias = (y if y is None else y.reshape(-1, *[1] * (x.ndim - 2)) for y in (weight, bias))
        y = _normalize(x, axes, given.get("eps", 1e-5))
        y = y if weight is None else y * weight
        y = y if bias is None else y + bias
        if isinstance(made, torch.Tensor):
            return y.to(made.dtype)
        return (y.to(made[0].dtype), *made[1:])  # statistics, which are constants in torch


def _normalize(x: torch.Tensor, axes: list[int], eps: float) -> torch.Tensor:
    """Return a tensor with a mean of 0 and a variance of 1."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))  # torch computes in float32 at least
    centered = x - x.mean(axes, keepdim=True)
    return centered * (centered.square().mean(axes, keepdim=True) + eps).rsqrt()
