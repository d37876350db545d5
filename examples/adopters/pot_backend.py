"""The conversions of POT's backends for PyTorch and JAX by xbridge.

They take the place of `_to_numpy` and `_from_numpy` of `TorchBackend` and `JaxBackend` in `ot/backend.py`.
"""

from typing import Any

import numpy as np
from ot import backend

import xbridge


def to_numpy(self: Any, a: Any) -> np.ndarray:
    """Convert an array or a number to NumPy's array, which can be written.

    A tensor with a graph is copied, because a write must not change it.
    """
    return np.array(a) if isinstance(a, int | float) else xbridge.to_numpy(a, writable=True)


def from_numpy(self: Any, a: Any, type_as: Any = None) -> Any:
    """Convert NumPy's array or a number to the library of the backend.

    With `type_as`, the result has its dtype and is on its device.
    """
    if type_as is None:
        return xbridge.asarray(a, backend=self.__name__, dtype="nearest")
    return xbridge.asarray(a, like=type_as, dtype=type_as.dtype)


def install() -> None:
    """Replace the conversions of both backends."""
    for owner in (backend.TorchBackend, backend.JaxBackend):
        owner._to_numpy = to_numpy
        owner._from_numpy = from_numpy
