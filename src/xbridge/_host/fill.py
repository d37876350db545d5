"""Fill fresh memory, a large one by several threads, where others can take it over if they want that.

What takes the time in a large copy is the first touch of every page, which threads can share: NumPy lets
go of the interpreter while it copies. The threads end with the call, so nothing is left to a fork.
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
"""Where memory begins that is to be taken over: at a multiple of so many bytes."""

ALIGNED = 1 << 16
"""Bytes from which on a place is sought for it: measured, below it another copy costs less."""

LARGE = 1 << 26
"""Bytes from which on threads pay: measured, below it starting them costs more than they save."""

WORKERS = min(4, os.cpu_count() or 1)


def filled(host: HostArray, dtype: np.dtype[Any], order: Literal["C", "K"] = "K") -> HostArray:
    """New memory with the values of `host`, cast: one pass, dense, the same axis order.

    With order C it lies row by row, and begins where it can be taken over. An axis that repeats memory has no
    place in the order, so such an array comes out in C order too.
    """
    taken_over = order == "C" and host.size * dtype.itemsize >= ALIGNED
    order = "C" if 0 in host.strides else order
    if host.nbytes < LARGE and not taken_over:
        with np.errstate(all="ignore"):
            return host.astype(dtype, order=order, subok=False)
    fresh = _aligned(host.shape, dtype) if taken_over else np.empty_like(host, dtype, order, subok=False)
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
    """Memory that can be taken over."""
    backend = np.empty(math.prod(shape) * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -backend.__array_interface__["data"][0] % ALIGNMENT
    return np.ndarray(shape, dtype, backend, start)


def fill(into: HostArray, values: HostArray) -> None:
    """Copy values into memory that is there, with NumPy's own cast."""
    with np.errstate(all="ignore"):
        np.copyto(into, values, casting="unsafe")
