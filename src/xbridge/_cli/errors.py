"""What the command line refuses: the one error of its own, and how any error becomes one line.

Names come out of files, and a file may have been made to harm its reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xbridge.errors import Chained, XBridgeError

if TYPE_CHECKING:
    from pathlib import Path


class RefusedError(XBridgeError):
    """A file, or what was asked of it, cannot be converted without a loss."""


def unreadable(path: Path, reason: object, hint: str = "another copy of the file") -> RefusedError:
    """A file that cannot be read; what a library has to say of it is cut to its first sentence."""
    words = (
        repr(reason) if isinstance(reason, KeyError) else str(reason)
    )  # which says the key, and nothing else
    said = words.partition("\n")[0].partition(". ")[0] or type(reason).__name__
    return RefusedError.build(f"read {path}", said, hint)


def check_source(path: Path) -> None:
    """Refuse what cannot be read from its start as often as need be."""

    def ours(error: Exception) -> RefusedError:
        return unreadable(path, getattr(error, "strerror", "") or error, "the name of an array file")

    reason = ""
    with Chained(ours):
        if not path.exists():
            reason = "it is a link to a file that is not there" if path.is_symlink() else "it does not exist"
        elif not path.is_file():
            reason = "it is a directory" if path.is_dir() else "it is not a regular file"
        elif not path.stat().st_size:
            reason = "it is empty"
        else:
            path.open("rb").close()
    if reason:
        raise unreadable(path, reason, "the name of an array file")


def one_line(error: BaseException) -> str:
    """An error as one line that may be printed."""
    return printable(" ".join(str(error).split()) or type(error).__name__)


def printable(text: str) -> str:
    """What a terminal would obey is shown and not sent."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
