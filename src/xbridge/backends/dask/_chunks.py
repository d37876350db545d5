"""Describe the chunks of Dask arrays, and make Dask arrays of views of host memory."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING
from uuid import uuid4

import dask.array as da
import numpy as np
from dask.array.core import slices_from_chunks

from xbridge._core.devices import CPU
from xbridge._core.protocol import ArrayInfo, Unsupported
from xbridge._host import memory as _host
from xbridge.backends import numpy as _numpy
from xbridge.errors import DTypeError, UnsupportedArrayError

if TYPE_CHECKING:
    from xbridge._core.protocol import Array, HostArray


class MaterializedArray(da.Array):  # type: ignore[misc] # Dask has no types
    """A Dask array that has been computed: one chunk over `memory`."""

    memory: HostArray


def make_over_host(host: HostArray, chunks: tuple[tuple[int, ...], ...], cls: type[Array]) -> Array:
    """Return an array whose chunks are read-only views of host memory."""
    shown = _host.as_readonly(host) if host.flags.writeable else host
    label = f"xbridge-{uuid4().hex}"
    keys = product((label,), *(range(len(sizes)) for sizes in chunks))
    parts = [shown[(..., *where)] for where in slices_from_chunks(chunks)]
    return cls(dict(zip(keys, parts, strict=True)), label, chunks, meta=shown)


def one_chunk(host: HostArray) -> tuple[tuple[int, ...], ...]:
    """Return the chunk sizes of an array that is not divided."""
    return tuple((n,) for n in host.shape)


def make_materialized(host: HostArray) -> Array:
    done = make_over_host(host, one_chunk(host), MaterializedArray)
    done.memory = host
    return done


def unsupported_chunk(chunk: object) -> Unsupported | None:
    """Return why an array with chunks like this one cannot be converted; None if it can."""
    if not isinstance(chunk, (np.ndarray, np.generic)):
        return Unsupported(UnsupportedArrayError, f"its chunks are {kind_of(chunk)}", "")
    refused = _numpy.unsupported(np.asanyarray(chunk), leaving=True)
    if refused is None or refused.error is DTypeError:
        return refused and refused._replace(hint=refused.hint.replace("x.tolist()", "x.compute().tolist()"))
    if isinstance(chunk, np.ma.MaskedArray):  # whether this one masks something says nothing about the others
        return refused._replace(reason="its mask would be lost", hint="dask.array.ma.filled(x, value)")
    return refused._replace(hint="x.map_blocks(numpy.asarray)")


def kind_of(chunk: object) -> str:
    """Return the name of the type of a chunk, for errors."""
    cls = type(chunk)
    return f"{cls.__module__.partition('.')[0]}.{cls.__qualname__}"


def array_info(x: Array, /) -> ArrayInfo:
    """Return the properties of an array, computed or not."""
    if isinstance(x.dtype, np.dtype):
        return _numpy.array_info(np.empty(0, x.dtype))._replace(shape=x.shape)
    return ArrayInfo(str(x.dtype).rpartition(".")[2], CPU, x.shape)
