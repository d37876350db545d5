"""Samples of Dask: one chunk or several, equal or not, of short or long graphs, with the layouts of NumPy.

The arrays cannot be written. The graphs only move elements and compute nothing, so every bit is kept.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import dask
import dask.array as da
import numpy as np

from xbridge.errors import type_of
from xbridge.testing.samples import LayoutCase
from xbridge.testing.samples import numpy as host

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge.protocol import Array, HostArray

    Shape: TypeAlias = tuple[int, ...]
    Make: TypeAlias = Callable[[HostArray], Array]


# -- graphs and chunks ---------------------------------------------------------------------------


def _whole(memory: HostArray) -> Array:
    """Make an array of one chunk, which the graph holds unchanged."""
    return da.from_delayed(dask.delayed(memory), memory.shape, memory.dtype)


def _halves(values: HostArray) -> Array:
    return da.from_array(values, chunks=tuple(max(1, -(-n // 2)) for n in values.shape), name=False)


def _uneven(values: HostArray) -> Array:
    """Make an array whose first chunk has one element along each axis."""
    whole = da.from_array(values, chunks=-1, name=False)
    return whole.rechunk(tuple((1, n - 1) if n > 1 else (n,) for n in values.shape))


def _picked(values: HostArray) -> Array:
    """Select every second element of a larger, reversed array."""
    there = host.every(slice(None, None, -1), values.shape)
    return _halves(np.repeat(values[there], 2, -1))[..., ::2][there]


def _case(make: Make, takes: Callable[[str, Shape], bool] = host.anywhere) -> LayoutCase:
    return LayoutCase(make, takes=takes, writable=False)


def _chunk_of(name: str) -> LayoutCase:
    """Return a case of one chunk with a layout of NumPy."""
    known = host.cases[name]
    return _case(lambda values: _whole(known.make(values)), known.takes)


_CHUNKS = ("Fortran", "strided", "unaligned", "byte-swapped", "read-only")

cases: dict[str, LayoutCase] = {
    "one chunk": _case(partial(da.from_array, chunks=-1)),
    "several chunks": _case(_halves, host.stretched),
    "uneven chunks": _case(_uneven, host.stretched),
    "transposed": _case(lambda values: _halves(values.T).T, host.stretched),
    "picked": _case(_picked, lambda _, shape: len(shape) > 0),
    "broadcast": _case(
        lambda values: da.broadcast_to(_halves(host.base_of_broadcast(values)), values.shape), host.repeated
    )._replace(fold=host.cases["broadcast"].fold),
    "stored": _case(lambda values: _halves(values).persist(scheduler="synchronous")),
    "reduced": _case(lambda values: _halves(values[None])[0]),
    **{f"{name} chunk": _chunk_of(name) for name in _CHUNKS},
}


# -- unsupported arrays --------------------------------------------------------------------------


def _of(make: Callable[[], HostArray]) -> Array:
    return da.from_array(make(), chunks=-1, asarray=False)


_WITHOUT_AXES = {"the masked constant", "a masked record", "masked, 0-d", "units, 0-d"}
"""Unsupported arrays that Dask reports as plain ones, so that only a computation shows what they are."""


refused: dict[str, Callable[[], Array]] = {
    name: partial(_of, make) for name, make in host.refused.items() if name not in _WITHOUT_AXES
}


# -- reading and writing -------------------------------------------------------------------------


def read(x: Array, /) -> HostArray:
    """Return the values that Dask's scheduler computes in this thread, without optimizing the graph first."""
    join, words = x.__dask_postcompute__()
    with np.errstate(all="ignore"):
        return host.read(np.asanyarray(join(dask.get(dict(x.dask), x.__dask_keys__()), *words)))


def write(x: Array, /) -> None:
    """Raise: an assignment makes another graph."""
    message = f"{type_of(x)} of Dask has no memory to write"
    raise ValueError(message)
