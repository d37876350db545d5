"""Copies into fresh memory, by several threads if they are large, aligned so that libraries can share it.

The first write to every page takes most of the time of a large copy. Threads can share that work, because
NumPy releases the interpreter lock while it copies. The threads end with the call, so a fork finds none.
"""

from __future__ import annotations

import math
import os
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from xbridge._core.protocol import HostArray

ALIGNMENT = 64
"""Memory that another library is to share begins at a multiple of so many bytes."""

ALIGNED = 1 << 16
"""Memory of at least so many bytes is aligned. Measured: below it, another copy costs less."""

LARGE = 1 << 26
"""A copy of at least so many bytes uses threads. Measured: below it, they cost more than they save."""

WORKERS = min(4, os.cpu_count() or 1)


def filled(host: HostArray, dtype: np.dtype[Any], order: Literal["C", "K"] = "K") -> HostArray:
    """Cast `host` into new memory, in one pass: dense, in the same axis order.

    With order C, the result is in C order and aligned to be shared. The axis order of an array that repeats
    memory along an axis is not defined, so its result is in C order too.
    """
    is_aligned = order == "C" and host.size * dtype.itemsize >= ALIGNED
    order = "C" if 0 in host.strides else order
    if host.nbytes < LARGE and not is_aligned:
        with np.errstate(all="ignore"):
            return host.astype(dtype, order=order, subok=False)
    fresh = _aligned(host.shape, dtype) if is_aligned else np.empty_like(host, dtype, order, subok=False)
    if host.nbytes < LARGE:
        fill(fresh, host)
        return fresh
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 -- 10 ms, and only this needs it

    axis = max(range(fresh.ndim), key=lambda axis: fresh.strides[axis] * (fresh.shape[axis] > 1))
    cuts = [fresh.shape[axis] * turn // WORKERS for turn in range(WORKERS + 1)]
    parts = [(slice(None),) * axis + (slice(*cut),) for cut in pairwise(cuts)]
    try:
        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(fill, [fresh[part] for part in parts], [host[part] for part in parts]))
    except RuntimeError:  # an interpreter that shuts down starts no threads
        fill(fresh, host)
    return fresh


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostArray:
    """Allocate memory that begins at a multiple of `ALIGNMENT`."""
    raw = np.empty(math.prod(shape) * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT
    return np.ndarray(shape, dtype, raw, start)


def fill(into: HostArray, values: HostArray) -> None:
    """Copy values into existing memory, with NumPy's own cast."""
    with np.errstate(all="ignore"):
        np.copyto(into, values, casting="unsafe")
