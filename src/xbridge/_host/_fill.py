"""Fill fresh memory, a large one by several threads.

What takes the time in a large copy is the first touch of every page, which threads can share: NumPy lets
go of the interpreter while it copies. The threads end with the call, so nothing is left to a fork.
"""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from xbridge._protocol import HostArray

LARGE = 1 << 26
"""Bytes from which on threads pay: measured, below it starting them costs more than they save."""

WORKERS = min(4, os.cpu_count() or 1)


def filled(host: HostArray, dtype: np.dtype[Any]) -> HostArray:
    """New memory with the values of `host`, cast: one pass, dense, the same axis order.

    An axis that repeats memory has no place in the order, so such an array comes out in C order.
    """
    order: Literal["C", "K"] = "C" if 0 in host.strides else "K"
    if host.nbytes < LARGE:
        with np.errstate(all="ignore"):
            return host.astype(dtype, order=order, subok=False)
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 -- 10 ms, and only this needs it

    fresh = np.empty_like(host, dtype=dtype, order=order, subok=False)
    axis = max(range(fresh.ndim), key=lambda axis: fresh.strides[axis] * (fresh.shape[axis] > 1))
    cuts = [fresh.shape[axis] * turn // WORKERS for turn in range(WORKERS + 1)]
    parts = [(slice(None),) * axis + (slice(*cut),) for cut in pairwise(cuts)]
    try:
        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(_copy, [fresh[part] for part in parts], [host[part] for part in parts]))
    except RuntimeError:  # an interpreter that shuts down starts no threads
        _copy(fresh, host)
    return fresh


def _copy(into: HostArray, values: HostArray) -> None:
    with np.errstate(all="ignore"):
        np.copyto(into, values, casting="unsafe")
