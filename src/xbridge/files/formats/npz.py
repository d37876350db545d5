"""`.npz`: arrays by name, each as `.npy` in a zip archive, which has checksums."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, cast

import numpy as np

from xbridge.files.errors import UnsupportedError, chain_read_errors, unreadable_error
from xbridge.files.formats import Content, Reading, Refused, npy
from xbridge.files.formats.archive import open_archive
from xbridge.files.formats.sink import Sink
from xbridge.files.formats.sources import Sources
from xbridge.files.formats.stored import ArrayInfo, InArchive

names = True
unnamed = False
metadata = False
orders = npy.orders
swaps = npy.swaps
nested = False
lacks = npy.lacks

_SUFFIX = ".npy"


def read(path: Path, sources: Sources, how: Reading) -> Content:
    archive = sources.enter_context(open_archive(path))
    for name in archive.namelist():
        if not name.endswith(_SUFFIX):
            raise unreadable_error(
                path, f"its member {name!r} is not an array", "an archive of .npy files alone"
            )
    arrays, refused = [], []
    for member in archive.namelist():
        name = member.removesuffix(_SUFFIX)
        try:
            arrays.append(_member_name(archive, path, member))
        except UnsupportedError as error:
            refused.append(Refused(name, np.broadcast_to(np.empty((), object), error.shape), error))
    others = [(str(x.name), x.error.reason.partition(": ")[2]) for x in refused]
    kinds: dict[str | None, int] = {
        info.filename.removesuffix(_SUFFIX): info.compress_type for info in archive.infolist()
    }
    return Content(arrays, others=others, refused=refused, compression=kinds)


class _NewArchive(zipfile.ZipFile):
    """An archive that is abandoned if its block raises, because the partial file is removed then.

    A close would raise another error while a member is open, which a Ctrl-C can leave so.
    """

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.fp = None
        self.close()


def write(file: Sink, content: Content, scratch: Path) -> None:
    with _NewArchive(cast("BinaryIO", file), "w") as archive:
        for stored in content.arrays:
            info = zipfile.ZipInfo(f"{stored.name}{_SUFFIX}")
            info.compress_type = content.compression.get(stored.name, zipfile.ZIP_STORED)
            with archive.open(info, "w", force_zip64=True) as member:
                npy.write_array(member, stored)


def reread(path: Path) -> Iterator[ArrayInfo]:
    with np.load(path) as arrays:
        for name in arrays.files:
            # `arrays[name]` would read the values.
            with arrays.zip.open(f"{name}{_SUFFIX}") as member:
                dtype, shape, _ = npy.read_header(member, path, name)
            yield name, dtype, shape


def numbers(content: bytes) -> Mapping[str, Any]:
    found: Mapping[str, Any] = np.load(BytesIO(content))
    return found


def _member_name(archive: zipfile.ZipFile, path: Path, name: str) -> InArchive:
    opened = partial(_unpack, archive, path, name)
    with opened() as (_, header):
        return InArchive(name.removesuffix(_SUFFIX), *header, path, opened)


@contextmanager
def _unpack(archive: zipfile.ZipFile, path: Path, name: str) -> Iterator[tuple[BinaryIO, npy.Header]]:
    """Open a member at its values, with its header. Errors in the block become errors about the file."""
    with chain_read_errors(path, name), archive.open(name) as member:
        file = cast("BinaryIO", member)
        yield file, npy.read_header(file, path, name)
