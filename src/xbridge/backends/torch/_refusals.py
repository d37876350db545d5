"""Refuse derivatives that torch gets wrong, or cuts in silence."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch._C._functorch import CGradInterpreterPtr, TransformType, get_interpreter_stack
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.autograd import forward_ad
from torch.autograd.graph import _engine_run_backward as run_backward
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from xbridge._derive.functions import no_derivative_error

if TYPE_CHECKING:
    from collections.abc import Callable

_functorch = torch._C._functorch
_level = _functorch.maybe_current_level

NOTHING = nullcontext()


def with_gradients() -> AbstractContextManager[object]:
    """Leave inference mode, and enable gradients, so that a function may differentiate inside of it."""
    recording = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    return NOTHING if recording else torch.inference_mode(mode=False)


def unwrap_batch(x: torch.Tensor) -> torch.Tensor:
    """Return the examples of a batch as a tensor, which knows its graph and its tangent."""
    while _functorch.is_batchedtensor(x):
        x = _functorch.get_unwrapped(x)
    return x


def has_tangent(x: torch.Tensor, within: int | None = None) -> bool:
    """Return True if a tensor has a tangent in the innermost transform that makes tangents.

    With `within`, transforms inside of that level do not count.
    """
    while _functorch.is_functorch_wrapped_tensor(x):
        level, levels = _functorch.maybe_get_level(x), get_interpreter_stack() or []
        counts = 0 < level <= (len(levels) if within is None else within)
        if counts and levels[level - 1].key() == TransformType.Jvp:
            with ExitStack() as stack:
                while (_level() or 0) > level:  # a batch has no rule for what follows
                    stack.enter_context(temporarily_pop_interpreter_stack())
                return not x.is_inference() and forward_ad.unpack_dual(x).tangent is not None  # type: ignore[no-untyped-call] # torch leaves it untyped
        x = _functorch.get_unwrapped(x)
    return False


def is_tracked(x: torch.Tensor) -> bool:
    """Return True if a tensor has a graph or a tangent."""
    return unwrap_batch(x).requires_grad or has_tangent(x)


_T = torch.Tensor
_LEAVING = {
    *(_T.detach, _T.detach_, _T.data.__get__, _T.item, _T.tolist, _T.numpy),  # type: ignore[attr-defined] # a getter
    *(_T.__array__, _T.__float__, _T.__int__, _T.__complex__, _T.__dlpack__),
}


_LEAVES_TORCH = "it detaches what torch follows, or takes its numbers out of torch"
_MAKES_ANOTHER = re.compile("new_.*|.*_like")
"""Names of functions whose results have only the shape and the dtype of a tensor."""


class Departures(TorchFunctionMode):
    """A mode that notices if tracked tensors leave the graph, as by `detach`, or lack a derivative."""

    def __init__(self, follows: Callable[[torch.Tensor], bool], *, backward: bool = False) -> None:
        super().__init__()
        self._follows, self._backward = follows, backward
        self.reason = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.autograd.grad:  # a call of torch itself, within which this mode would see no other
            return self._differentiate(*args, **kwargs)
        made = func(*args, **kwargs)
        leaves = func in _LEAVING or not torch.is_grad_enabled()
        if leaves or not _MAKES_ANOTHER.fullmatch(func.__name__):
            with with_gradients():
                if self._follow_any((args, kwargs)) and (
                    leaves or (not self._backward and self._loses(made))
                ):
                    self.reason = _LEAVES_TORCH if leaves else f"torch has no derivative of {func.__name__}"
        return made

    def _differentiate(self, outputs: Any, inputs: Any, grad_outputs: Any, **options: Any) -> Any:
        """Do what `torch.autograd.grad` does, and see the calls of the backward pass if torch.func asks."""
        if not (isinstance(outputs, (tuple, list)) and options["create_graph"] and options["allow_unused"]):
            return torch.autograd.grad(outputs, inputs, grad_outputs, **options)
        ends, xs, seeds = tuple(outputs), tuple(inputs), tuple(grad_outputs)
        with self:
            return run_backward(ends, seeds, True, True, xs, True, accumulate_grad=False)  # noqa: FBT003 -- torch's order

    def _follow_any(self, tree: Any) -> bool:
        return any(self._follows(x) for x in tree_leaves(tree) if isinstance(x, torch.Tensor))

    def _loses(self, made: Any) -> bool:
        """Return True if a result is made of inexact numbers that torch does not follow."""
        ys = [y for y in tree_leaves(made) if isinstance(y, torch.Tensor) and _is_inexact(y)]
        return bool(ys) and not self._follow_any(ys)


def _is_inexact(x: torch.Tensor) -> bool:
    return x.dtype.is_floating_point or x.dtype.is_complex


class NoTangents(TorchFunctionMode):
    """A mode in which `torch.no_grad` holds for tangents too, as they agree with gradients then."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name, self._level = name, _level() or 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        mixed = (_level() or 0) > self._level and self._mixes()
        if mixed and self._has_tangents(args):
            raise no_derivative_error(
                self._name,
                "it differentiates within torch.no_grad, where torch has tangents but no gradients",
                "the same outside of torch.no_grad, or for x.detach()",
            )
        if mixed or torch.is_grad_enabled():
            return func(*args, **(kwargs or {}))
        with forward_ad._set_fwd_grad_enabled(False):  # noqa: FBT003 -- torch's order
            made = func(*args, **(kwargs or {}))
        # A view has the tangent of its base even so. What is returned as given, as by `mul_`, keeps its own.
        given = {id(x) for x in tree_leaves((args, kwargs))}
        return tree_map_only(torch.Tensor, lambda y: y if id(y) in given else y.detach(), made)

    def _mixes(self) -> bool:
        """Return True if an inner transform differentiates where gradients are off."""
        inner = get_interpreter_stack()[self._level :]
        if not torch.is_grad_enabled():
            return any(it.key() == TransformType.Jvp for it in inner)
        return any(
            it.key() == TransformType.Grad and not CGradInterpreterPtr(it).prevGradMode() for it in inner
        )

    def _has_tangents(self, args: Any) -> bool:
        """Return True if any argument has a tangent outside of inner transforms."""
        return any(has_tangent(x, self._level) for x in tree_leaves(args) if isinstance(x, torch.Tensor))


_NORMS = {"layer_norm": None, "native_layer_norm": None, "batch_norm": 5, "instance_norm": 5}
"""Functions whose third derivatives are wrong in torch 2.13, and the position of the flag that they are in
training, where it matters."""


class RefuseNorms(TorchFunctionMode):
    """A mode that raises for functions whose third derivatives are wrong."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.__name__ in _NORMS:
            at = _NORMS[func.__name__]
            flag = (
                args[at] if at and at < len(args) else kwargs.get("training", kwargs.get("use_input_stats"))
            )
            if flag or at is None:
                raise no_derivative_error(
                    f"{self._name} three times",
                    f"the third derivatives of {func.__name__} are wrong in torch",
                    "(x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)",
                )
        return func(*args, **kwargs)
