"""Read-only NumPy, a backend for tests: code that writes in place fails on it, as it would with JAX.

It is NumPy with the numbers that everybody has, and no array of it can be written. So it borrows what
NumPy's backend says, and freezes what that makes. NumPy's memory is looked at, not copied, so it may still
change on the other side.
"""

# ruff: noqa: ARG001 -- what each verb takes and does is said once for all of them, in _protocol.py

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xbridge._core.dtypes import DTYPES, instead
from xbridge._core.protocol import Unsupported
from xbridge.backends import numpy as host
from xbridge.errors import DTypeError
from xbridge.testing import _readonly
from xbridge.testing._readonly import ReadOnlyArray

if TYPE_CHECKING:
    from types import ModuleType

    from xbridge._core.devices import Device
    from xbridge._core.protocol import ArrayInfo, HostArray, MemoryLayout

name = "numpy_readonly"
plain: tuple[type, ...] = (ReadOnlyArray,)
scalars: tuple[type, ...] = ()
readonly = True
immutable = False
autograd = False
host_only = True
host_casts = host.host_casts
gaps = host.gaps
samples = "xbridge.testing.samples.numpy_readonly"


def owns(cls: type, /) -> bool:
    return issubclass(cls, ReadOnlyArray)


describe = host.array_info


def unsupported(x: ReadOnlyArray, /, *, leaving: bool) -> Unsupported | None:
    return host.unsupported(to_numpy(x), leaving=leaving)


layout = host.memory_layout
dtype_name = host.dtype_name


def unsupported_dtype(dtype: str, device: Device, /) -> Unsupported | None:
    if dtype not in DTYPES:
        return Unsupported(DTypeError, f"{name} has no {dtype}", instead(dtype))
    return host.unsupported_dtype(dtype, device)


default_dtype = host.default_dtype
device_name = host.device_name
resolve_device = host.resolve_device
devices = host.devices


def namespace(x: ReadOnlyArray, /) -> ModuleType:
    return _readonly.namespace()


tracing = host.is_tracing
outside = host.untraced
recording = host.is_grad_enabled


def fast_to_numpy(x: ReadOnlyArray, /) -> HostArray | None:
    return None


def fast_from_numpy(array: HostArray, /) -> ReadOnlyArray | None:
    return None


detach = host.detach
require_grad = host.require_grad
settle = host.materialize


def check_cast(x: ReadOnlyArray, dtype: str, /) -> ReadOnlyArray:
    host.check_cast(to_numpy(x), dtype)
    return x


def astype(x: ReadOnlyArray, dtype: str, /) -> ReadOnlyArray:
    return from_numpy(host.astype(to_numpy(x), dtype))


def copy(x: ReadOnlyArray, /) -> ReadOnlyArray:
    return from_numpy(host.copy(to_numpy(x)))


move = host.to_device


def stack(arrays: list[ReadOnlyArray], shape: tuple[int, ...], /) -> ReadOnlyArray:
    return from_numpy(host.stack([to_numpy(x) for x in arrays], shape))


def accepts_layout(info: ArrayInfo, layout: MemoryLayout, /) -> bool:
    return info.native_byteorder


def to_numpy(x: ReadOnlyArray, /) -> HostArray:
    return x.view(np.ndarray)


def from_numpy(array: HostArray, /) -> ReadOnlyArray:
    return ReadOnlyArray(array)


export = host.to_dlpack
import_ = host.from_dlpack
