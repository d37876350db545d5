"""Unsupported tensors, one of each kind: their memory does not hold their values plainly."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class Wrapper(torch.Tensor):
    """A tensor subclass that wraps another tensor."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Any:  # noqa: ANN001 -- torch passes the class
        """Make one without memory."""
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # noqa: SLF001 -- no public way

    def __init__(self, inner: Tensor) -> None:
        self.wrapped = inner

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # torch's stub has no cls
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*(arg.wrapped if isinstance(arg, cls) else arg for arg in args), **(kwargs or {}))


def _freed() -> Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def _shrunk() -> Tensor:
    """Make a view of memory that its storage has released."""
    tensor = torch.ones(4)
    view = tensor[2:]
    tensor.untyped_storage().resize_(8)
    return view


def _fake() -> Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415 -- 100 ms

    with FakeTensorMode():
        return torch.ones(2)


def _batched() -> Tensor:
    """Make a tensor that leaked from a function under `vmap`."""
    seen = []

    def keep(x: Tensor) -> Tensor:
        seen.append(x)
        return x

    torch.vmap(keep)(torch.ones(2))
    return seen[0]


def _masked() -> Any:
    from torch.masked import masked_tensor  # noqa: PLC0415 -- slow, and hardly ever needed

    return masked_tensor(torch.ones(2), torch.tensor([True, False]))


def _rows() -> list[Tensor]:
    return [torch.ones(2), torch.ones(3)]


def _small(word: str) -> Tensor:
    """Make a tensor of a dtype without a canonical name."""
    return torch.zeros(4, dtype=torch.int32).view(getattr(torch, word))


_REFUSED: dict[str, Callable[[], Any]] = {
    "sparse": lambda: torch.eye(2).to_sparse(),
    "sparse, tracked": lambda: torch.eye(2).to_sparse().requires_grad_(),
    "sparse rows": lambda: torch.eye(2).to_sparse_csr(),
    "mkldnn": lambda: torch.ones(2, 2).to_mkldnn(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor(_rows()),
    "jagged": lambda: torch.nested.nested_tensor(_rows(), layout=torch.jagged),
    "meta": lambda: torch.ones(2, device="meta"),
    "fake": _fake,
    "masked": _masked,
    "a wrapper": lambda: Wrapper(torch.ones(2)),
    "uninitialized": torch.nn.UninitializedParameter,
    "batched": _batched,
    "freed": _freed,
    "shrunk": _shrunk,
    **{
        word: partial(_small, word)
        for word in ("int4", "uint2", "float4_e2m1fn_x2", "bits8", "complex32")
        if hasattr(torch, word)
    },
}


def _quietly(make: Callable[[], Any]) -> Any:
    """Make a tensor without torch's warnings about prototypes and deprecations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


refused: dict[str, Callable[[], Any]] = {name: partial(_quietly, make) for name, make in _REFUSED.items()}
