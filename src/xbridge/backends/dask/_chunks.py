"""Chunks of Dask arrays: compute them, join them into one array, and cut an array into views."""

from __future__ import annotations

from functools import reduce
from itertools import product
from math import isnan
from operator import getitem
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import dask
import dask.array as da
import numpy as np
from dask.array.core import slices_from_chunks

from xbridge import _host
from xbridge._core.devices import CPU
from xbridge._core.protocol import ArrayInfo, Unsupported
from xbridge._host.memory import native_dtype
from xbridge.backends import numpy as _numpy
from xbridge.errors import Chained, DTypeError, UnsupportedArrayError, XBridgeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xbridge._core.protocol import Array, HostArray


class Gathered(da.Array):  # type: ignore[misc] # Dask has no types
    """A materialized array: one chunk, in host memory."""

    memory: HostArray


class _Chunks:
    """An array as a collection that computes to a nested list of chunks, which are not joined."""

    def __init__(self, x: Array) -> None:
        self._array = x

    def __getattr__(self, word: str) -> Any:
        return getattr(self._array, word)

    def __dask_postcompute__(self) -> tuple[type[list[Any]], tuple[()]]:
        return list, ()


def computed(xs: list[Array]) -> list[list[Any]]:
    """Compute the chunks of several arrays together. Dask does not name the array of a failed task."""
    one = len(xs) == 1
    action = _action(xs[0]) if one else f"compute {len(xs)} Dask arrays together"
    hint = f"{'x.compute()' if one else 'dask.compute(*arrays)'}, which shows the task"
    try:
        with Chained(
            lambda error: UnsupportedArrayError.build(action, f"a task failed with {error!r}", hint)
        ):
            return list(dask.compute(*map(_Chunks, xs)))
    except XBridgeError as error:
        error.index = 0 if one else None  # an index that the task itself had set is not ours
        raise


def joined(x: Array, chunks: Any) -> HostArray:
    """Copy the chunks of an array into new memory, as one array."""
    info, lengths = array_info(x), tuple(_lengths(x, chunks))
    fresh = np.empty([*map(sum, lengths)], native_dtype(info.dtype))
    for where, at in zip(slices_from_chunks(lengths), np.ndindex(x.numblocks), strict=True):
        part, chunk = fresh[(..., *where)], reduce(getitem, at or (0,), chunks)
        if unsupported_chunk(chunk) or (_numpy.array_info(chunk).dtype, chunk.shape) != (
            info.dtype,
            part.shape,
        ):
            shape = f" {chunk.dtype} of shape {chunk.shape}" if hasattr(chunk, "dtype") else ""
            raise UnsupportedArrayError.build(
                _action(x),
                f"a chunk that was announced as numpy.ndarray {info.dtype} of shape {part.shape} came as "
                f"{_kind(chunk)}{shape}",
                "map_blocks with the dtype=, chunks= and meta= of what its function returns",
            )
        part[...] = chunk
    return fresh


def _lengths(x: Array, chunks: Any) -> Iterator[tuple[int, ...]]:
    """Return the lengths of the chunks along each axis. The first chunk gives a length that was not known."""
    for axis, known in enumerate(x.chunks):
        firsts = ([0] * axis + [i] + [0] * (x.ndim - axis - 1) for i in range(len(known)))
        shapes = [getattr(reduce(getitem, at, chunks), "shape", ()) for at in firsts]
        found = [shape[axis] if len(shape) == x.ndim else 0 for shape in shapes]
        yield tuple(m if isnan(n) else n for n, m in zip(known, found, strict=True))


def _action(x: Array) -> str:
    info = array_info(x)
    return f"compute a Dask array of {info.dtype} and shape {info.shape}"


def over(host: HostArray, chunks: tuple[tuple[int, ...], ...], cls: type[Array]) -> Array:
    """Return an array whose chunks are read-only views of host memory."""
    shown = _host.as_readonly(host) if host.flags.writeable else host
    label = f"xbridge-{uuid4().hex}"
    keys = product((label,), *(range(len(sizes)) for sizes in chunks))
    parts = [shown[(..., *where)] for where in slices_from_chunks(chunks)]
    return cls(dict(zip(keys, parts, strict=True)), label, chunks, meta=shown)


def gathered(host: HostArray) -> Array:
    done = over(host, tuple((n,) for n in host.shape), Gathered)
    done.memory = host
    return done


def unsupported_chunk(chunk: object) -> Unsupported | None:
    """Return why an array with chunks like this one cannot be converted; None if it can."""
    if not isinstance(chunk, (np.ndarray, np.generic)):
        reason, hint = f"its chunks are {_kind(chunk)}", "x.map_blocks(f), where f makes NumPy arrays of them"
        return Unsupported(UnsupportedArrayError, reason, hint)
    refused = _numpy.unsupported(np.asanyarray(chunk), leaving=True)
    if refused is None or refused.error is DTypeError:
        return refused
    masked = isinstance(chunk, np.ma.MaskedArray)
    return refused._replace(
        hint="dask.array.ma.filled(x, value)" if masked else "x.map_blocks(numpy.asarray)"
    )


def _kind(chunk: object) -> str:
    cls = type(chunk)
    return f"{cls.__module__.partition('.')[0]}.{cls.__qualname__}"


def array_info(x: Array, /) -> ArrayInfo:
    """Return the properties of an array, computed or not."""
    if isinstance(x.dtype, np.dtype):
        return _numpy.array_info(np.empty(0, x.dtype))._replace(shape=x.shape)
    return ArrayInfo(str(x.dtype).rpartition(".")[2], CPU, x.shape)
