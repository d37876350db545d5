"""A library that the kit knows nothing special of: whatever host memory it can express, freshly made.

Nobody else holds that memory, so even a library that reads it late, or believes that it never changes, may
have it. There is no way to read such an array but to ask its backend where it lies, and then to look there.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from xbridge import _host
from xbridge._core.devices import CPU
from xbridge._core.dtypes import DTYPES
from xbridge._core.protocol import ArrayInfo
from xbridge._host.memory import layout_of, native_dtype
from xbridge.backends import HOST
from xbridge.backends._registry import get
from xbridge.testing import _raw_memory
from xbridge.testing.samples import numpy as host
from xbridge.testing.samples.model import LayoutCase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from xbridge._core.protocol import Array, Backend, HostArray

    Shape: TypeAlias = tuple[int, ...]


def _takes_any(way: LayoutCase) -> bool:
    """Return True if the library can express arrays of that layout."""
    return any(way.takes(dtype, shape) for shape in ((2, 3), (), (2,)) for dtype in DTYPES)


class Anything:
    """What can be known of a library from its backend alone.

    Parameters
    ----------
    room : Backend
        Its backend.
    """

    def __init__(self, backend: Backend) -> None:
        self._room = backend
        self.refused: Mapping[str, Callable[[], Array]] = {}
        known = {name: self._way(way) for name, way in host.ways.items()}
        self.ways: Mapping[str, LayoutCase] = {
            name: way for name, way in known.items() if way is not None and _takes_any(way)
        }

    def _way(self, way: LayoutCase) -> LayoutCase | None:
        """The same way, where the library allows it; only read-only memory may repeat, as everywhere."""
        backend = self._room
        fixed = way.fold is not None or not way.writable
        if fixed and not backend.readonly:
            return None

        def lay(values: HostArray) -> Array:
            memory = way.lay(values)
            return backend.from_numpy((host.as_readonly(memory) if fixed else memory).view(np.ndarray))

        @cache
        def takes(dtype: str, shape: Shape) -> bool:
            libraries = (backend, get(HOST))  # values of the dtype are made in host memory first
            if any(each.unsupported_dtype(dtype, CPU) for each in libraries) or not way.takes(dtype, shape):
                return False
            memory = way.lay(np.zeros(shape, native_dtype(dtype)))
            info = ArrayInfo(dtype, CPU, shape, native_byteorder=memory.dtype.isnative)
            return backend.accepts_layout(info, layout_of(memory))

        writable = not fixed and not backend.assumes_immutable
        return LayoutCase(
            lay,
            fold=way.fold,
            takes=takes,
            writable=writable,
            as_readonly=self._freeze if writable and backend.readonly else None,
            require_grad=backend.require_grad if backend.autograd else None,
        )

    def _freeze(self, x: Array) -> Array:
        return self._room.from_numpy(_host.as_readonly(self._room.to_numpy(x)))

    def read(self, x: Array, /) -> HostArray:
        """The bytes where the backend says that they lie, once nothing is pending on them."""
        backend = self._room
        info = backend.array_info(x)
        plain = backend.detach(x) if info.requires_grad else x
        plain = plain if backend.memory_layout(plain).materialized else backend.materialize(plain)
        plain = plain if info.device == CPU else backend.to_device(plain, CPU)
        raw, dtype = _raw_memory.in_place(backend.memory_layout(plain)).copy(), native_dtype(info.dtype)
        memory = raw.view(f"V{dtype.itemsize}").reshape(info.shape)
        return memory.view(dtype) if info.native_byteorder else host.read(memory.view(dtype.newbyteorder()))

    def write(self, x: Array, /) -> None:
        """Invert every bit where the backend says that it lies, if that is host memory it may write."""
        info, layout = self._room.array_info(x), self._room.memory_layout(x)
        if info.device != CPU or info.requires_grad or self._room.assumes_immutable or not layout.writable:
            message = f"nobody may write a {type(x).__name__} on {info.device}"
            raise ValueError(message)
        raw = _raw_memory.in_place(layout)
        raw[...] = raw.copy() ^ np.uint8(1 if info.dtype == "bool" else 0xFF)
