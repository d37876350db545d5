"""Dask: an array is a promise of chunks. It lies nowhere until it leaves, and then it is computed, once.

What stays within Dask stays a promise. What leaves is computed by whatever scheduler the user has set, and
comes chunk by chunk, because Dask would join chunks of any kind. Chunks are NumPy's, so NumPy's room answers
for them. Those that come from here are read-only, because tasks share them.
"""

from __future__ import annotations

from operator import methodcaller
from typing import TYPE_CHECKING

import dask  # noqa: F401 -- its root, plainly, as in every backend
import dask.array as da
from dask.array.core import normalize_chunks

from xbridge import _host
from xbridge._core.devices import CPU, no_exchange
from xbridge._core.protocol import Layout
from xbridge._host.memory import layout_of, native_dtype
from xbridge.backends import numpy as _numpy
from xbridge.backends.dask._chunks import Gathered, computed, facts_of, gathered, joined, over, strange
from xbridge.errors import (
    DeviceError,
    DTypeError,
    GradientError,
    counted,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array, Exporter, Facts, HostArray, Refusal

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
    return facts_of(x)


def refusal(x: Array, /, *, leaving: bool) -> Refusal | None:
    return strange(x._meta) if leaving else None


def layout(x: Array, /) -> Layout:
    if isinstance(x, Gathered):
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
    return x if isinstance(x, Gathered) else settle_all([x])[0]


def check(x: Array, dtype: str, /) -> Array:
    if isinstance(x, Gathered):
        _host.check(x.memory, dtype)
        return x
    raise DTypeError.because(
        f"turn a Dask array of {describe(x).dtype} into {dtype} unasked",
        "whether a value is lost shows only when it is computed",
        f"naming it: dtype={dtype!r}",
    )


def cast(x: Array, dtype: str, /) -> Array:
    if isinstance(x, Gathered):
        return gathered(_host.cast(x.memory, dtype))
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
    return over(host, normalize_chunks("auto" if host.size else -1, host.shape, dtype=host.dtype), da.Array)


def export(x: Array, /) -> Exporter:
    raise no_exchange(name)


def import_(shown: Exporter, /) -> Array:
    raise no_exchange(name)


def settle_all(xs: list[Array], /) -> list[Array]:
    chunks = computed(xs)[::-1]  # each let go when it is joined
    return list(counted(gathered(joined(x, chunks.pop())) for x in xs))
