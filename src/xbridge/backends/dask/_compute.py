"""Compute Dask arrays with bounded memory: each chunk is cast, written into the result, and released.

How this is done depends on the scheduler. In this process, additional tasks write the chunks as they are
computed. On a cluster and in other processes, additional tasks cast the chunks there, and those of a cluster
are fetched as they are completed. Any other scheduler computes the array as it is, and returns all chunks.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from math import isnan, prod
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import dask
import dask.array as da
import numpy as np
from dask.array.core import slices_from_chunks
from dask.base import get_scheduler
from dask.multiprocessing import get as processes_get
from dask.threaded import get as threaded_get

from xbridge import _host
from xbridge._core.protocol import Transfers
from xbridge._host.memory import empty, fill, native_dtype
from xbridge.backends import numpy as _numpy
from xbridge.backends.dask._chunks import array_info, kind_of, unsupported_chunk
from xbridge.errors import Chained, UnsupportedArrayError, XBridgeError, index_errors, of_caller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array, ArrayFn, HostArray

    Place = tuple[int, ...]
    """The index of a chunk along each axis."""

SMALL = 1 << 22
"""Arrays with fewer bytes together are computed without additional tasks. Measured: two copies cost less."""

FETCHED = 1 << 26
"""The bytes of chunks that are fetched from a cluster in one call, at least one chunk."""

_UNKNOWN_NBYTES = 1 << 22
"""The size that is assumed for a chunk of unknown size."""


_of_caller = threading.local()
"""Holds, in a thread that converts for another one, the scheduler of that one and its options."""


class InParts(NamedTuple):
    """An array to be computed, with the cast that is applied to its chunks."""

    array: Array
    dtype: str | None = None
    check: bool = False
    """True if it is an error to lose a value in the cast."""


class Result:
    """An array that is being computed, and the memory of its result. Chunks may come in any order.

    `put` takes a chunk that was cast already, or one as it was computed in a tuple.
    """

    def __init__(self, x: Array | InParts) -> None:
        x = x if isinstance(x, InParts) else InParts(x)
        self.array = x.array
        self.refused: list[XBridgeError] = []
        """The errors about chunks that were refused, one by each thread that found one."""
        self._info = array_info(self.array)
        self._dtype = x.dtype or self._info.dtype
        self._check = x.check
        self._chunks: dict[Place, Any] = {}
        self._begin(self.array.chunks)

    def __dask_tokenize__(self) -> object:
        """Return a random name. By default, Dask would hash the whole memory for one."""
        return uuid4().hex

    @property
    def action(self) -> str:
        """The action that is not possible, for errors."""
        return f"compute a Dask array of {self._info.dtype} and shape {self._info.shape}"

    def map_writes(self) -> Array:
        """Return an array whose tasks write the chunks, for a scheduler in this process."""
        return self._map_chunks(self.write)

    def map_casts(self) -> Array:
        """Return an array whose tasks cast the chunks."""
        return self._map_chunks(self._cast()) if self.casts else self.array

    @property
    def size(self) -> int:
        """The bytes of the result; a guess if they are unknown."""
        return self.array.npartitions * _UNKNOWN_NBYTES if self._memory is None else self._memory.nbytes

    @property
    def casts(self) -> bool:
        """True if the chunks are cast to another dtype."""
        return self._dtype != self._info.dtype

    def write(self, chunk: Any, block_id: Place) -> None:
        """Take a computed chunk, in a task. If it has to wait for others, cast it first, to save memory."""
        if self._memory is None and self.casts:
            self.put(self._cast()(chunk), block_id)
        else:
            self.put_raw(chunk, block_id)

    def put_raw(self, chunk: Any, place: Place) -> None:
        """Take a computed chunk that was not cast."""
        self.put((chunk,), place)

    def put(self, given: Any, place: Place) -> None:
        """Take a chunk: write it, or keep it until the sizes of all chunks are known."""
        if self._memory is None:
            self._chunks[place] = given
            return
        try:
            self._write(self._memory[(..., *self._slices[place])], given)
        except XBridgeError as error:
            self.refused.append(error)
            raise

    def done(self) -> HostArray:
        """Return the result, after all chunks were put."""
        if self._memory is None:
            self._begin(tuple(self._lengths()))
            for place in list(self._chunks):
                self.put(self._chunks.pop(place), place)
        assert self._memory is not None  # noqa: S101 -- all sizes are known now
        return self._memory

    def nbytes(self, place: Place) -> int:
        """Return the bytes of a chunk after the cast; a guess if its size is unknown."""
        sizes = [lengths[i] for lengths, i in zip(self.array.chunks, place, strict=True)]
        return _UNKNOWN_NBYTES if any(map(isnan, sizes)) else prod(sizes) * native_dtype(self._dtype).itemsize

    def _begin(self, chunks: tuple[tuple[int, ...], ...]) -> None:
        """Allocate the memory, if all sizes are known."""
        self._memory: HostArray | None = None
        shape = tuple(map(sum, chunks))
        if not any(map(isnan, shape)):
            self._memory = empty(shape, native_dtype(self._dtype))
            places = np.ndindex(self.array.numblocks)
            self._slices = dict(zip(places, slices_from_chunks(chunks), strict=True))

    def _write(self, part: HostArray, given: Any) -> None:
        raw = type(given) is tuple
        chunk, dtype = (given[0], self._info.dtype) if raw else (given, self._dtype)
        if unsupported_chunk(chunk) or (_numpy.array_info(chunk).dtype, chunk.shape) != (dtype, part.shape):
            shape = f" {chunk.dtype} of shape {chunk.shape}" if hasattr(chunk, "dtype") else ""
            raise UnsupportedArrayError.build(
                self.action,
                f"a chunk that was announced as numpy.ndarray {self._info.dtype} of shape {part.shape} "
                f"came as {kind_of(chunk)}{shape}",
                "map_blocks with the dtype=, chunks= and meta= of what its function returns",
            )
        if raw and self._check:
            _host.check_cast(chunk, self._dtype)
        fill(part, chunk)

    def _cast(self) -> Callable[[Any], Any]:
        check = partial(_host.check_cast, dtype=self._dtype) if self._check else None
        return _make_chunk_cast(native_dtype(self._info.dtype), native_dtype(self._dtype), check)

    def _map_chunks(self, fn: Callable[..., Any]) -> Array:
        meta = np.empty((0,) * self.array.ndim, native_dtype(self._dtype))
        return da.map_blocks(fn, self.array, name=f"xbridge-{uuid4().hex}", dtype=meta.dtype, meta=meta)

    def _lengths(self) -> Iterator[tuple[int, ...]]:
        """Return the lengths of the chunks along each axis, unknown ones from the first chunk of each row."""
        ndim = self.array.ndim
        for axis, known in enumerate(self.array.chunks):
            firsts = ((0,) * axis + (i,) + (0,) * (ndim - axis - 1) for i in range(len(known)))
            givens = [self._chunks[place] for place in firsts]
            shapes = [getattr(x[0] if type(x) is tuple else x, "shape", ()) for x in givens]
            found = [shape[axis] if len(shape) == ndim else 0 for shape in shapes]
            yield tuple(m if isnan(n) else n for n, m in zip(known, found, strict=True))


def _make_chunk_cast(
    given: np.dtype[Any], to: np.dtype[Any], check: Callable[[HostArray], object] | None
) -> Callable[[Any], Any]:
    """Return a function that casts a chunk. It is pickled by value, so that workers need no xbridge.

    Only if values are checked, xbridge has to be installed on the workers.
    """

    def cast(chunk: Any) -> Any:
        # A chunk of another type or dtype than declared, or that would lose a value, is returned as it is, in
        # a tuple. `Result.put` then refuses it.
        plain = type(chunk) in (np.ndarray, np.memmap, np.matrix) or isinstance(chunk, np.generic)
        if not plain or chunk.dtype.newbyteorder("=") != given:
            return (chunk,)
        try:
            if check:
                check(chunk)
        except OverflowError:
            return (chunk,)
        with np.errstate(all="ignore"):
            return chunk.astype(to)

    return cast


class _Awaited(NamedTuple):
    """A chunk that a cluster computes, and the results that take it."""

    future: Any
    nbytes: int
    takers: list[Callable[[Any], None]]


class _Chunks:
    """An array as a Dask collection, whose `persist` returns a dict of the chunks in place of an array."""

    def __init__(self, x: Array) -> None:
        self._array = x

    def __getattr__(self, word: str) -> Any:
        return getattr(self._array, word)

    def __dask_postpersist__(self) -> tuple[Callable[..., Any], tuple[()]]:
        return dict, ()


def compute_arrays(xs: list[Array | InParts]) -> list[HostArray]:
    """Compute several arrays together. If a task fails, Dask does not tell of which array."""
    results = [Result(x) for x in xs]
    one = len(results) == 1
    action = results[0].action if one else f"compute {len(results)} Dask arrays together"
    try:
        with Chained(lambda error: of_caller(error, f"in a task, which xbridge ran to {action}")):
            _compute(results)
    except XBridgeError as error:
        refused = [i for i, result in enumerate(results) if any(error is found for found in result.refused)]
        error.index = next(iter(refused), 0 if one else None)  # a task of the user may have set another index
        raise
    return list(index_errors(result.done() for result in results))


def _compute(results: list[Result]) -> None:
    """Compute the chunks of all results, and put them."""
    arrays = [result.array for result in results]
    schedule, options = getattr(_of_caller, "scheduler", None) or (get_scheduler(collections=arrays), {})
    persist = partial(dask.persist, traverse=False, **options)
    small = sum(result.size for result in results) < SMALL
    if not small and _runs_here(schedule) and any(x.npartitions > 1 for x in arrays):
        persist(*[_Chunks(result.map_writes()) for result in results])
        return
    raw = small or not _runs_elsewhere(schedule)
    lazy = arrays if raw else [result.map_casts() for result in results]
    # Equal arrays get the same dictionary, and each result empties its own, so they are copied.
    persisted = [dict(chunks) for chunks in persist(*map(_Chunks, lazy))]
    waiting = _put_present(results, persisted, raw=raw)
    if waiting:
        _fetch(waiting)


def _scheduler_now() -> tuple[Any, dict[str, Any]]:
    """Return the scheduler of this thread, or of the one for which it converts, with its options."""
    captured = getattr(_of_caller, "scheduler", None)
    if captured:
        return captured  # type: ignore[no-any-return] # what this function has returned
    schedule = get_scheduler(cls=da.Array)
    options = {"scheduler": schedule}
    if schedule in (threaded_get, processes_get):
        options.update({word: dask.config.get(word, None) for word in ("pool", "num_workers")})
    return schedule, options


class _DaskTransfers(Transfers):
    def threaded(self, fn: ArrayFn, device: Device, /) -> ArrayFn:  # noqa: ARG002 -- there is one device
        scheduler = _scheduler_now()

        def in_thread(xs: list[Array]) -> list[Array]:
            before, _of_caller.scheduler = getattr(_of_caller, "scheduler", None), scheduler
            try:
                return fn(xs)
            finally:
                _of_caller.scheduler = before

        return in_thread

    def thread_context(self) -> Callable[[], object]:
        return partial(setattr, _of_caller, "scheduler", _scheduler_now())


transfers: Transfers = _DaskTransfers()


def _put_present(
    results: list[Result], persisted: list[dict[Any, Any]], *, raw: bool
) -> dict[object, _Awaited]:
    """Put the chunks that are in this process, and return those that a cluster has.

    Chunks are removed from `persisted`, so that each is released when it is written.
    """
    waiting: dict[object, _Awaited] = {}
    for result, chunks in zip(results, persisted, strict=True):
        take = result.put_raw if raw or not result.casts else result.put
        for key in list(chunks):
            chunk, place = chunks.pop(key), key[1:]
            if _is_of_cluster(chunk, "Future"):
                one = waiting.setdefault(chunk.key, _Awaited(chunk, result.nbytes(place), []))
                one.takers.append(partial(take, place=place))
            else:
                take(chunk, place)
    return waiting


def _runs_here(schedule: object) -> bool:
    """Return True if a scheduler runs all tasks in this process, where they can write to its memory."""
    pools = (type(None), int, ThreadPool, ThreadPoolExecutor)
    return schedule in (threaded_get, dask.get) and isinstance(dask.config.get("pool", None), pools)


def _runs_elsewhere(schedule: object) -> bool:
    """Return True if a scheduler sends the code of tasks to other processes."""
    return schedule is processes_get or _is_of_cluster(getattr(schedule, "__self__", None), "Client")


def _is_of_cluster(thing: object, kind: str) -> bool:
    return isinstance(thing, getattr(sys.modules.get("distributed"), kind, ()))


def _fetch(waiting: dict[object, _Awaited]) -> None:
    """Fetch chunks from a cluster as they are completed, and put them."""
    from distributed import as_completed, rejoin, secede  # noqa: PLC0415 -- it is imported with the first client

    client = next(iter(waiting.values())).future.client
    with ExitStack() as stack:
        stack.callback(_release, waiting)
        # `secede` raises these if this is not a task of a worker, or if the task has seceded already.
        with suppress(AttributeError, KeyError, ValueError):
            secede()  # if it is, a worker with one thread could not run the tasks that it waits for
            stack.callback(rejoin)
        for batch in as_completed([one.future for one in waiting.values()], loop=client.loop).batches():
            while batch:
                group = _take_group(batch, waiting)
                chunks = client.gather(group)
                while group:
                    chunk = chunks.pop()
                    for take in waiting.pop(group.pop().key).takers:
                        take(chunk)
                    del chunk


def _release(waiting: dict[object, _Awaited]) -> None:
    """Release chunks that were not fetched because of an error, whose traceback would keep them."""
    for one in waiting.values():
        one.future.release()


def _take_group(batch: list[Any], waiting: dict[object, _Awaited]) -> list[Any]:
    """Take futures from a batch: at least one, up to about `FETCHED` bytes of chunks."""
    group: list[Any] = []
    size = 0
    while batch and (not group or size < FETCHED):
        group.append(batch.pop())
        size += waiting[group[-1].key].nbytes
    return group
