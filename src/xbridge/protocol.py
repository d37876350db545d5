"""The backend protocol and its types, for backends outside of xbridge.

`Backend` documents each name. The errors and `Device` are at the top of the package. A backend may call the
functions of NumPy's backend, `xbridge.backends.numpy`.
"""

from xbridge._core.protocol import (
    FEATURES,
    Array,
    ArrayInfo,
    Backend,
    Exporter,
    Fast,
    Gap,
    HostArray,
    MemoryLayout,
    Transfers,
    Unsupported,
)

__all__ = [
    "FEATURES",
    "Array",
    "ArrayInfo",
    "Backend",
    "Exporter",
    "Fast",
    "Gap",
    "HostArray",
    "MemoryLayout",
    "Transfers",
    "Unsupported",
]
