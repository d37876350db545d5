"""What a cast does to values: whether it loses one, and whether NumPy's gives the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from xbridge._core.dtypes import category, holds_integers

if TYPE_CHECKING:
    from xbridge._core.devices import Device

_SIGN = -(1 << 63)


def loses(x: torch.Tensor, dtype: str) -> bool:
    """Whether an integer leaves the exact range of a dtype, or a finite value becomes infinite."""
    if not x.is_floating_point() and not x.is_complex():
        signed = x.view(torch.int64) ^ _SIGN if x.dtype == torch.uint64 else x.to(torch.int64)
        low, high = (int(end) + (x.dtype == torch.uint64) * -_SIGN for end in torch.aminmax(signed))
        return not holds_integers(dtype, low, high)
    if x.is_complex():
        x, dtype = torch.view_as_real(x.resolve_conj()), "float32"
    ends = torch.stack(torch.aminmax(x))
    if ends.to(getattr(torch, dtype)).isfinite().all():
        return False
    finite = x[x.isfinite()]
    return bool(finite.to(getattr(torch, dtype)).isinf().any())


def cast_matches_numpy(dtype: str, other: str, device: Device, /) -> bool:
    """Whether a cast is NumPy's but for the bits of a NaN: it is exact, wraps, or rounds as NumPy does.

    Not so what does not fit an integer, the kinds of float8, and float64 to float16, which rounds twice. What
    MPS does with large integers and subnormal numbers nobody has tried.
    """
    kinds = category(dtype), category(other)
    apart = "float8" in dtype + other or (dtype, other) == ("float64", "float16")
    cuts = kinds in (("float", "int"), ("complex", "float"), ("complex", "int"))
    return not (cuts or apart or device.kind == "mps")
