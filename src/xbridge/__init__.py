"""Move arrays between libraries, exactly: values, dtype, device, memory and gradient.

>>> import numpy as np, xbridge
>>> a = np.arange(3.0)
>>> xbridge.to_numpy(a) is a, xbridge.backend_of(a), xbridge.dtype_of(a)
(True, 'numpy', 'float64')
"""

# What this imports says `TYPE_CHECKING = False` for itself: to import `typing` would take longer than all
# the rest.

from xbridge._convert import align, asarray, to_backend, to_list, to_numpy
from xbridge._devices import Device
from xbridge._look import array_namespace, backend_of, device_of, dtype_of, shares_memory
from xbridge._registry import is_available, known_backends, register_backend
from xbridge.errors import (
    CopyError,
    DeviceError,
    DTypeError,
    GradientError,
    MissingLibraryError,
    OptionError,
    UnknownBackendError,
    UnsupportedArrayError,
    ValueLossError,
    XBridgeError,
)

__all__ = [
    "CopyError",
    "DTypeError",
    "Device",
    "DeviceError",
    "GradientError",
    "MissingLibraryError",
    "OptionError",
    "UnknownBackendError",
    "UnsupportedArrayError",
    "ValueLossError",
    "XBridgeError",
    "align",
    "array_namespace",
    "asarray",
    "backend_of",
    "device_of",
    "dtype_of",
    "is_available",
    "known_backends",
    "register_backend",
    "shares_memory",
    "to_backend",
    "to_list",
    "to_numpy",
]
