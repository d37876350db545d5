"""Arrays of `sparse` in xbridge: they store the elements that differ from a fill value.

Conversions within the library keep arrays sparse. On the way out, an array is laid out in the memory of a
dense array. On the way in, it is read into a new `COO` whose fill value is zero. Every bit is kept in both
directions: a negative zero and a NaN are stored, and so are elements that equal the fill value only by `==`.

Dtypes are NumPy's, and a materialized array is a NumPy array, so NumPy's backend serves both. There is no
fast path, because both directions compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import sparse

from xbridge import DTypeError
from xbridge.backends import numpy as host
from xbridge.protocol import Gap, MemoryLayout, Unsupported

if TYPE_CHECKING:
    from types import ModuleType

    from xbridge import Device
    from xbridge.protocol import Array, ArrayInfo, HostArray

name = "sparse"
array_types: tuple[type, ...] = (sparse.COO, sparse.GCXS, sparse.DOK)
gaps = {
    "devices": Gap("never", "sparse computes in host memory"),
    "autograd": Gap("never", "sparse does not differentiate"),
    "readonly": Gap("never", "sparse has no read-only arrays"),
    "sharing": Gap("never", "sparse stores only what differs from the fill value"),
}
samples = "xbridge_sparse.kit"  # a submodule called `samples` would take the place of this word


def to_numpy(x: Array, /) -> HostArray:
    dense: HostArray = materialize(x)
    return dense


def from_numpy(array: HostArray, /) -> Array:
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    # Left to itself, sparse makes the element of an array without axes the fill value, and keeps hold of it.
    return sparse.COO.from_numpy(native, fill_value=native.dtype.type(0))


def array_info(x: Array, /) -> ArrayInfo:
    return host.array_info(np.empty(0, x.dtype))._replace(shape=x.shape)


def unsupported(x: Array, /, *, leaving: bool) -> Unsupported | None:
    return host.unsupported(np.empty(0, x.dtype), leaving=leaving)


def memory_layout(x: Array, /) -> MemoryLayout:
    return host.memory_layout(x) if _is_dense(x) else MemoryLayout.unallocated(x.shape, x.dtype.itemsize)


def accepts_layout(info: ArrayInfo, layout: MemoryLayout, /) -> bool:
    return True  # `from_numpy` reads it, in whatever order the bytes are


def namespace(x: Array, /) -> ModuleType:
    module: ModuleType = sparse
    return module


def copy(x: Array, /) -> Array:
    return x.copy()


def stack(arrays: list[Array], shape: tuple[int, ...], /) -> Array:
    # What is left out has to be the same, to the last bit; else all of it is laid out, and stored anew.
    if len({x.fill_value.tobytes() for x in arrays}) > 1:
        return from_numpy(host.stack([materialize(x) for x in arrays], shape))
    return sparse.stack([sparse.COO(x) for x in arrays]).reshape((*shape, *arrays[0].shape))


def unsupported_dtype(dtype: str, device: Device, /) -> Unsupported | None:
    # NumPy may know more of them, such as bfloat16, but sparse could not compute with those.
    if hasattr(sparse, dtype):
        return host.unsupported_dtype(dtype, device)
    return Unsupported(DTypeError, f"sparse has no {dtype}", "dtype='float32'")


def astype(x: Array, dtype: str, /) -> Array:
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def check_cast(x: Array, dtype: str, /) -> Array:
    host.check_cast(x if _is_dense(x) else _values(x), dtype)
    return x


def materialize(x: Array, /) -> Array:
    return x if _is_dense(x) else np.asarray(x.todense(), order="C")


# -- helpers -------------------------------------------------------------------------------------


def _is_dense(x: Array) -> bool:
    """Return True if the array is materialized."""
    return isinstance(x, np.ndarray)


def _values(x: Array) -> HostArray:
    """Return every value of the array at least once, without memory for elements that are not stored."""
    coo = sparse.COO(x)
    stored: HostArray = coo.data
    return stored if coo.nnz == coo.size else np.append(stored, coo.fill_value)
