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
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from xbridge.functions.rules import no_derivative_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from xbridge.errors import XBridgeError

_functorch = torch._C._functorch
_level = _functorch.maybe_current_level

NOTHING = nullcontext()


def with_gradients() -> AbstractContextManager[object]:
    """Leave inference mode, and enable gradients, so that a function may differentiate inside of it."""
    recording = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    return NOTHING if recording else torch.inference_mode(mode=False)


def unwrap(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor that holds the numbers of one in transforms."""
    while _functorch.is_functorch_wrapped_tensor(x):
        x = _functorch.get_unwrapped(x)
    return x


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


_MAKES_ANOTHER = re.compile("new_.*|.*_like")
"""Names of functions whose results have only the shape and the dtype of a tensor."""


class Origins(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch leaves it untyped
    """A mode that notices which tensors are computed from the numbers of others.

    It sees operations, so also those of code whose calls Python does not see, such as TorchScript.
    """

    def __init__(self, xs: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch leaves it untyped
        self._held: dict[int, StorageWeakRef] = {}
        """The storages that were computed from those numbers, kept so that no other gets their identity."""
        self._hold(xs)
        self.leave = False
        """True if Python has got one of the numbers."""

    def _hold(self, xs: Iterable[torch.Tensor]) -> None:
        for storage in [x.untyped_storage() for x in map(unwrap, xs) if x.layout is torch.strided]:
            self._held[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call] # torch leaves it untyped

    def reach(self, x: torch.Tensor) -> bool:
        """Return True if a tensor is computed from the numbers."""
        x = unwrap(x)
        return x.layout is not torch.strided or x.untyped_storage()._cdata in self._held

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            made = func(*args, **(kwargs or {}))
        if any(map(self.reach, _inexact_leaves((args, kwargs)))):
            self.leave |= func is torch.ops.aten._local_scalar_dense.default
            if not _MAKES_ANOTHER.fullmatch(func.overloadpacket.__name__):
                self._hold(_inexact_leaves(made))
        return made


class Departures(TorchFunctionMode):
    """A mode that notices if tracked tensors leave the graph, as by `detach`, or lack a derivative."""

    def __init__(self, follows: Callable[[torch.Tensor], bool], *, backward: bool = False) -> None:
        super().__init__()
        self._follows, self._backward = follows, backward
        self.leave = False
        """True if numbers of tracked tensors leave the graph."""
        self.lost = ""
        """The name of a function that lacks a derivative."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.autograd.grad:  # a call of torch itself, within which this mode would see no other
            return self._differentiate(*args, **kwargs)
        made = func(*args, **kwargs)
        leaves = func in _LEAVING or not torch.is_grad_enabled()
        if leaves or not _MAKES_ANOTHER.fullmatch(func.__name__):
            with with_gradients():
                if leaves:
                    self.leave |= _follow_any(self._follows, (args, kwargs))
                elif not self._backward and _loses(self._follows, (args, kwargs), made):
                    self.lost = func.__name__
        return made

    def _differentiate(self, outputs: Any, inputs: Any, grad_outputs: Any, **options: Any) -> Any:
        """Do what `torch.autograd.grad` does, and see the calls of the backward pass if torch.func asks."""
        if not (isinstance(outputs, (tuple, list)) and options["create_graph"] and options["allow_unused"]):
            return torch.autograd.grad(outputs, inputs, grad_outputs, **options)
        ends, xs, seeds = tuple(outputs), tuple(inputs), tuple(grad_outputs)
        with self:
            return run_backward(ends, seeds, True, True, xs, True, accumulate_grad=False)  # noqa: FBT003 -- torch's order

    def error(self, name: str) -> XBridgeError:
        """Return the error for a derivative of what has left the graph."""
        lacks = self.lost and not self.leave
        return no_derivative_error(
            name,
            f"torch has no derivative of {self.lost}"
            if lacks
            else "it detaches what torch follows, or takes its numbers out of torch",
            "operations of torch instead, or jax.lax.stop_gradient around the result",
        )


def _follow_any(follows: Callable[[torch.Tensor], bool], tree: Any) -> bool:
    return any(follows(x) for x in tree_leaves(tree) if isinstance(x, torch.Tensor))


def _loses(follows: Callable[[torch.Tensor], bool], args: Any, made: Any) -> bool:
    """Return True if a result is made of inexact numbers that torch does not follow, of some that it does."""
    ys = _inexact_leaves(made)
    return bool(ys) and not any(map(follows, ys)) and _follow_any(follows, args)


def _inexact_leaves(tree: Any) -> list[torch.Tensor]:
    tensors = [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]
    return [x for x in tensors if x.dtype.is_floating_point or x.dtype.is_complex]


_AS_GRADIENTS = {
    *("cholesky", "linalg_cholesky", "linalg_cholesky_ex", "linalg_eigh", "linalg_eigvalsh"),
    *("cholesky_inverse", "triangular_solve", "scatter_reduce", "scatter_reduce_"),
}
"""Names of functions whose tangents differ from their gradients, unless their argument is symmetric, or that
have none for some options."""


class NoTangents(TorchFunctionMode):
    """A mode for tangents that agree with gradients.

    `torch.no_grad` holds for tangents too, and some functions raise a `NotImplementedError`.
    """

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
            if func.__name__ in _AS_GRADIENTS and _follow_any(has_tangent, args):
                raise NotImplementedError
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
