"""Would a cast lose a value? Asked of tensors, where they are."""

from __future__ import annotations

import torch

from xbridge._dtypes import exact_integers

_SIGN = -(1 << 63)


def loses(x: torch.Tensor, dtype: str) -> bool:
    """Whether an integer leaves the exact range of a dtype, or a finite value becomes infinite."""
    if not x.is_floating_point() and not x.is_complex():
        signed = x.view(torch.int64) ^ _SIGN if x.dtype == torch.uint64 else x.to(torch.int64)
        low, high = (int(end) + (x.dtype == torch.uint64) * -_SIGN for end in torch.aminmax(signed))
        least, most = exact_integers(dtype)
        return low < least or high > most
    if x.is_complex():
        x, dtype = torch.view_as_real(x.resolve_conj()), "float32"
    ends = torch.stack(torch.aminmax(x))
    if ends.to(getattr(torch, dtype)).isfinite().all():
        return False
    finite = x[x.isfinite()]
    return bool(finite.to(getattr(torch, dtype)).isinf().any())
