"""Find out if a cast of torch would lose values, and if it gives the same numbers as NumPy's."""

from __future__ import annotations

import torch

from xbridge._core.devices import Device
from xbridge._core.dtypes import DTYPES, category, holds_integers

_SIGN = -(1 << 63)


def loses_values(x: torch.Tensor, dtype: str) -> bool:
    """Return True if an integer leaves the exact range of a dtype, or a finite value becomes infinite."""
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
    return not finite.to(getattr(torch, dtype)).isfinite().all()


def cast_matches_numpy(dtype: str, other: str, device: Device, /) -> bool:
    """Return True if a cast gives NumPy's values: it is exact, wraps, or rounds as NumPy does.

    The bits of a NaN may differ. Casts to an integer differ in values that do not fit, casts of float8
    differ, and float64 to float16 rounds twice. MPS is untested with large integers and subnormal numbers.
    """
    kinds = category(dtype), category(other)
    rounds_as_numpy = all(DTYPES[word].rounds_as_numpy for word in (dtype, other) if word in DTYPES)
    rounds_otherwise = not rounds_as_numpy or (dtype, other) == ("float64", "float16")
    cuts = kinds in (("float", "int"), ("complex", "float"), ("complex", "int"))
    return not (cuts or rounds_otherwise or device.kind == "mps")
