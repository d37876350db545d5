"""Calls of functions that take the arrays of one library alone, with NumPy's arrays as arguments.

Such a function is its own reference: what it returns for plain arrays on the default device is what it has to
return for the same values in another layout or on another device.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from xbridge._core.devices import CPU
from xbridge._core.dtypes import nearest
from xbridge._host.memory import native_dtype
from xbridge._registry.registry import backend_for, get
from xbridge.backends import HOST
from xbridge.testing._outcome import parts

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge._core.protocol import Array, HostArray


def on_plain_arrays(f: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """Return a function that calls another one with plain arrays of a library in place of NumPy's."""
    return partial(_call, f, backend)


def _call(f: Callable[..., Any], backend: str, /, *args: Any, **kwargs: Any) -> Any:
    return f(
        *(_convert(arg, backend) for arg in args),
        **{name: _convert(value, backend) for name, value in kwargs.items()},
    )


def _convert(x: Any, backend: str) -> Any:
    """Replace NumPy's arrays, at any depth of lists and tuples."""
    if isinstance(x, np.ndarray):
        return _make(x, backend)
    if type(x) in (list, tuple):
        return type(x)(_convert(part, backend) for part in x)
    return x


def _make(values: HostArray, backend: str) -> Array:
    library = get(backend)
    name = nearest(values.dtype.name, lambda word: library.unsupported_dtype(word, CPU) is None)
    return library.from_numpy(np.array(values, native_dtype(name)))


def library_of(result: Any) -> str:
    """Return the library of the first array in a result; "" if there is none."""
    owners = (backend_for(type(part)) for _, part in parts(result))
    return next((owner.name for owner in owners if owner is not None), "")


def takes_only(found: str) -> bool:
    """Return True if results are of a library other than NumPy."""
    return found not in ("", HOST)
