"""Find out why a result has no graph along which a gradient could flow."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from xbridge.functions.rules import no_derivative_error
from xbridge.functions.torch.purity import Watch, leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xbridge.errors import XBridgeError

_LEAVING = (torch.ops.aten.detach.default, torch.ops.aten._local_scalar_dense.default)
"""The operations that take a tensor or a number out of the graph. `Tensor.numpy` detaches too."""

_MAKES_ANOTHER = re.compile("new_.*|.*_like")
"""Names of operations whose results have only the shape and the dtype of a tensor."""


def find_cut(
    name: str, run: Callable[[], Sequence[torch.Tensor]], xs: Sequence[torch.Tensor]
) -> XBridgeError | None:
    """Return the error for results without a graph that come from numbers of `xs`; None for constants."""
    with DependencyTracker(name, xs) as tracker, _ListDetector(tracker):
        ys = run()
    if not (tracker.leave or any(map(tracker.reach, ys))):
        return None
    return no_derivative_error(
        name,
        "it detaches what torch follows, takes its numbers out of torch, or calls what has no derivative",
        "operations of torch instead, or jax.lax.stop_gradient around the result",
    )


class DependencyTracker(Watch):  # type: ignore[no-untyped-call] # torch leaves it untyped
    """A watch that also notices which tensors are computed from the numbers of its arguments.

    It sees operations, so also those of code whose calls Python does not see, such as TorchScript.
    """

    def __init__(self, name: str, xs: Sequence[torch.Tensor]) -> None:
        super().__init__(name, xs)
        self._reached = set(self._storages)
        """The storages that were computed from those numbers, which the watch keeps."""
        self.leave = False
        """True if the numbers have left the graph."""

    def reach(self, x: torch.Tensor) -> bool:
        """Return True if a tensor is computed from the numbers."""
        return x.layout is not torch.strided or x.untyped_storage()._cdata in self._reached

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_dispatch__(func, types, args, kwargs)
        if any(map(self.reach, _inexact_leaves((args, kwargs)))):
            self.leave |= func in _LEAVING or not torch.is_grad_enabled()
            if not _MAKES_ANOTHER.fullmatch(func.overloadpacket.__name__):
                strided = [y for y in _inexact_leaves((made,)) if y.layout is torch.strided]
                self._reached.update(y.untyped_storage()._cdata for y in strided)
        return made


class _ListDetector(TorchFunctionMode):
    """A mode that notices if numbers leave by `Tensor.tolist`, which is no operation."""

    def __init__(self, tracker: DependencyTracker) -> None:
        super().__init__()
        self._tracker = tracker

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.tolist:
            self._tracker.leave |= any(map(self._tracker.reach, _inexact_leaves(args)))
        return func(*args, **(kwargs or {}))


def _inexact_leaves(xs: Sequence[Any]) -> list[torch.Tensor]:
    tensors = [x for x in leaves(xs) if isinstance(x, torch.Tensor)]
    return [x for x in tensors if x.dtype.is_floating_point or x.dtype.is_complex]
