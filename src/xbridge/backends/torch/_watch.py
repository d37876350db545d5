"""Notice conversions by torch's own calls, such as `Tensor.numpy`, by a `TorchFunctionMode`.

Torch does not tell the mode of `torch.from_numpy`, `torch.from_dlpack` and `torch.Tensor(array)`, which it
does not dispatch, nor of what compiled code does.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from xbridge._core.protocol import Notice
from xbridge.backends.torch import _private

_METHODS = (
    *("__array__", "__bool__", "__complex__", "__float__", "__index__", "__int__"),
    *("bfloat16", "bool", "byte", "cdouble", "cfloat", "chalf", "char", "cpu", "cuda", "double", "float"),
    *("half", "int", "item", "long", "numpy", "short", "to", "tolist", "type", "type_as"),
)
_NAMES: dict[Any, str] = {
    **{getattr(torch.Tensor, word): f"Tensor.{word}" for word in _METHODS},
    **{getattr(torch, word): f"torch.{word}" for word in ("as_tensor", "asarray", "tensor")},
}
"""The functions that convert their first argument, and how they are called."""


class Watch(TorchFunctionMode):
    def __init__(self, notice: Notice) -> None:
        super().__init__()
        self.notice = notice
        self.runs = True

    def __exit__(self, *_: object) -> None:
        """End the watch. If it is not the top of the stack of this thread, a later end removes it."""
        self.runs = False
        stack: Any = _private.function_modes  # it has no types
        while isinstance(top := stack._get_current_function_mode(), Watch) and not top.runs:
            stack._pop_mode()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, options = _NAMES.get(func), kwargs or {}
        if name is None or not self.runs or torch.compiler.is_compiling() or _has_no_values():
            return func(*args, **options)
        begin = perf_counter()
        result = func(*args, **options)
        source = args[0] if args else options.get("data", options.get("obj"))
        if type(result) is not str:  # `type` without a dtype names that of the tensor
            self.notice(name, source, result, perf_counter() - begin)
        return result


def _has_no_values() -> bool:
    """Return True in a fake mode and while a tracer runs, which would trace our questions about an array."""
    return _private.get_tracing_state() is not None or _private.get_dispatch_mode(_private.FAKE) is not None
