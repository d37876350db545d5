"""Names for backends outside of xbridge: the protocol and its values.

Errors and `Device` are at the top of the package. A backend may call NumPy's own, `xbridge.backends.numpy`.
`Backend` documents each name.
"""

from xbridge._core.protocol import (
    Array,
    ArrayInfo,
    Backend,
    Exporter,
    Gap,
    HostArray,
    MemoryLayout,
    Unsupported,
)

__all__ = ["Array", "ArrayInfo", "Backend", "Exporter", "Gap", "HostArray", "MemoryLayout", "Unsupported"]
