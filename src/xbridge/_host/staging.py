"""Move large arrays of a library without pinned buffers through those of another library.

A backend that has pinned buffers offers its functions here when it is loaded. So no library is imported, and
no device is started, to move the arrays of another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np

from xbridge._core.devices import Device
from xbridge._core.protocol import Array, Exporter, HostArray

T = TypeVar("T", bound=Array)

LEAST = 1 << 24
"""The least bytes of an array for which the buffers of another library are tried."""


class Staging(Protocol):
    """The pinned buffers of a library.

    Each function uses them, or calls `plain`, whichever was faster in earlier calls of the same `way` for
    arrays of about this size. Results are complete.
    """

    def fetch(
        self, way: str, shown: Exporter, device: Device, dtype: np.dtype[Any], plain: Callable[[], HostArray]
    ) -> HostArray:
        """Copy an array to new host memory. It is in C order, and no stream will write to it."""
        ...

    def send(
        self,
        way: str,
        host: HostArray,
        device: Device,
        empty: Callable[[], tuple[T, Exporter]],
        plain: Callable[[], T],
    ) -> T:
        """Copy a host array to new memory, which `empty` allocates and no stream uses."""
        ...


engine: Staging | None = None
"""The pinned buffers that were offered last; None until then."""
