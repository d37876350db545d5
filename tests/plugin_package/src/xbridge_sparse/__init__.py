"""Arrays of `sparse` in xbridge: they store what differs from a fill value, and lie nowhere as a whole.

What stays within the library stays sparse. What leaves is laid out, which takes the memory of a dense array,
and an array that comes is read into a new `COO` whose fill value is zero. Every bit survives both ways: a
negative zero and a NaN are stored, and so is what happens to equal the fill value by `==` alone.

Dtypes are NumPy's, and a settled array is a NumPy array, so NumPy's backend answers for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import sparse

from xbridge import DeviceError, DTypeError, GradientError
from xbridge.backends import numpy as host
from xbridge.protocol import MemoryLayout, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from xbridge import Device
    from xbridge.protocol import Array, ArrayInfo, Exporter, HostArray

# -- facts ---------------------------------------------------------------------------------------

name = "sparse"
plain: tuple[type, ...] = (sparse.COO, sparse.GCXS, sparse.DOK)
scalars: tuple[type, ...] = ()
readonly = False
immutable = False
autograd = False
host_only = True
host_casts: frozenset[tuple[str, str]] = frozenset()
gaps: dict[str, str] = {
    "device": "never: sparse computes in host memory",
    "history": "never: sparse does not differentiate",
    "readonly": "never: sparse has no read-only arrays",
    "sharing": "never: sparse stores only what differs from the fill value",
}
samples = "xbridge_sparse.kit"  # a submodule called `samples` would take the place of this word

# -- look ----------------------------------------------------------------------------------------


def owns(cls: type, /) -> bool:
    return issubclass(cls, sparse.SparseArray)


def array_info(x: Array, /) -> ArrayInfo:
    return host.array_info(np.empty(0, x.dtype))._replace(shape=x.shape)


def unsupported(x: Array, /, *, leaving: bool) -> Unsupported | None:
    return host.unsupported(np.empty(0, x.dtype), leaving=leaving)


def memory_layout(x: Array, /) -> MemoryLayout:
    return host.memory_layout(x) if _is_dense(x) else MemoryLayout.unallocated(x.shape, x.dtype.itemsize)


def dtype_name(dtype: object, /) -> str | None:
    return host.dtype_name(dtype)


def unsupported_dtype(dtype: str, device: Device, /) -> Unsupported | None:
    # NumPy may know more of them, such as bfloat16, but sparse could not compute with those.
    if hasattr(sparse, dtype):
        return host.unsupported_dtype(dtype, device)
    return Unsupported(DTypeError, f"sparse has no {dtype}", "dtype='float32'")


def default_dtype(category: str, device: Device, /) -> str:
    return host.default_dtype(category, device)


def device_name(device: object, /) -> Device | None:
    return None


def resolve_device(device: Device, near: Device, /) -> Device:
    if device != "cpu":
        reason = gaps["device"].partition(": ")[2]
        raise DeviceError.build(f"put a sparse array on {device!r}", reason, "device='cpu'")
    return device


def devices() -> tuple[Device, ...]:
    return host.devices()


def namespace(x: Array, /) -> ModuleType:
    module: ModuleType = sparse
    return module


def is_tracing() -> bool:
    return False


def untraced(fn: Callable[..., Array], /) -> Callable[..., Array]:
    return fn


def is_grad_enabled() -> bool:
    return False


# -- hot: never, for to lay an array out is a step, and so is to store one ---------------------------


def fast_to_numpy(x: Array, /) -> HostArray | None:
    return None


def fast_from_numpy(array: HostArray, /) -> Array | None:
    return None


# -- steps ---------------------------------------------------------------------------------------


def detach(x: Array, /) -> Array:
    return x


def require_grad(x: Array, /) -> Array:
    reason = gaps["history"].partition(": ")[2]
    raise GradientError.build("make a sparse array require grad", reason, "backend='torch'")


def materialize(x: Array, /) -> Array:
    return x if _is_dense(x) else np.asarray(x.todense(), order="C")


def check_cast(x: Array, dtype: str, /) -> Array:
    host.check_cast(x if _is_dense(x) else _values(x), dtype)
    return x


def astype(x: Array, dtype: str, /) -> Array:
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def copy(x: Array, /) -> Array:
    return x.copy()


def to_device(x: Array, device: Device, /) -> Array:
    return x


def stack(arrays: list[Array], shape: tuple[int, ...], /) -> Array:
    # What is left out has to be the same, to the last bit; else all of it is laid out, and stored anew.
    if len({x.fill_value.tobytes() for x in arrays}) > 1:
        return from_numpy(host.stack([materialize(x) for x in arrays], shape))
    return sparse.stack([sparse.COO(x) for x in arrays]).reshape((*shape, *arrays[0].shape))


def accepts_layout(info: ArrayInfo, layout: MemoryLayout, /) -> bool:
    return True


def to_numpy(x: Array, /) -> HostArray:
    dense: HostArray = materialize(x)
    return dense


def from_numpy(array: HostArray, /) -> Array:
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    # Left to itself, sparse makes the element of an array without axes the fill value, and keeps hold of it.
    return sparse.COO.from_numpy(native, fill_value=native.dtype.type(0))


def to_dlpack(x: Array, /) -> Exporter:
    raise _no_devices()


def from_dlpack(shown: Exporter, /) -> Array:
    raise _no_devices()


# -- helpers -------------------------------------------------------------------------------------


def _no_devices() -> DeviceError:
    """There is no memory of devices to show, and none is looked at."""
    return DeviceError.build("hand over memory of a device in sparse", gaps["device"], "device='cpu'")


def _is_dense(x: Array) -> bool:
    """Whether it has been settled."""
    return isinstance(x, np.ndarray)


def _values(x: Array) -> HostArray:
    """Every value that is in it once or more, and no memory for those that are not stored."""
    coo = sparse.COO(x)
    stored: HostArray = coo.data
    return stored if coo.nnz == coo.size else np.append(stored, coo.fill_value)
