"""Device memory changes hands by DLPack: what shows it, and who must be looking the right way meanwhile.

An exporter makes the stream of whoever takes the memory wait for its own, and takes its own from the device
that is current. So it is asked while that is the device of the memory, wherever the caller may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from xbridge._core.protocol import Array


class Shown:
    """An array as an exporter, which is asked with its own device current."""

    def __init__(self, x: Array, there: AbstractContextManager[object]) -> None:
        self._x, self._there = x, there

    def __dlpack_device__(self) -> tuple[int, int]:
        """The type and the number of the device."""
        with self._there:
            device: tuple[int, int] = self._x.__dlpack_device__()
            return device

    def __dlpack__(self, *, stream: int | None = None, **options: object) -> object:
        """The array's own capsule."""
        with self._there:
            return self._x.__dlpack__(stream=stream, **options)
