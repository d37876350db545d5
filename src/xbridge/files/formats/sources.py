"""Check that the files which are read stay the same, with the same content, until the end.

A file is opened again for each array, so an owner who replaces it meanwhile would give arrays of both.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from xbridge.files.errors import unreadable_error


class _Identity(NamedTuple):
    """Facts of the file system about a file, one of which changes if the file is written or replaced."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int
    """The time of the last change of any kind, which a program cannot set, as it can the one before."""


class Sources(ExitStack):
    """The files that are read in a `with` block, and whatever is open for them."""

    def __init__(self) -> None:
        super().__init__()
        self._watched: dict[Path, _Identity] = {}

    def watch(self, path: Path) -> None:
        """Remember the file that a path names now. It is held open, so that no other gets its inode."""
        file = self.enter_context(path.open("rb"))
        self._watched[path] = _identity(os.fstat(file.fileno()))

    def compare(self) -> None:
        """Raise if a path names another file now, or one that was written."""
        for path, before in self._watched.items():
            if not path.exists() or _identity(path.stat()) != before:
                raise unreadable_error(path, "it was replaced or written while it was read", "again")


def _identity(stat: os.stat_result) -> _Identity:
    return _Identity(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
