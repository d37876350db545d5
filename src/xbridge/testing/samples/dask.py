"""Dask: one chunk or several, even or not, of a graph that is short or long, with whatever NumPy has in them.

Nothing of it can be written. Chunks are laid as NumPy lays them, and what is computed on the way only moves
elements, so every bit that comes out went in.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import dask
import dask.array as da
import numpy as np

from xbridge.testing.samples import numpy as host
from xbridge.testing.samples.model import LayoutCase

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge._core.protocol import Array, HostArray

    Shape: TypeAlias = tuple[int, ...]
    Lay: TypeAlias = Callable[[HostArray], Array]


# -- how it can be made up -----------------------------------------------------------------------


def _whole(memory: HostArray) -> Array:
    """One chunk, which stands in the graph as it is."""
    return da.from_delayed(dask.delayed(memory), memory.shape, memory.dtype)


def _halves(values: HostArray) -> Array:
    return da.from_array(values, chunks=tuple(max(1, -(-n // 2)) for n in values.shape), name=False)


def _uneven(values: HostArray) -> Array:
    """A first chunk of one element along each axis."""
    whole = da.from_array(values, chunks=-1, name=False)
    return whole.rechunk(tuple((1, n - 1) if n > 1 else (n,) for n in values.shape))


def _turned(values: HostArray) -> Array:
    return _halves(values.T).T


def _picked(values: HostArray) -> Array:
    """Some of the elements of a larger array, gathered from the back to the front."""
    there = host.every(slice(None, None, -1), values.shape)
    return _halves(np.repeat(values[there], 2, -1))[..., ::2][there]


def _broadcast(values: HostArray) -> Array:
    return da.broadcast_to(_halves(host.base_of_broadcast(values)), values.shape)


def _stored(values: HostArray) -> Array:
    return _halves(values).persist(scheduler="synchronous")


def _reduced(values: HostArray) -> Array:
    """What is left of an axis: of an array without axes, NumPy makes a scalar."""
    return _halves(values[None])[0]


def _is_cut(_dtype: str, shape: Shape) -> bool:
    return any(n > 1 for n in shape)


def _way(lay: Lay, takes: Callable[[str, Shape], bool] = host.anywhere) -> LayoutCase:
    return LayoutCase(lay, takes=takes, writable=False)


def _laid(name: str) -> LayoutCase:
    """One chunk that lies as NumPy's arrays can."""
    known = host.ways[name]
    return _way(lambda values: _whole(known.lay(values)), known.takes)


ways: dict[str, LayoutCase] = {
    "one chunk": _way(partial(da.from_array, chunks=-1)),
    "several chunks": _way(_halves, _is_cut),
    "uneven chunks": _way(_uneven, _is_cut),
    "transposed": _way(_turned, host.stretched),
    "picked": _way(_picked, lambda _, shape: len(shape) > 0),
    "broadcast": _way(_broadcast, host.repeated)._replace(fold=host.ways["broadcast"].fold),
    "stored": _way(_stored),
    "reduced": _way(_reduced),
    "Fortran chunk": _laid("Fortran"),
    "strided chunk": _laid("strided"),
    "unaligned chunk": _laid("unaligned"),
    "byte-swapped chunk": _laid("byte-swapped"),
    "read-only chunk": _laid("read-only"),
}


# -- what must not leave -------------------------------------------------------------------------


def _of(make: Callable[[], HostArray]) -> Array:
    return da.from_array(make(), chunks=-1, asarray=False)


_WITHOUT_AXES = {"the masked constant", "a masked record", "masked, 0-d", "units, 0-d"}
"""Dask says of these that they are plain, so it shows only when they are computed."""


refused: dict[str, Callable[[], Array]] = {
    name: partial(_of, make) for name, make in host.refused.items() if name not in _WITHOUT_AXES
}


# -- reading and writing -------------------------------------------------------------------------


def read(x: Array, /) -> HostArray:
    """Return what Dask's scheduler makes of the graph in this thread, which it does not optimize first."""
    join, words = x.__dask_postcompute__()
    with np.errstate(all="ignore"):
        return host.read(np.asanyarray(join(dask.get(dict(x.dask), x.__dask_keys__()), *words)))


def write(x: Array, /) -> None:
    """Nobody can: an assignment makes another graph."""
    message = f"a {type(x).__name__} of Dask's has no memory to write"
    raise ValueError(message)
