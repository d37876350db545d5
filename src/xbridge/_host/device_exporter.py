"""Export device memory by DLPack while its device is the current one.

An exporter makes the stream of the consumer wait for its own stream, which it takes from the current device.
So the device of the memory has to be current during the export, whatever device is current for the caller.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from xbridge._core.protocol import Array


class OnDeviceExporter:
    """An exporter of an array that makes the device of the array current during each call."""

    def __init__(self, x: Array, there: AbstractContextManager[object]) -> None:
        self._x, self._there = x, there

    def __dlpack_device__(self) -> tuple[int, int]:
        with self._there:
            device: tuple[int, int] = self._x.__dlpack_device__()
            return device

    def __dlpack__(self, *, stream: int | None = None, **options: object) -> object:
        with self._there:
            return self._x.__dlpack__(stream=stream, **options)
