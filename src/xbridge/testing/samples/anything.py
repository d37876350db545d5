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
from xbridge._core.protocol import Facts
from xbridge._host.memory import layout_of, native_dtype
from xbridge.testing import _raw_memory
from xbridge.testing._samples import Way
from xbridge.testing.samples import numpy as host

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from xbridge._core.protocol import Array, Backend, HostArray

    Shape: TypeAlias = tuple[int, ...]


class Anything:
    """What can be known of a library from its backend alone.

    Parameters
    ----------
    room : Backend
        Its backend.
    """

    def __init__(self, room: Backend) -> None:
        self._room = room
        self.refused: Mapping[str, Callable[[], Array]] = {}
        known = {name: self._way(way) for name, way in host.ways.items()}
        self.ways: Mapping[str, Way] = {name: way for name, way in known.items() if way is not None}

    def _way(self, way: Way) -> Way | None:
        """The same way, where the library allows it; only read-only memory may repeat, as everywhere."""
        room = self._room
        fixed = way.fold is not None or not way.writable
        if fixed and not room.readonly:
            return None

        def lay(values: HostArray) -> Array:
            memory = way.lay(values)
            return room.from_host((host.freeze(memory) if fixed else memory).view(np.ndarray))

        @cache
        def takes(dtype: str, shape: Shape) -> bool:
            if room.lacks(dtype, CPU) or not way.takes(dtype, shape):
                return False
            memory = way.lay(np.zeros(shape, native_dtype(dtype)))
            facts = Facts(dtype, CPU, shape, native=memory.dtype.isnative)
            return room.holds(facts, layout_of(memory))

        writable = not fixed and not room.immutable
        return Way(
            lay,
            fold=way.fold,
            takes=takes,
            writable=writable,
            freeze=self._freeze if writable and room.readonly else None,
            track=room.track if room.autograd else None,
        )

    def _freeze(self, x: Array) -> Array:
        return self._room.from_host(_host.freeze(self._room.to_host(x)))

    def read(self, x: Array, /) -> HostArray:
        """The bytes where the backend says that they lie, once nothing is pending on them."""
        room = self._room
        facts = room.describe(x)
        plain = room.detach(x) if facts.history else x
        plain = plain if room.layout(plain).settled else room.settle(plain)
        plain = plain if facts.device == CPU else room.move(plain, CPU)
        raw, dtype = _raw_memory.in_place(room.layout(plain)).copy(), native_dtype(facts.dtype)
        memory = raw.view(f"V{dtype.itemsize}").reshape(facts.shape)
        return memory.view(dtype) if facts.native else host.read(memory.view(dtype.newbyteorder()))

    def write(self, x: Array, /) -> None:
        """Invert every bit where the backend says that it lies, if that is host memory it may write."""
        facts, layout = self._room.describe(x), self._room.layout(x)
        if facts.device != CPU or facts.history or self._room.immutable or not layout.writable:
            message = f"nobody may write a {type(x).__name__} on {facts.device}"
            raise ValueError(message)
        raw = _raw_memory.in_place(layout)
        raw[...] = raw.copy() ^ np.uint8(1 if facts.dtype == "bool" else 0xFF)
