"""Functions with one mistake each, of the kinds that libraries make, for `check` and for contracts."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import array_api_compat
import numpy as np

Array = Any


def xp_of(x: Any) -> Any:
    return array_api_compat.array_namespace(x)


def byte_order(x: Any) -> Any:
    """Return the numbers, read from their bytes as if they were in the machine's order."""
    host = np.asarray(x)
    return np.frombuffer(host.tobytes(), host.dtype.newbyteorder("=")).reshape(host.shape) * 1.0


def memory_order(x: Any) -> Any:
    """Return running sums in the order of memory."""
    return np.cumsum(np.asarray(x).ravel(order="K")).reshape(np.shape(x))


def centred(x: Any) -> Any:
    """Subtract the mean in place for a moment, which a read-only array refuses."""
    y = x if isinstance(x, np.ndarray) else np.array(x)
    mean = y.mean()
    y -= mean
    centred = y.copy()
    y += mean
    return centred


def normalized(x: Any, weights: Any) -> Any:
    """Return a weighted sum; the caller's weights are divided by their sum."""
    weights /= weights.sum()
    return (x * weights).sum()


def repeated_weights(x: Any, weights: Any) -> Any:
    """Return a weighted sum, with the memory of the weights, which may be repeated by broadcasting."""
    held = np.asarray(weights)
    base = held.base if isinstance(held.base, np.ndarray) else held
    return (np.asarray(x) * np.resize(base, np.shape(x))).sum()


def rows(x: Any) -> Any:
    """Divide by the number of rows, which a 0-d array of another library than NumPy does not have."""
    if isinstance(x, np.ndarray):
        x = np.atleast_1d(x)
    return (x / x.shape[0]).sum()


def flipped(x: Any, axis: int = 0) -> Any:
    """Flip along an axis, which is compared with numbers that are counted from the start."""
    x = np.asarray(x)
    return x[tuple(slice(None, None, -1) if n == axis else slice(None) for n in range(x.ndim))]


def largest(x: Any) -> Any:
    """Return the position of the largest number: of equal ones the last, if the array is torch's."""
    flat = xp_of(x).reshape(x, (-1,))
    if hasattr(flat, "is_neg"):
        return int((flat == flat.max()).nonzero()[-1])
    return int(xp_of(x).argmax(flat))


def greatest(x: Any) -> Any:
    """Return the greatest number by comparisons, which are false for NaN."""
    best = -np.inf
    for each in np.asarray(x).reshape(-1):
        best = max(best, each)
    return best


_WINDOW: dict[str, Any] = {}


def first_window(x: Any) -> Any:
    """Divide by the greatest number of the first call."""
    if "scale" not in _WINDOW:
        _WINDOW["scale"] = np.max(np.asarray(x))
    return x / _WINDOW["scale"]


_SCRATCH = np.empty(1000)


def squares(x: Any) -> Any:
    """Return a part of a buffer that all calls share."""
    x = np.asarray(x)
    held = _SCRATCH[: x.size].reshape(x.shape)
    return np.multiply(x, x, out=held)


@lru_cache
def _places(n: int) -> Any:
    return np.arange(float(n))


def places(x: Any) -> Any:
    """Return an array that is kept for the next call."""
    return _places(x.size if isinstance(x, np.ndarray) else len(x))


def reseeded(x: Any) -> Any:
    """Add noise, and set the seed for all other code."""
    np.random.seed(0)  # noqa: NPY002 -- the mistake
    return x + np.random.rand()  # noqa: NPY002 -- as above


def scaled(x: Any) -> Any:
    """Divide integers by the greatest one of their dtype, as for images."""
    x = np.asarray(x)
    return x / np.iinfo(x.dtype).max if x.dtype.kind in "iu" else x


def unseeded(x: Any) -> Any:
    """Add noise."""
    return x + np.random.rand()  # noqa: NPY002 -- as above


def silenced(x: Any) -> Any:
    """Return logarithms, and silence all other code."""
    np.seterr(all="ignore")
    return np.log(np.asarray(x))


def in_double(x: Any) -> Any:
    """Return twice the numbers, and change the default dtype of torch."""
    import torch

    torch.set_default_dtype(torch.float64)
    return x * 2


class Scale:
    """Has a method that needs no object, with a mistake."""

    @staticmethod
    def doubled(x: Any) -> Any:
        """Double in place."""
        x *= 2
        return x

    @classmethod
    def raised(cls, x: Any) -> Any:
        """Add one in place."""
        x += 1
        return x


def widened(x: Any) -> Any:
    """Return float64 for any floating dtype."""
    return x / np.float64(np.max(x)) if x.size else x.astype("f8")


def positive(x: Any) -> Any:
    """Return sizes: the argument itself, if no number is negative."""
    return x if not np.any(x < 0) else np.abs(x)


def span(x: Any) -> Any:
    """Subtract the least number, which no empty array has."""
    return x - x.min()


_LAST: dict[str, Any] = {}


def ramped(x: Any) -> Any:
    """Multiply by a ramp that is kept for the next call, and read again after it was checked."""
    if _LAST.get("n") != x.size:
        _LAST["n"] = x.size
        _LAST["ramp"] = np.arange(x.size).reshape(x.shape)
    return x * _LAST["ramp"]


def squared(x: Any) -> Any:
    """Square; torch's gradient is that of one factor alone."""
    return x.detach() * x if hasattr(x, "detach") else x * x
