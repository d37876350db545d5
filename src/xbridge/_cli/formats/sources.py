"""The files that are read: each must be the same file, with the same content, from first to last.

A file is opened again for each array, so an owner who replaces it meanwhile would give arrays of both.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from xbridge._cli.errors import unreadable


class _Identity(NamedTuple):
    """What a system says about a file, of which something differs after a write or a replacement."""

    device: int
    inode: int
    size: int
    modified: int


class Sources(ExitStack):
    """The files that are read in a block, and what it opens."""

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
                raise unreadable(path, "it was replaced or written while it was read", "again")


def _identity(stat: os.stat_result) -> _Identity:
    return _Identity(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
