"""Array functions in the style of the standard, each with one planted fault, and some without."""

from __future__ import annotations

from typing import Any

import array_api_compat
import numpy as np

Array = Any


def xp_of(*arrays: Any) -> Any:
    return array_api_compat.array_namespace(*arrays)


def missing_device(x: Any) -> Any:
    """Add a ramp that is made on the default device."""
    xp = xp_of(x)
    return x + xp.arange(x.shape[-1], dtype=x.dtype)


def assumes_contiguous(x: Any) -> Any:
    """Flatten by a view of torch's memory."""
    return x.view(-1) if hasattr(x, "is_neg") else xp_of(x).reshape(x, (-1,))


def promoted(x: Any) -> Any:
    """Return a sum, in float64 if the array is torch's."""
    total = xp_of(x).sum(x)
    return total.double() if hasattr(x, "is_neg") else total


def jitter(x: Any, rng: Any = None) -> Any:
    """Draw random numbers."""
    return x + np.random.default_rng(rng).normal(size=x.shape)


def of_a_callable(x: Any, transform: object) -> Any:
    """Call what is given."""
    return transform(x)  # type: ignore[operator]


def is_torch(x: Any) -> bool:
    return hasattr(x, "is_neg")


def partition_all(x: Any) -> Any:
    """Return the elements in no specified order."""
    return x.flip(0) if is_torch(x) and len(x.shape) else x


def half(x: Any) -> Any:
    """Refuse tensors; torch's `half` is a dtype and not a function."""
    if is_torch(x):
        raise ValueError("no tensors")
    return x / 2
