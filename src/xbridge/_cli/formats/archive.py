"""Zip archives whose directory is checked when they are opened: no member is missing or misnamed."""

from __future__ import annotations

import struct
import zipfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from xbridge._cli.errors import reading, unreadable
from xbridge._cli.formats.stored import BLOCK

_END, _END_SIZE, _LONGEST_COMMENT = b"PK\5\6", 22, 0xFFFF
_MANY = 0xFFFF
"""The count in an archive whose members are too many for two bytes."""


def open_archive(path: Path) -> zipfile.ZipFile:
    """Open an archive whose directory has every member once, under the name in the member's own header."""
    with reading(path), ExitStack() as stack:
        archive = stack.enter_context(zipfile.ZipFile(path))
        _check(archive, path)
        stack.pop_all()  # it stays open
    return archive


def compare_checksum(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Read a member to its end, at which `zipfile` checks its checksum."""
    with archive.open(member) as file:
        while file.read(BLOCK):
            pass


def _check(archive: zipfile.ZipFile, path: Path) -> None:
    members = archive.infolist()
    for name, times in Counter(archive.namelist()).items():
        if times > 1:
            raise unreadable(path, f"it has {times} members named {name!r}")
    # Python reads entries up to the end of the directory. An entry that is too long hides the next ones.
    count = _count(path)
    if count != min(len(members), _MANY):
        raise unreadable(path, f"its directory shows {len(members)} of its {count} members")
    for member in members:
        if member.compress_type == zipfile.ZIP_STORED and member.compress_size != member.file_size:
            raise unreadable(path, f"its directory has two sizes for {member.filename!r}")
        archive.open(member).close()  # `open` compares the name with that in the member's header


def _count(path: Path) -> int:
    """Return the number of members that the end of an archive gives."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - _END_SIZE - _LONGEST_COMMENT, 0))
        tail = file.read()
    count: int
    (count,) = struct.unpack_from("<H", tail, tail.rindex(_END) + 10)
    return count
