"""`.npz`: arrays by name, each as `.npy` in a zip archive, which has checksums."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from xbridge.files.errors import UnsupportedError, chain_read_errors, unreadable_error
from xbridge.files.formats import Content, Reading, Refused, npy
from xbridge.files.formats.archive import open_archive
from xbridge.files.formats.stored import ArrayInfo, InArchive

names = True
unnamed = False
metadata = False
orders: tuple[str, ...] = npy.orders
swaps = True
nested = False
lacks: Callable[[np.dtype[Any]], str] = npy.lacks

_SUFFIX = ".npy"


def read(path: Path, how: Reading) -> Content:
    archive = open_archive(path)
    arrays, refused = [], []
    for member in archive.namelist():
        if not member.endswith(_SUFFIX):
            raise unreadable_error(path, f"its member {member!r} is not an array")
        name, opened = member.removesuffix(_SUFFIX), partial(_unpack, archive, path, member)
        try:
            with opened() as (_, header):
                arrays.append(InArchive(name, *header, path, opened))
        except UnsupportedError as error:
            refused.append(Refused(name, np.broadcast_to(np.empty((), object), error.shape), error))
    others = [(str(x.name), x.error.reason.partition(": ")[2]) for x in refused]
    return Content(arrays, others=others, refused=refused)


def write(path: Path, content: Content) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for stored in content.arrays:
            info = zipfile.ZipInfo(f"{stored.name}{_SUFFIX}")
            with archive.open(info, "w", force_zip64=True) as member:
                npy.write_array(member, stored)


def reread(path: Path) -> Iterator[ArrayInfo]:
    with np.load(path) as arrays:
        for name in arrays.files:
            other = name.removesuffix(_SUFFIX)
            if other != name and name in arrays.zip.namelist():
                raise ValueError(f"for the name {name!r} its own library gives the array {other!r}")
            # `arrays[name]` would read the values.
            with arrays.zip.open(f"{name}{_SUFFIX}") as member:
                dtype, shape, _ = npy.read_header(member, path, name)
            yield name, dtype, shape


@contextmanager
def _unpack(archive: zipfile.ZipFile, path: Path, name: str) -> Iterator[tuple[BinaryIO, npy.Header]]:
    """Open a member at its values, with its header. Errors in the block become errors about the file."""
    with chain_read_errors(path, name), archive.open(name) as member:
        file = cast("BinaryIO", member)
        yield file, npy.read_header(file, path, name)
