"""The file that a format writes to: it counts bytes, writes in bounded pieces, and keeps the first exception.

Libraries replace an exception of the file by one of their own, or drop it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO, Self

from xbridge.files.formats.stored import BLOCK


class Sink:
    """A binary file, written once from the start. `advance` is called with the size of each block."""

    def __init__(self, file: BinaryIO, advance: Callable[[int], object]) -> None:
        self._file, self._advance = file, advance
        self.failed: BaseException | None = None
        """The first exception that a write raised, or an interrupt."""

    def write(self, data: bytes | memoryview) -> int:
        """Write all bytes, or raise. After an exception, each write raises it again."""
        if self.failed:
            raise self.failed
        try:
            view = memoryview(data).cast("B")
            for start in range(0, len(view), BLOCK):
                block = view[start : start + BLOCK]
                self._file.write(block)
                self._advance(len(block))
        except (OSError, KeyboardInterrupt) as error:
            self.failed = error
            raise
        return len(view)

    def __enter__(self) -> Self:
        """Return the file itself, which is already open."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise the first exception of a write, which the writer may have turned into another one."""
        if self.failed and error is not self.failed:
            raise self.failed

    def flush(self) -> None:
        """Do nothing, for writers that flush; the code that opened the file flushes it."""

    def tell(self) -> int:
        """Return the position of the next byte."""
        return self._file.tell()

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move the position: an archive writes sizes and checksums after the values."""
        return self._file.seek(offset, whence)
