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
from xbridge._core.protocol import Refusal
from xbridge.backends import numpy as host
from xbridge.errors import DTypeError
from xbridge.testing import _readonly
from xbridge.testing._readonly import ReadOnlyArray

if TYPE_CHECKING:
    from types import ModuleType

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Facts, HostArray, Layout

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


describe = host.describe


def refusal(x: ReadOnlyArray, /, *, leaving: bool) -> Refusal | None:
    return host.refusal(to_host(x), leaving=leaving)


layout = host.layout
dtype_name = host.dtype_name


def lacks(dtype: str, device: Device, /) -> Refusal | None:
    if dtype not in DTYPES:
        return Refusal(DTypeError, f"{name} has no {dtype}", instead(dtype))
    return host.lacks(dtype, device)


default_dtype = host.default_dtype
device_name = host.device_name
resolve_device = host.resolve_device
devices = host.devices


def namespace(x: ReadOnlyArray, /) -> ModuleType:
    return _readonly.namespace()


tracing = host.tracing
outside = host.outside
recording = host.recording


def peek(x: ReadOnlyArray, /) -> HostArray | None:
    return None


def adopt(array: HostArray, /) -> ReadOnlyArray | None:
    return None


detach = host.detach
track = host.track
settle = host.settle


def check(x: ReadOnlyArray, dtype: str, /) -> ReadOnlyArray:
    host.check(to_host(x), dtype)
    return x


def cast(x: ReadOnlyArray, dtype: str, /) -> ReadOnlyArray:
    return from_host(host.cast(to_host(x), dtype))


def copy(x: ReadOnlyArray, /) -> ReadOnlyArray:
    return from_host(host.copy(to_host(x)))


move = host.move


def stack(arrays: list[ReadOnlyArray], shape: tuple[int, ...], /) -> ReadOnlyArray:
    return from_host(host.stack([to_host(x) for x in arrays], shape))


def holds(facts: Facts, layout: Layout, /) -> bool:
    return facts.native


def to_host(x: ReadOnlyArray, /) -> HostArray:
    return x.view(np.ndarray)


def from_host(array: HostArray, /) -> ReadOnlyArray:
    return ReadOnlyArray(array)


export = host.export
import_ = host.import_
