"""Where a format writes: a file that counts, in bounded pieces, and remembers what went wrong.

Libraries hide the exception of a file behind one of their own, or forget it: here the first one stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from xbridge._cli.formats.stored import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self


class Sink:
    """A binary file, written once from the start.

    Parameters
    ----------
    file : BinaryIO
        Open, empty, unbuffered or not.
    advance : callable
        Told how many bytes have been written, after each block.
    """

    def __init__(self, file: BinaryIO, advance: Callable[[int], object]) -> None:
        self._file = file
        self._advance = advance
        self.failed: BaseException | None = None
        """The first thing that a write raised, an interrupt included."""

    def write(self, data: bytes | memoryview) -> int:
        """All of it, or an exception; after one there is no other."""
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
        """Nothing to open."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Whatever the writer made of it, the first failure is the one that counts."""
        if self.failed and error is not self.failed:
            raise self.failed

    def flush(self) -> None:
        """For writers that ask for it; the file is flushed by whoever opened it."""

    def tell(self) -> int:
        """Where the next byte goes."""
        return self._file.tell()

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go elsewhere: an archive writes sizes and checksums when it knows them."""
        return self._file.seek(offset, whence)
