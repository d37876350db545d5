"""Notice conversions by torch's own calls, with the mode in which torch asks about every call of a function.

Torch asks no mode about `torch.from_numpy`, `torch.from_dlpack` and `torch.Tensor(array)`, which it does not
dispatch, nor about what compiled code does.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_METHODS = (
    *("__array__", "__bool__", "__complex__", "__float__", "__index__", "__int__"),
    *("bfloat16", "bool", "cpu", "cuda", "double", "float", "half", "int", "item", "long", "numpy"),
    *("to", "tolist", "type"),
)
_NAMES: dict[Any, str] = {
    **{getattr(torch.Tensor, word): f"Tensor.{word}" for word in _METHODS},
    **{getattr(torch, word): f"torch.{word}" for word in ("as_tensor", "asarray", "tensor")},
}
"""The functions that convert their first argument, and how they are called."""


def watch(notice: Callable[[str, Any, object, float], None], /) -> AbstractContextManager[object]:
    return _Watch(notice)


class _Watch(TorchFunctionMode):
    def __init__(self, notice: Callable[[str, Any, object, float], None]) -> None:
        super().__init__()
        self.notice = notice

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = _NAMES.get(func)
        if name is None or not args or torch.compiler.is_compiling():
            return func(*args, **kwargs or {})
        begin = perf_counter()
        result = func(*args, **kwargs or {})
        self.notice(name, args[0], result, perf_counter() - begin)
        return result
