"""Samples of `sparse` for xbridge's test kit: the forms in which the library stores one array.

They are made of coordinates and elements, and read in the same way, bit for bit. The library's own
`from_numpy` and `todense` are not used, because the backend relies on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import sparse

from xbridge.testing.samples import LayoutCase
from xbridge.testing.samples import numpy as host

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xbridge.protocol import Array, HostArray


# -- how one array can be stored -----------------------------------------------------------------


def _zero(values: HostArray) -> HostArray:
    return np.zeros(1, values.dtype)


def _last(values: HostArray) -> HostArray:
    """Return a fill value that is in the array: a NaN with a payload, if that is the last element."""
    return values.reshape(-1)[-1:] if values.size else _zero(values)


def _coo(values: HostArray, fill: HostArray, stored: HostArray | None = None) -> Array:
    """Store the elements that differ from the fill value in any bit, or the given ones."""
    kept = host.opaque(values) != host.opaque(fill) if stored is None else stored
    where = np.stack(np.nonzero(kept.reshape(-1)))
    coords = np.stack(np.unravel_index(where[0], values.shape)) if values.ndim else where[:0]
    return sparse.COO(coords, values.reshape(-1)[where[0]], values.shape, fill_value=fill[0], sorted=True)


def _zeros_left_out(values: HostArray) -> Array:
    return _coo(values, _zero(values))


def _all_stored(values: HostArray) -> Array:
    return _coo(values, _zero(values), np.ones(values.shape, bool))


def _another_fill_value(values: HostArray) -> Array:
    return _coo(values, _last(values))


def _transposed(values: HostArray) -> Array:
    return _zeros_left_out(values.T).T


def _sliced(values: HostArray) -> Array:
    return _zeros_left_out(np.repeat(values, 2, -1))[..., ::2]


def _by_rows(values: HostArray) -> Array:
    return sparse.GCXS.from_coo(_another_fill_value(values))


def _by_columns(values: HostArray) -> Array:
    return sparse.GCXS.from_coo(_zeros_left_out(values), compressed_axes=(values.ndim - 1,))


def _by_keys(values: HostArray) -> Array:
    return sparse.DOK.from_coo(_another_fill_value(values))


def _byte_swapped(values: HostArray) -> Array:
    return _zeros_left_out(values.byteswap().view(values.dtype.newbyteorder()))


def _is_compressed(dtype: str, shape: tuple[int, ...]) -> bool:
    return dtype != "float16" and len(shape) > 1  # numba, which compresses them, has no float16


def _has_axes(_dtype: str, shape: tuple[int, ...]) -> bool:
    return len(shape) > 0  # a DOK without axes cannot be asked for its element


# None is writable in place: a COO and a GCXS have no assignment, and the values of a DOK are in a dict.
cases: Mapping[str, LayoutCase] = {
    "zeros left out": LayoutCase(_zeros_left_out, writable=False),
    "all stored": LayoutCase(_all_stored, writable=False),
    "another fill value": LayoutCase(_another_fill_value, writable=False),
    "transposed": LayoutCase(_transposed, takes=host.stretched, writable=False),
    "sliced": LayoutCase(_sliced, takes=host.stretched, writable=False),
    "by rows": LayoutCase(_by_rows, takes=_is_compressed, writable=False),
    "by columns": LayoutCase(_by_columns, takes=_is_compressed, writable=False),
    "by keys": LayoutCase(_by_keys, takes=_has_axes, writable=False),
    "byte-swapped": LayoutCase(_byte_swapped, takes=host.cases["byte-swapped"].takes, writable=False),
}


# -- unsupported arrays --------------------------------------------------------------------------

refused: Mapping[str, Callable[[], Array]] = {
    word: lambda word=word: sparse.COO.from_numpy(np.asarray(host.refused[word]()))  # type: ignore[misc] # a default binds it
    for word in ("strings", "dates", "durations", "structures", "raw bytes")
}


# -- reading and writing -------------------------------------------------------------------------


def read(x: Array, /) -> HostArray:
    """Write the elements one by one into new memory, or copy a materialized array."""
    if isinstance(x, np.ndarray):
        return host.read(x)
    coo = x.asformat("coo")
    values = np.empty(coo.shape, coo.dtype)
    items = host.opaque(values).reshape(-1)
    items[...] = host.opaque(np.array([coo.fill_value]))
    items[coo.linear_loc()] = host.opaque(coo.data)
    return host.read(values)


def write(x: Array, /) -> None:
    """Raise: no such array has memory to write."""
    message = f"a {type(x).__name__} has no memory to write"
    raise ValueError(message)
