"""`.npz`: arrays by name, each as `.npy` in a zip archive, which has checksums."""

from __future__ import annotations

import zipfile
from collections import Counter
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, cast

from xbridge._cli._files import Content, _npy
from xbridge._cli._files._stored import InArchive
from xbridge._cli._refused import unreadable
from xbridge.errors import Chained

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack
    from pathlib import Path

    from xbridge._cli._files._sink import Sink
    from xbridge._cli._refused import RefusedError

names = True
unnamed = False
metadata = False
orders = _npy.orders
swaps = _npy.swaps
lacks = _npy.lacks

_SUFFIX = ".npy"


def read(path: Path, stack: ExitStack) -> Content:
    with Chained(partial(unreadable, path)):
        archive = stack.enter_context(zipfile.ZipFile(path))
    times = Counter(archive.namelist())
    for name, count in times.items():
        if count > 1:
            raise unreadable(path, f"it has {count} members named {name!r}")
        if not name.endswith(_SUFFIX):
            raise unreadable(path, f"its member {name!r} is no array", "an archive of .npy files alone")
    return Content([_member(archive, path, name) for name in times], {})


def write(file: Sink, content: Content, scratch: Path) -> None:
    with zipfile.ZipFile(cast("BinaryIO", file), "w") as archive:
        for stored in content.arrays:
            with archive.open(f"{stored.name}{_SUFFIX}", "w", force_zip64=True) as member:
                _npy.write_array(member, stored)


def _member(archive: zipfile.ZipFile, path: Path, name: str) -> InArchive:
    with _unpacked(archive, path, name) as (_, header):
        pass
    opened = partial(_unpacked, archive, path, name)
    return InArchive(name.removesuffix(_SUFFIX), *header, path, opened)


@contextmanager
def _unpacked(archive: zipfile.ZipFile, path: Path, name: str) -> Iterator[tuple[BinaryIO, _npy.Header]]:
    """A member from its values on, and its header. Whatever goes wrong meanwhile is told of the file."""

    def ours(error: Exception) -> RefusedError:
        return unreadable(path, f"{name!r}: {error}")

    with Chained(ours), archive.open(name) as member:
        file = cast("BinaryIO", member)
        yield file, _npy.read_header(file, path, name)
