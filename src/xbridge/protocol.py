"""What a backend outside of xbridge is written with: the protocol and its values, under names that stay.

Errors and `Device` are at the top of the package; what NumPy answers just as well, a backend may ask of
`xbridge.backends.numpy`. What each fact and verb must promise stands in `Backend`.
"""

from xbridge._core.protocol import Array, ArrayInfo, Backend, Exporter, HostArray, MemoryLayout, Unsupported

__all__ = ["Array", "ArrayInfo", "Backend", "Exporter", "HostArray", "MemoryLayout", "Unsupported"]
