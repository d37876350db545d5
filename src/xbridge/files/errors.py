"""Errors of the command line, each printed as one line.

The names in a file are untrusted, because a file may have been made to harm its reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from xbridge.errors import Chained, XBridgeError
from xbridge.extend import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self


class RefusedError(XBridgeError):
    """A file cannot be converted without a loss, or an argument is invalid."""

    @classmethod
    def build(cls, action: str, reason: str, hint: str = "") -> Self:
        """Make an error with a message of the common form. Long parts, such as a damaged name, are cut."""
        return super().build(*(shorten(part, 600) for part in (action, reason, hint)))


class UnsupportedError(RefusedError):
    """One array of a file cannot be read, though the others can."""

    shape: tuple[int, ...] = ()


def unreadable_error(path: Path, reason: object, hint: str = "") -> RefusedError:
    """Return the error for a file that cannot be read, with the first sentence of a library's message."""
    words = repr(reason) if isinstance(reason, KeyError) else str(reason)  # `str` of it is the key alone
    sentence = re.split(r"\n|\. ", words, maxsplit=1)[0] or type(reason).__name__
    if isinstance(reason, Exception) and not isinstance(reason, OSError):
        sentence = f"it is no valid {path.suffix} file: {sentence}"
    return RefusedError.build(f"read {path}", sentence, hint)


def write_error(path: Path, reason: object, hint: str = "") -> RefusedError:
    """Return the error for a file that cannot be written."""
    return RefusedError.build(f"write {path}", str(reason), hint)


def chain_read_errors(path: Path, member: str = "") -> Chained:
    """Return a context in which an exception of a library becomes an error about a file or its member."""
    return Chained(lambda error: unreadable_error(path, f"{member!r}: {error}" if member else error))


def check_source(path: Path) -> None:
    """Raise if a path is not a file that can be read several times from its start."""
    with Chained(lambda error: unreadable_error(path, getattr(error, "strerror", "") or error)):
        if not path.is_file():
            reason = "it is not a regular file" if path.exists() else "it does not exist"
            raise unreadable_error(path, reason)
        if not path.stat().st_size:
            raise unreadable_error(path, "it is empty")
        path.open("rb").close()


def format_list(names: Iterable[str]) -> str:
    """Format the first few of several names."""
    every = list(names)
    shown = ", ".join(map(repr, every[:5]))
    return f"{shown} and {len(every) - 5} more" if len(every) > 5 else shown or "no arrays"


def shorten(text: str, most: int) -> str:
    """Cut the middle out of a long text."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-most // 4 :]}"


def one_line(error: BaseException | str) -> str:
    """Format an error, or a part of its message, as one line of printable characters."""
    return printable(" ".join(str(error).split()) or type(error).__name__)
