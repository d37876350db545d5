"""Dask: an array is a promise of chunks. It lies nowhere until it leaves, and then it is computed, once.

What stays within Dask stays a promise. What leaves is computed by whatever scheduler the user has set, and
comes chunk by chunk, because Dask would join chunks of any kind. Chunks are NumPy's, so NumPy's room answers
for them. Those that come from here are read-only, because tasks share them.
"""

from __future__ import annotations

from functools import reduce
from itertools import product
from math import isnan
from operator import getitem, methodcaller
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import dask
import dask.array as da
import numpy as np
from dask.array.core import normalize_chunks, slices_from_chunks

from xbridge import _host
from xbridge._devices import CPU, no_exchange
from xbridge._dtypes import category, exact_integers
from xbridge._host._memory import layout_of, native_dtype
from xbridge._protocol import Facts, Layout, Refusal
from xbridge.backends import numpy as _numpy
from xbridge.errors import Chained, DeviceError, DTypeError, GradientError, UnsupportedArrayError, counted

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from xbridge._devices import Device
    from xbridge._protocol import Array, Exporter, HostArray

if getattr(da, "ARRAY_EXPR_ENABLED", False):
    raise ImportError("Dask's array.query-planning is on, where arrays do not show their chunks; turn it off")

name = "dask"
plain: tuple[type, ...] = (da.Array,)
scalars: tuple[type, ...] = ()
readonly = True
immutable = True
autograd = False
host_only = True
host_casts: frozenset[tuple[str, str]] = frozenset()
gaps: dict[str, str] = {
    "device": "never: Dask arrays are computed in host memory",
    "history": "never: Dask does not differentiate",
    "readonly": "never: a Dask array looks at no memory",
    "sharing": "never: Dask reads memory later than the call, so what can change is copied",
}
samples = "xbridge.testing.samples.dask"


def owns(cls: type, /) -> bool:
    return issubclass(cls, da.Array)


def describe(x: Array, /) -> Facts:
    if isinstance(x.dtype, np.dtype):
        return _numpy.describe(np.empty(0, x.dtype))._replace(shape=x.shape)
    return Facts(str(x.dtype).rpartition(".")[2], CPU, x.shape)


def refusal(x: Array, /, *, leaving: bool) -> Refusal | None:
    if not leaving:
        return None
    if any(map(isnan, x.shape)):
        return Refusal(UnsupportedArrayError, "its chunks have unknown sizes", "x.compute_chunk_sizes()")
    return _strange(x._meta)


def layout(x: Array, /) -> Layout:
    if isinstance(x, _Gathered):
        return layout_of(x.memory)
    return Layout.nowhere(x.shape, x.dtype.itemsize, writable=False)


def dtype_name(dtype: object, /) -> str | None:
    return _numpy.dtype_name(dtype)


def lacks(dtype: str, device: Device, /) -> Refusal | None:
    return _numpy.lacks(dtype, device)


def default_dtype(category: str, device: Device, /) -> str:
    return _numpy.default_dtype(category, device)


def device_name(device: object, /) -> Device | None:
    return None


def resolve_device(device: Device, near: Device, /) -> Device:
    if device != CPU:
        raise DeviceError.because(
            f"put a Dask array on {device!r}", "Dask computes in host memory", "device='cpu'"
        )
    return CPU


def devices() -> tuple[Device, ...]:
    return (CPU,)


def namespace(x: Array, /) -> ModuleType:
    from array_api_compat.dask import array as compat  # noqa: PLC0415 -- 14 ms, and only this verb needs it

    return compat


def tracing() -> bool:
    return False


def outside(fn: Callable[..., Array], /) -> Callable[..., Array]:
    return fn


def recording() -> bool:
    return False


def peek(x: Array, /) -> HostArray | None:
    return None  # to compute it is a step


def adopt(host: HostArray, /) -> Array | None:
    # Every host array is copied, however it lies.
    return None if _numpy.refusal(host, leaving=True) else from_host(_host.copy(host))


def detach(x: Array, /) -> Array:
    return x


def track(x: Array, /) -> Array:
    raise GradientError.because(
        "make a Dask array require grad", gaps["history"].partition(": ")[2], "backend='torch'"
    )


def settle(x: Array, /) -> Array:
    return x if isinstance(x, _Gathered) else settle_all([x])[0]


def check(x: Array, dtype: str, /) -> Array:
    given = describe(x).dtype
    if isinstance(x, _Gathered):
        _host.check(x.memory, dtype)
    elif not _within(given, dtype):
        raise DTypeError.because(
            f"turn a Dask array of {given} into {dtype} unasked",
            "whether a value is lost shows only when it is computed",
            f"naming it: dtype={dtype!r}",
        )
    return x


def cast(x: Array, dtype: str, /) -> Array:
    if isinstance(x, _Gathered):
        return _gathered(_host.cast(x.memory, dtype))
    return x.astype(native_dtype(dtype))


def copy(x: Array, /) -> Array:
    return x.map_blocks(methodcaller("copy"), dtype=x.dtype, meta=x._meta)


def move(x: Array, device: Device, /) -> Array:
    return x


def stack(arrays: list[Array], shape: tuple[int, ...], /) -> Array:
    for n in reversed(shape):
        arrays = [da.stack(arrays[i : i + n]) for i in range(0, len(arrays), n)]
    return arrays[0]


def holds(facts: Facts, layout: Layout, /) -> bool:
    return True


def to_host(x: Array, /) -> HostArray:
    host: HostArray = settle(x).memory
    return host


def from_host(host: HostArray, /) -> Array:
    return _over(host, normalize_chunks("auto", host.shape, dtype=host.dtype), da.Array)


def export(x: Array, /) -> Exporter:
    raise no_exchange(name)


def import_(shown: Exporter, /) -> Array:
    raise no_exchange(name)


def settle_all(xs: list[Array], /) -> list[Array]:
    chunks = _computed(xs)[::-1]  # each let go when it is joined
    return list(counted(_gathered(_joined(x, chunks.pop())) for x in xs))


class _Gathered(da.Array):  # type: ignore[misc] # Dask has no types
    """An array of one chunk, which is here: what others settle into."""

    memory: HostArray


class _Chunks:
    """An array, as a collection of its own: what it computes to is a nested list of chunks, unjoined."""

    def __init__(self, x: Array) -> None:
        self._array = x

    def __getattr__(self, word: str) -> Any:
        return getattr(self._array, word)

    def __dask_postcompute__(self) -> tuple[type[list[Any]], tuple[()]]:
        return list, ()


def _computed(xs: list[Array]) -> list[list[Any]]:
    """The chunks of each, computed together; one by one if a task fails, to see whose that is."""
    try:
        with Chained(lambda error: _failed(xs[0], f"a task failed with {error!r}")):
            return list(dask.compute(*map(_Chunks, xs)))
    except UnsupportedArrayError:
        if len(xs) == 1:
            raise
    return [chunks for [chunks] in counted(_computed([x]) for x in xs)]


def _joined(x: Array, chunks: Any) -> HostArray:
    """Lay the chunks of an array side by side in new memory."""
    facts = describe(x)
    fresh = np.empty(facts.shape, native_dtype(facts.dtype))
    for where, at in zip(slices_from_chunks(x.chunks), np.ndindex(x.numblocks), strict=True):
        part, chunk = fresh[(..., *where)], reduce(getitem, at or (0,), chunks)
        if _strange(chunk) or (describe(chunk).dtype, chunk.shape) != (facts.dtype, part.shape):
            shape = f" {chunk.dtype} of shape {chunk.shape}" if hasattr(chunk, "dtype") else ""
            raise _failed(
                x,
                f"a chunk that was announced as numpy.ndarray {facts.dtype} of shape {part.shape} came as "
                f"{_kind(chunk)}{shape}",
                "map_blocks with the dtype=, chunks= and meta= of what its function returns",
            )
        part[...] = chunk
    return fresh


def _failed(x: Array, why: str, do: str = "x.compute(), which shows the task") -> UnsupportedArrayError:
    facts = describe(x)
    asked = f"compute a Dask array of {facts.dtype} and shape {facts.shape}"
    return UnsupportedArrayError.because(asked, why, do)


def _over(host: HostArray, chunks: tuple[tuple[int, ...], ...], cls: type[Array]) -> Array:
    """A graph of nothing but views of host memory, which nobody can write through it."""
    shown = _host.freeze(host) if host.flags.writeable else host
    label = f"xbridge-{uuid4().hex}"
    keys = product((label,), *(range(len(sizes)) for sizes in chunks))
    parts = [shown[(..., *where)] for where in slices_from_chunks(chunks)]
    return cls(dict(zip(keys, parts, strict=True)), label, chunks, meta=shown)


def _gathered(host: HostArray) -> Array:
    done = _over(host, tuple((n,) for n in host.shape), _Gathered)
    done.memory = host
    return done


def _strange(chunk: object) -> Refusal | None:
    """Why chunks like this one cannot leave."""
    if not isinstance(chunk, (np.ndarray, np.generic)):
        why, do = f"its chunks are {_kind(chunk)}", "x.map_blocks(f), where f makes NumPy arrays of them"
        return Refusal(UnsupportedArrayError, why, do)
    refused = _numpy.refusal(np.asanyarray(chunk), leaving=True)
    if refused is None or refused.error is DTypeError:
        return refused
    masked = isinstance(chunk, np.ma.MaskedArray)
    return refused._replace(do="dask.array.ma.filled(x, value)" if masked else "x.map_blocks(numpy.asarray)")


def _kind(chunk: object) -> str:
    cls = type(chunk)
    return f"{cls.__module__.partition('.')[0]}.{cls.__qualname__}"


def _within(given: str, dtype: str) -> bool:
    """Whether every value of an integer dtype is one of the other dtype."""
    if category(given) != "int":
        return False
    (low, high), (least, most) = exact_integers(given), exact_integers(dtype)
    return least <= low and high <= most
