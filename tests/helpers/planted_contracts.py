"""Array functions that each break one promise of a contract, and right ones that look like them."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import array_api_compat
import numpy as np


def xp_of(x: Any) -> Any:
    return array_api_compat.array_namespace(x)


# -- broken promises ---------------------------------------------------------------------------------


def widened(x: Any) -> Any:
    """Return float64."""
    xp = xp_of(x)
    return xp.astype(x, xp.float64) * 2


def sorted_in_place(x: Any) -> Any:
    """Sort the caller's array."""
    x.sort()
    return x.copy()


def computed(x: Any) -> Any:
    """Scale by a number that is read from the array."""
    return x / (1 + float(xp_of(x).sum(x)))


def detached(x: Any) -> Any:
    """Compute a factor outside of the graph."""
    return x * (x.detach() if hasattr(x, "detach") else x)


def in_order_of_memory(x: Any) -> Any:
    """Sum pairs of neighbours in memory."""
    flat = x.ravel(order="K")
    return flat[1:] + flat[:-1]


def from_bytes(x: Any) -> Any:
    """Read bytes in the order of this machine."""
    return np.frombuffer(x.tobytes(), x.dtype.newbyteorder("=")).reshape(x.shape) * 2


def weighted(x: Any, weights: Any) -> Any:
    """Read the memory of weights as if it were whole and forward."""
    base = weights if weights.base is None else weights.base
    return x * np.resize(base.reshape(-1), x.shape)


_WINDOW: dict[str, Any] = {}


def windowed(x: Any) -> Any:
    """Keep the last window for all threads."""
    n = x.shape[-1] if x.ndim else 1
    if _WINDOW.get("n") != n:
        _WINDOW["n"] = n
        _WINDOW["window"] = np.hanning(n)
    return x * _WINDOW["window"]


_SCRATCH: dict[tuple[int, ...], Any] = {}


def doubled_in_scratch(x: Any) -> Any:
    """Share a buffer between threads."""
    scratch = _SCRATCH.setdefault(x.shape, np.empty(x.shape))
    np.multiply(x, 2, out=scratch)
    return scratch + 1


def tripled_in_buffer(x: Any) -> Any:
    """Return a buffer, which the next call fills with its own result."""
    return np.multiply(x, 3, out=_SCRATCH.setdefault(x.shape, np.empty(x.shape)))


_TABLE: list[float] = []


def looked_up(x: Any) -> Any:
    """Show a table to other threads while it is filled."""
    if not _TABLE:
        for n in range(4):
            _TABLE.append(n * 0.5)  # noqa: PERF401 -- one by one, so that others see a part
    return x + len(_TABLE)


_MEANS: dict[tuple[int, ...], Any] = {}


def centred_by_first(x: Any) -> Any:
    """Keep the mean of the first array of a shape."""
    return x - _MEANS.setdefault(x.shape, x.mean() if x.size else 0.0)


def first_row(x: Any) -> Any:
    """Need an element."""
    return x - x[0] if x.ndim else x


@cache
def ramp(n: int) -> Any:
    return np.arange(float(n))


def ramp_like(x: Any) -> Any:
    """Give the caller the array that the cache keeps."""
    return ramp(x.shape[-1]), x * 2


_DTYPED: dict[int, Any] = {}


def ramped_in_first_dtype(x: Any) -> Any:
    """Keep a ramp in the dtype of the first array of a length."""
    n = x.shape[-1]
    if n not in _DTYPED:
        _DTYPED[n] = np.arange(n, dtype=x.dtype)
    return x * _DTYPED[n]


_LAST_AXIS: dict[int, Any] = {}


def windowed_by_axes(x: Any) -> Any:
    """Keep one window for each number of axes."""
    kept = _LAST_AXIS.setdefault(x.ndim, np.hanning(x.shape[-1]))
    return x * kept if kept.shape == x.shape[-1:] else x


_WARM: list[int] = []


def warmed_up(x: Any) -> Any:
    """Be right at the beginning."""
    _WARM.append(1)
    return x + (len(_WARM) > 3)


def in_fortran_order(x: Any) -> Any:
    """Copy an argument of one layout only."""
    return np.asfortranarray(x)


def in_float64(x: Any) -> Any:
    """Copy an argument of one dtype only."""
    return x.astype("f8", copy=False)


def closed(x: Any) -> Any:
    """Make the caller's array read-only."""
    x.flags.writeable = False
    return x * 2


def raises_for_all(x: Any) -> Any:
    """Change NumPy's error handling for all code that follows."""
    np.seterr(all="raise")
    return x * 2


def seeded(x: Any) -> Any:
    """Let all random numbers that follow be the same."""
    np.random.seed(7)  # noqa: NPY002 -- that is the fault
    return x + np.random.standard_normal(x.shape)  # noqa: NPY002 -- as above


def centred_by_drawing(x: Any) -> Any:
    """Use random numbers for an exact result."""
    drawn = np.random.standard_normal(1000)  # noqa: NPY002 -- the global generator is the point
    return x + 0 * drawn[0]


class Kept:
    """A class that has no attribute yet."""


def ramped_by_new_attribute(x: Any) -> Any:
    """Keep the first ramp in an attribute that a class did not have."""
    if not hasattr(Kept, "first"):
        Kept.first = np.arange(float(x.shape[-1]))  # type: ignore[attr-defined] # that is the fault
    return x * np.resize(Kept.first, x.shape[-1]) + x.mean() * (len(Kept.first) == x.shape[-1])  # type: ignore[attr-defined] # as above


# -- kept promises -----------------------------------------------------------------------------------

_LOCK = threading.Lock()
_LOCKED: dict[str, Any] = {}


def windowed_under_lock(x: Any) -> Any:
    """Keep the last window, one thread at a time."""
    n = x.shape[-1] if x.ndim else 1
    with _LOCK:
        if _LOCKED.get("n") != n:
            _LOCKED["n"] = n
            _LOCKED["window"] = np.hanning(n)
        return x * _LOCKED["window"]


_LOCAL = threading.local()


def doubled_in_local_scratch(x: Any) -> Any:
    """Have a buffer for each thread."""
    scratch = vars(_LOCAL).setdefault("scratch", {}).setdefault(x.shape, np.empty(x.shape))
    np.multiply(x, 2, out=scratch)
    return scratch + 1


@cache
def window(n: int) -> Any:
    return np.hanning(n)


_WINDOWS: dict[int, Any] = {}


def windowed_by_length(x: Any) -> Any:
    """Keep every window, which another thread may compute again."""
    n = x.shape[-1] if x.ndim else 1
    if n not in _WINDOWS:
        _WINDOWS[n] = np.hanning(n)
    return x * _WINDOWS[n]


def softmax(x: Any) -> Any:
    """Compute with the functions of the standard."""
    xp = xp_of(x)
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)
