"""Read-only NumPy, a backend for tests: code that writes in place fails on it, as it would with JAX.

The backend has the canonical dtypes, and its arrays cannot be written. It calls NumPy's backend, and makes
the results read-only. Its arrays share the memory of NumPy arrays, which can still change through these.
"""

# ruff: noqa: ARG001 -- the protocol documents each verb and its arguments

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xbridge.errors import DTypeError
from xbridge.extend import DTYPES, HOST, get_backend
from xbridge.protocol import Unsupported
from xbridge.testing import _readonly
from xbridge.testing._readonly import ReadOnlyArray

if TYPE_CHECKING:
    from types import ModuleType

    from xbridge import Device
    from xbridge.protocol import HostArray

host = get_backend(HOST)

name = "numpy_readonly"
array_types: tuple[type, ...] = (ReadOnlyArray,)
gaps = host.gaps


def to_numpy(x: ReadOnlyArray, /) -> HostArray:
    return x.view(np.ndarray)


def from_numpy(array: HostArray, /) -> ReadOnlyArray:
    return ReadOnlyArray(array)


def namespace(x: ReadOnlyArray, /) -> ModuleType:
    return _readonly.namespace()


def copy(x: ReadOnlyArray, /) -> ReadOnlyArray:
    return from_numpy(host.copy(to_numpy(x)))


def unsupported_dtype(dtype: str, device: Device, /) -> Unsupported | None:
    if dtype not in DTYPES:
        return Unsupported(DTypeError, f"{name} has no {dtype}", "")
    return host.unsupported_dtype(dtype, device)


def astype(x: ReadOnlyArray, dtype: str, /) -> ReadOnlyArray:
    return from_numpy(host.astype(to_numpy(x), dtype))
