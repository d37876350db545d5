"""Open zip archives, and check their directory first.

No member is missing or misnamed, and every byte before the directory belongs to one member, as its own header
says. Libraries find the values by that header, and other facts in the directory.
"""

from __future__ import annotations

import struct
import zipfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from xbridge.files.errors import chain_read_errors, unreadable_error
from xbridge.files.formats.stored import BLOCK

_END, _END_SIZE, _LONGEST_COMMENT = b"PK\5\6", 22, 0xFFFF
_MANY = 0xFFFF
"""The count in an archive whose members are too many for two bytes."""

_HEADER = struct.Struct("<4s5H3L2H")
_LONGEST_DESCRIPTOR = 24
"""The most bytes behind the values of a member, with its checksum and its sizes."""
_LATER = 1 << 3
"""The flag of a member whose checksum and sizes follow its values, and may be zeros in its header."""
_IN_EXTRA = 0xFFFFFFFF
"""The size in a header of a member whose size is too large for four bytes."""


def open_archive(path: Path) -> zipfile.ZipFile:
    """Open an archive whose directory has every member once, under the name in the member's own header."""
    with chain_read_errors(path), ExitStack() as stack:
        archive = stack.enter_context(zipfile.ZipFile(path))
        _check(archive, path)
        stack.pop_all()  # keep the archive open
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
            raise unreadable_error(path, f"it has {times} members named {name!r}")
    # Python reads entries up to the end of the directory. An entry that is too long hides the next ones.
    count = _count(path)
    if count != min(len(members), _MANY):
        raise unreadable_error(path, f"its directory shows {len(members)} of its {count} members")
    for member in members:
        if member.compress_type == zipfile.ZIP_STORED and member.compress_size != member.file_size:
            raise unreadable_error(path, f"its directory has two sizes for {member.filename!r}")
        archive.open(member).close()  # `open` compares the name with that in the member's header
    _check_headers(archive, path)


def _check_headers(archive: zipfile.ZipFile, path: Path) -> None:
    """Compare the header of each member with the directory, and its end with the start of the next one."""
    end = 0
    with path.open("rb") as file:
        for member in sorted(archive.infolist(), key=lambda member: member.header_offset):
            _check_gap(path, end, member.header_offset)
            file.seek(member.header_offset)
            _, _, flags, method, _, _, *found, name, extra = _HEADER.unpack(file.read(_HEADER.size))
            expected = (member.CRC, member.compress_size, member.file_size)
            unknown = {0, _IN_EXTRA} if flags & _LATER else {_IN_EXTRA}
            same = all(one == other or one in unknown for one, other in zip(found, expected, strict=True))
            if method != member.compress_type or not same:
                raise unreadable_error(path, f"its directory and the header of {member.filename!r} differ")
            end = member.header_offset + _HEADER.size + name + extra + member.compress_size
    _check_gap(path, end, archive.start_dir)


def _check_gap(path: Path, end: int, start: int) -> None:
    """Raise if members overlap, or if there are more bytes between them than of a checksum and sizes."""
    if not 0 <= start - end <= _LONGEST_DESCRIPTOR:
        reason = "two of its members overlap" if start < end else f"{start - end} bytes are of no member"
        raise unreadable_error(path, reason)


def _count(path: Path) -> int:
    """Return the number of members that the end record of an archive gives."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - _END_SIZE - _LONGEST_COMMENT, 0))
        tail = file.read()
    count: int
    (count,) = struct.unpack_from("<H", tail, tail.rindex(_END) + 10)
    return count
