"""Describe the chunks of Dask arrays, and compute them.

The scheduler returns the chunks of all arrays, because Dask would join chunks of any type. Each is checked,
written into the result and released, so the peak is between once and twice the memory of the results.
"""

from __future__ import annotations

import threading
from functools import partial
from math import isnan
from typing import TYPE_CHECKING, Any

import dask
import dask.array as da
import numpy as np
from dask.array.core import slices_from_chunks
from dask.base import compute_as_if_collection, get_scheduler
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph
from dask.multiprocessing import get as processes_get
from dask.threaded import get as threaded_get

from xbridge._core.devices import CPU
from xbridge._core.protocol import ArrayInfo, Transfers, Unsupported
from xbridge._host.memory import empty, fill, native_dtype
from xbridge.backends import numpy as _numpy
from xbridge.errors import (
    Chained,
    DTypeError,
    UnsupportedArrayError,
    XBridgeError,
    index_errors,
    of_caller,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xbridge._core.protocol import Array, HostArray

_ANNOUNCED = "a chunk that was announced as "

_of_caller = threading.local()
"""Holds, in a thread that converts for another one, the scheduler of that one and its options."""


def make_chunk_cast(given: np.dtype[Any], to: np.dtype[Any]) -> Callable[[Any], Any]:
    """Return a function that casts a chunk. It is pickled by value, so that workers need no xbridge."""
    announced = _ANNOUNCED

    def cast(chunk: Any) -> Any:
        came = getattr(chunk, "dtype", None)
        if not isinstance(came, np.dtype) or came.newbyteorder("=") != given:
            raise TypeError(f"{announced}{given} came as {came or type(chunk).__name__}")
        with np.errstate(all="ignore"):
            return chunk.astype(to)

    return cast


def compute_arrays(xs: list[Array]) -> list[HostArray]:
    """Compute several arrays together. If a task fails, Dask does not tell of which array."""
    action = _action(xs[0]) if len(xs) == 1 else f"compute {len(xs)} Dask arrays together"
    try:
        with Chained(lambda error: _task_error(error, action)):
            computed = _compute_chunks(xs)
    except XBridgeError as error:
        error.index = 0 if len(xs) == 1 else None  # a task of the user may have set another index
        raise
    computed.reverse()
    return list(index_errors(_join(x, computed.pop()) for x in xs))


def _action(x: Array) -> str:
    info = array_info(x)
    return f"compute a Dask array of {info.dtype} and shape {info.shape}"


def _task_error(error: Exception, action: str) -> Exception:
    """Return the error for a cast that met a chunk of another dtype; any other is the caller's own."""
    if isinstance(error, TypeError) and str(error).startswith(_ANNOUNCED):
        return UnsupportedArrayError.build(action, str(error))
    return of_caller(error, f"in a task, which xbridge ran to {action}")


def _compute_chunks(arrays: list[Array]) -> list[list[Any]]:
    graph = HighLevelGraph.merge(*[x.dask for x in arrays])
    keys = [list(flatten(x.__dask_keys__())) for x in arrays]
    options = getattr(_of_caller, "options", None) or {"scheduler": get_scheduler(collections=arrays)}
    return [list(chunks) for chunks in compute_as_if_collection(da.Array, graph, keys, **options)]


def _join(x: Array, chunks: list[Any]) -> HostArray:
    """Write the chunks of an array into new memory. The list is emptied, so that each is released."""
    lengths = tuple(_lengths(x, chunks))
    joined = empty(tuple(map(sum, lengths)), native_dtype(array_info(x).dtype))
    chunks.reverse()
    for place in slices_from_chunks(lengths):
        _write(x, joined[(..., *place)], chunks.pop())
    return joined


def _write(x: Array, part: HostArray, chunk: Any) -> None:
    """Write a chunk; raise if it is not what was announced."""
    dtype = array_info(x).dtype
    if unsupported_chunk(chunk) or (_numpy.array_info(chunk).dtype, chunk.shape) != (dtype, part.shape):
        shape = f" {chunk.dtype} of shape {chunk.shape}" if hasattr(chunk, "dtype") else ""
        raise UnsupportedArrayError.build(
            _action(x),
            f"{_ANNOUNCED}numpy.ndarray {dtype} of shape {part.shape} came as {kind_of(chunk)}{shape}",
        )
    fill(part, chunk)


def _lengths(x: Array, chunks: list[Any]) -> Iterator[tuple[int, ...]]:
    """Yield the lengths of the chunks along each axis, unknown ones from the first chunk of each row."""
    step = len(chunks)
    for axis, known in enumerate(x.chunks):
        step //= len(known)
        firsts = [chunks[i * step] for i in range(len(known))]
        shapes = [getattr(each, "shape", ()) for each in firsts]
        found = [shape[axis] if len(shape) == x.ndim else 0 for shape in shapes]
        yield tuple(m if isnan(n) else n for n, m in zip(known, found, strict=True))


def unsupported_chunk(chunk: object) -> Unsupported | None:
    """Return why an array with chunks like this one cannot be converted; None if it can."""
    if not isinstance(chunk, (np.ndarray, np.generic)):
        return Unsupported(UnsupportedArrayError, f"its chunks are {kind_of(chunk)}")
    refused = _numpy.unsupported(np.asanyarray(chunk), leaving=True)
    if refused is None or refused.error is DTypeError:
        return refused and refused._replace(hint=refused.hint.replace("x.tolist()", "x.compute().tolist()"))
    if isinstance(chunk, np.ma.MaskedArray):  # whether this one masks something says nothing about the others
        return refused._replace(reason="its mask would be lost", hint="dask.array.ma.filled(x, value)")
    return refused._replace(hint="x.map_blocks(numpy.asarray)")


def kind_of(chunk: object) -> str:
    cls = type(chunk)
    return f"{cls.__module__.partition('.')[0]}.{cls.__qualname__}"


def array_info(x: Array, /) -> ArrayInfo:
    if isinstance(x.dtype, np.dtype):
        return _numpy.array_info(np.empty(0, x.dtype))._replace(shape=x.shape)
    return ArrayInfo(str(x.dtype).rpartition(".")[2], CPU, x.shape)


def _options_now() -> dict[str, Any]:
    """Return the options for the scheduler of this thread, or of the one for which it converts."""
    captured = getattr(_of_caller, "options", None)
    if captured:
        return captured  # type: ignore[no-any-return] # what this function has returned
    options = {"scheduler": get_scheduler(cls=da.Array)}
    if options["scheduler"] in (threaded_get, processes_get):
        options.update({word: dask.config.get(word, None) for word in ("pool", "num_workers")})
    return options


class _DaskTransfers(Transfers):
    def thread_context(self) -> Callable[[], object]:
        return partial(setattr, _of_caller, "options", _options_now())


transfers: Transfers = _DaskTransfers()
