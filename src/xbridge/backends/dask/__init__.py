"""The backend of Dask, whose arrays are graphs of tasks that compute their chunks.

Conversions within Dask stay lazy. A conversion to another library computes the array once, with the scheduler
that the user has set. It takes and checks the chunks one by one, because Dask would join chunks of any type.
The chunks have to be NumPy's arrays, so NumPy's backend describes them. Those of arrays that are made here
are read-only, because tasks share them.
"""

from __future__ import annotations

from itertools import product
from operator import methodcaller
from typing import TYPE_CHECKING
from uuid import uuid4

import dask
import dask.array as da
import numpy as np
from dask.array.core import normalize_chunks, slices_from_chunks
from dask.utils import parse_bytes

from xbridge._core.dtypes import DTYPES
from xbridge._core.protocol import Fast, Gap, MemoryLayout
from xbridge._host import memory as _host
from xbridge._host.memory import layout_of, native_dtype
from xbridge.backends import numpy as _numpy
from xbridge.backends.dask._compute import array_info as array_info
from xbridge.backends.dask._compute import compute_arrays, make_chunk_cast, unsupported_chunk
from xbridge.backends.dask._compute import transfers as transfers
from xbridge.errors import FOREIGN_ERRORS, DTypeError, XBridgeError

if TYPE_CHECKING:
    from types import ModuleType

    from xbridge._core.protocol import Array, ArrayInfo, HostArray, Unsupported

if getattr(da, "ARRAY_EXPR_ENABLED", False):
    raise ImportError("Dask's array.query-planning is on, in which arrays hide their chunks; turn it off")

name = "dask"
array_types: tuple[type, ...] = (da.Array,)
gaps: dict[str, Gap] = {
    "devices": Gap("never", "Dask arrays are computed in host memory"),
    "autograd": Gap("never", "Dask does not differentiate"),
    "sharing": Gap("never", "Dask reads memory later than the call, so what can change is copied"),
}
assumes_immutable = True
samples = "xbridge.testing.samples.dask"


class _MaterializedArray(da.Array):  # type: ignore[misc] # Dask has no types
    """A Dask array that has been computed: one chunk over `memory`."""

    memory: HostArray


def _make_over_host(host: HostArray, chunks: tuple[tuple[int, ...], ...], cls: type[Array]) -> Array:
    """Return an array whose chunks are read-only views of host memory."""
    shown = _host.as_readonly(host) if host.flags.writeable else host
    label = f"xbridge-{uuid4().hex}"
    keys = product((label,), *(range(len(sizes)) for sizes in chunks))
    parts = [shown[(..., *where)] for where in slices_from_chunks(chunks)]
    return cls(dict(zip(keys, parts, strict=True)), label, chunks, meta=shown)


def _one_chunk(host: HostArray) -> tuple[tuple[int, ...], ...]:
    """Return the chunk sizes of an array that is not divided."""
    return tuple((n,) for n in host.shape)


def _make_materialized(host: HostArray) -> Array:
    done = _make_over_host(host, _one_chunk(host), _MaterializedArray)
    done.memory = host
    return done


def to_numpy(x: Array, /) -> HostArray:
    host: HostArray = materialize(x).memory
    return host


def from_numpy(host: HostArray, /) -> Array:
    if host.size < 2 or host.nbytes <= parse_bytes(dask.config.get("array.chunk-size")):
        return _make_over_host(host, _one_chunk(host), da.Array)
    return _make_over_host(host, normalize_chunks("auto", host.shape, dtype=host.dtype), da.Array)


def unsupported(x: Array, /, *, leaving: bool) -> Unsupported | None:
    return unsupported_chunk(x._meta) if leaving else None


def memory_layout(x: Array, /) -> MemoryLayout:
    if isinstance(x, _MaterializedArray):
        return layout_of(x.memory)
    return MemoryLayout.unallocated(x.shape, x.dtype.itemsize, writable=False)


def accepts_layout(info: ArrayInfo, layout: MemoryLayout, /) -> bool:
    return True


def namespace(x: Array, /) -> ModuleType:
    from array_api_compat.dask import array as compat  # noqa: PLC0415 -- 14 ms, and only this verb needs it

    return compat


def copy(x: Array, /) -> Array:
    return x.map_blocks(methodcaller("copy"), dtype=x.dtype, meta=x._meta)


def stack(arrays: list[Array], shape: tuple[int, ...], /) -> Array:
    for n in reversed(shape):
        arrays = [da.stack(arrays[i : i + n]) for i in range(0, len(arrays), n)]
    return arrays[0]


def astype(x: Array, dtype: str, /) -> Array:
    _host.astype(np.empty(0, x.dtype), dtype)  # a trial: what NumPy cannot cast fails before it is computed
    native = native_dtype(dtype)
    if x.dtype.kind in "biufcV" and not x.dtype.names:
        given = x.dtype.newbyteorder("=")
        to = given if native.kind == "V" and DTYPES[dtype].is_finite else native
        cast = make_chunk_cast(given, to)
        x = x.map_blocks(cast, name=f"xbridge-{uuid4().hex}", dtype=to, meta=cast(x._meta))
        if to is native:
            return x
    return x.map_blocks(_cast_chunk, dtype, dtype=native)  # Dask would drop imaginary parts, as NumPy does


def _cast_chunk(chunk: HostArray, dtype: str) -> HostArray:
    try:
        return _host.astype(chunk, dtype)
    except XBridgeError:
        raise
    except FOREIGN_ERRORS as error:  # such as of a string that is no number; there is no plan at this time
        action = f"cast a chunk of {chunk.dtype} to {dtype}"
        raise DTypeError.build(action, f"it failed with {error!r}") from error


def check_cast(x: Array, dtype: str, /) -> Array:
    if isinstance(x, _MaterializedArray):
        _host.check_cast(x.memory, dtype)
        return x
    raise DTypeError.build(
        f"cast a Dask array of {array_info(x).dtype} to {dtype} without loss",
        "a lost value would show only when it is computed",
        f"naming it: dtype={dtype!r}",
    )


def materialize(x: Array, /) -> Array:
    return x if isinstance(x, _MaterializedArray) else materialize_many([x])[0]


def materialize_many(xs: list[Array], /) -> list[Array]:
    return [_make_materialized(host) for host in compute_arrays(xs)]


def fast_from_numpy(host: HostArray, /) -> Array | None:
    # Any layout will do, because a host array is always copied: Dask reads it later.
    return None if _numpy.unsupported(host, leaving=True) else from_numpy(_host.copy(host))


fast: Fast = Fast(from_numpy=fast_from_numpy)
