"""Find out why a result has no graph along which a gradient could flow."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from xbridge.functions.rules import no_derivative_error
from xbridge.functions.torch.private import TorchDispatchMode, shared_flags, unwrap, without_function_modes
from xbridge.functions.torch.purity import leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xbridge.errors import XBridgeError

_T = torch.Tensor
_LEAVING = {
    *(_T.detach, _T.detach_, _T.data.__get__, _T.item, _T.tolist, _T.numpy),  # type: ignore[attr-defined] # a getter
    *(_T.__array__, _T.__float__, _T.__int__, _T.__complex__, _T.__dlpack__),
}

_MAKES_ANOTHER = re.compile("new_.*|.*_like")
"""Names of functions whose results have only the shape and the dtype of a tensor."""


def find_cut(
    name: str, run: Callable[[], Sequence[torch.Tensor]], xs: Sequence[torch.Tensor]
) -> XBridgeError | None:
    """Return the error for results without a graph that come from numbers of `xs`; None for constants."""
    with shared_flags, DependencyTracker(xs) as tracker, DetachDetector() as detector:
        ys = run()
    if not (any(map(tracker.reach, ys)) or tracker.leave or detector.leave):
        return None
    lost = "" if detector.leave else detector.lost
    return no_derivative_error(
        name,
        f"torch has no derivative of {lost}"
        if lost
        else "it detaches what torch follows, or takes its numbers out of torch",
        "operations of torch instead, or jax.lax.stop_gradient around the result",
    )


class DependencyTracker(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch leaves it untyped
    """A mode that notices which tensors are computed from the numbers of others.

    It sees operations, so also those of code whose calls Python does not see, such as TorchScript.
    """

    def __init__(self, xs: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch leaves it untyped
        self._held: dict[int, StorageWeakRef] = {}
        """The storages that were computed from those numbers, kept so that no other gets their identity."""
        self._hold(xs)
        self.leave = False
        """True if Python has got one of the numbers."""

    def _hold(self, xs: Sequence[torch.Tensor]) -> None:
        for storage in [x.untyped_storage() for x in map(unwrap, xs) if x.layout is torch.strided]:
            self._held[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call] # torch leaves it untyped

    def reach(self, x: torch.Tensor) -> bool:
        """Return True if a tensor is computed from the numbers."""
        x = unwrap(x)
        return x.layout is not torch.strided or x.untyped_storage()._cdata in self._held

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with without_function_modes():
            made = func(*args, **(kwargs or {}))
        if any(map(self.reach, _inexact_leaves((args, kwargs or {})))):
            self.leave |= func is torch.ops.aten._local_scalar_dense.default
            if not _MAKES_ANOTHER.fullmatch(func.overloadpacket.__name__):
                self._hold(_inexact_leaves(made))
        return made


class DetachDetector(TorchFunctionMode):
    """A mode that notices if tracked tensors leave the graph, as by `detach`, or lack a derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.leave = False
        """True if numbers of tracked tensors leave the graph."""
        self.lost = ""
        """The name of a function that lacks a derivative."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        leaves = func in _LEAVING or not torch.is_grad_enabled()
        if leaves:
            self.leave |= _is_any_tracked((args, kwargs or {}))
        elif not _MAKES_ANOTHER.fullmatch(func.__name__):
            ys = _inexact_leaves(made)
            if ys and not _is_any_tracked(ys) and _is_any_tracked((args, kwargs or {})):
                self.lost = func.__name__
        return made


def _is_any_tracked(tree: Any) -> bool:
    return any(unwrap(x).requires_grad for x in leaves((tree,)) if isinstance(x, torch.Tensor))


def _inexact_leaves(tree: Any) -> list[torch.Tensor]:
    tensors = [x for x in leaves((tree,)) if isinstance(x, torch.Tensor)]
    return [x for x in tensors if x.dtype.is_floating_point or x.dtype.is_complex]
