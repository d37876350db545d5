"""Open zip archives, and check that their directory shows all members, each once."""

from __future__ import annotations

import struct
import zipfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from xbridge.files.errors import chain_read_errors, unreadable_error

_END, _END_SIZE, _LONGEST_COMMENT = b"PK\5\6", 22, 0xFFFF
_MANY = 0xFFFF
"""The count in an archive whose members are too many for two bytes."""


def open_archive(path: Path) -> zipfile.ZipFile:
    """Open an archive; raise if a damaged directory would hide some of its members."""
    with chain_read_errors(path), ExitStack() as stack:
        archive = stack.enter_context(zipfile.ZipFile(path))
        members = archive.infolist()
        for name, times in Counter(archive.namelist()).items():
            if times > 1:
                raise unreadable_error(path, f"it has {times} members named {name!r}")
        # Python reads entries up to the end of the directory. An entry that is too long hides the next ones.
        count = _count(path)
        first = min((member.header_offset for member in members), default=archive.start_dir)
        if count != min(len(members), _MANY) or first:
            raise unreadable_error(path, f"its directory shows only {len(members)} of its members")
        stack.pop_all()  # keep the archive open
    return archive


def _count(path: Path) -> int:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - _END_SIZE - _LONGEST_COMMENT, 0))
        tail = file.read()
    count: int
    (count,) = struct.unpack_from("<H", tail, tail.rindex(_END) + 10)
    return count
