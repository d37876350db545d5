"""`.pt`, `.pth`: a tensor, or a dict of tensors, by torch's own reader and writer.

A file of torch is a pickle, so it is loaded with `weights_only=True`, which runs no code from the file.
Tensors are mapped if torch can map the file. torch writes from memory, so other values are mapped first.

torch does not check the checksums of the archive. The records that describe the tensors are checked before
torch reads them, and the records of values while they are read. An archive has a record for each storage, and
the size and checksum of a storage's memory must be those of one of the records. The record follows from the
name in its header, which is checked too.
"""

from __future__ import annotations

import re
import sys
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from numpy.lib.array_utils import byte_bounds

from xbridge._api import to_backend, to_numpy
from xbridge._core.devices import CPU
from xbridge._core.dtypes import DTYPES
from xbridge._core.protocol import HostArray
from xbridge._host.memory import native_dtype
from xbridge._inspect import dtype_of, shares_memory
from xbridge._registry.registry import get
from xbridge.errors import Chained, XBridgeError, with_article
from xbridge.files.errors import RefusedError, chain_read_errors, format_list, unreadable_error
from xbridge.files.formats import Content, Reading, Refused
from xbridge.files.formats.archive import compare_checksum, open_archive
from xbridge.files.formats.nested import describe, flatten_content, is_container, pick
from xbridge.files.formats.sink import Sink
from xbridge.files.formats.sources import Sources
from xbridge.files.formats.stored import BLOCK, ArrayInfo, Block, InMemory, Scratch, name_of

names = True
unnamed = True
metadata = False
orders = ("C", "F", "")
swaps = False
nested = True


def lacks(dtype: np.dtype[Any]) -> str:
    name = name_of(dtype)
    unsupported = get("torch").unsupported_dtype(name, CPU) if name in DTYPES else None
    return unsupported.reason if unsupported else "" if name in DTYPES else "torch has no such dtype"


@dataclass(frozen=True)
class _Sums:
    """The checksums of an archive's storages."""

    path: Path
    known: frozenset[tuple[int, int]]
    """The size and the checksum of each storage."""
    compared: set[int] = field(default_factory=set)
    """The addresses of the storages whose checksum has been verified."""

    def compare(self, label: str, size: int, found: int) -> None:
        """Raise if no record of the archive has this size and checksum."""
        if (size, found) not in self.known:
            raise unreadable_error(self.path, f"the checksum of {label} differs: its values are damaged")


@dataclass(frozen=True)
class _InRecord(InMemory):
    """A tensor over a storage, which is a record of the archive with a checksum."""

    sums: _Sums | None = None
    """None if the file has no checksums."""

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks, and check the checksum after the last."""
        storage = self.loaded.untyped_storage()
        whole = (self.array.ctypes.data, self.nbytes) == (storage.data_ptr(), storage.nbytes())
        if self.sums is None or not (whole and self.order):
            self._check_storage()
            yield from super().blocks()
            return
        found = 0
        for block in super().blocks():
            found = zlib.crc32(block, found)
            yield block
        self.sums.compare(self.label, self.nbytes, found)

    def map_values(self, scratch: Scratch) -> HostArray:
        """Return the memory itself, after a check of its checksum."""
        self._check_storage()
        return super().map_values(scratch)

    def _check_storage(self) -> None:
        """Read the whole storage, of which the tensor may be a part, and check its checksum."""
        storage = self.loaded.untyped_storage()
        if self.sums is None or not storage.nbytes() or storage.data_ptr() in self.sums.compared:
            return
        content = torch.empty(0, dtype=torch.uint8).set_(storage).numpy().data
        found = 0
        for start in range(0, len(content), BLOCK):
            found = zlib.crc32(content[start : start + BLOCK], found)
        self.sums.compare(self.label, len(content), found)
        self.sums.compared.add(storage.data_ptr())


def read(path: Path, sources: Sources, how: Reading) -> Content:
    mapped, sums = _inspect_archive(path, checksums=how.checksums)
    found = pick(_load(path, mapped=mapped), how.at, path)
    if isinstance(found, torch.Tensor):
        return _read_content(path, [(None, found)], [], sums, how)
    if not isinstance(found, dict) and not (how.flatten and is_container(found)):
        hint = "--flatten" if is_container(found) else "saving a tensor, or a dict of tensors"
        raise unreadable_error(
            path, f"{repr(how.at[-1]) if how.at else 'its content'} is {describe(found)}", hint
        )
    values = list(flatten_content(found, path, how.at, flatten=how.flatten))
    others = [(name, describe(value)) for name, value in values if not isinstance(value, torch.Tensor)]
    kept = [(name, what) for name, what in others if name not in how.skip]
    if kept and not how.skip_other:
        (name, what), *more = kept
        reason = f"{format_list(name for name, _ in kept)} are not tensors"
        hint = f"--skip-other, which leaves {'them' if more else 'it'} out"
        raise unreadable_error(path, reason if more else f"{name!r} is {what}, not a tensor", hint)
    tensors = [(name, value) for name, value in values if isinstance(value, torch.Tensor)]
    return _read_content(path, tensors, others, sums, how)


def write(file: Sink, content: Content, scratch: Path) -> None:
    with Scratch(scratch) as files:
        tensors = {x.name: to_backend(x.map_values(files), "torch") for x in content.arrays}
        # An interrupt reaches the main thread alone. Raised between lines of `torch.save`, it could leave the
        # end of the file to a destructor of torch, and a write that fails there ends the process.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(int).result()  # interrupted while it starts, a thread would not be waited for
            saved = thread.submit(torch.save, tensors.get(None, tensors), cast("IO[bytes]", file))
            try:
                saved.result()
            except KeyboardInterrupt as error:
                if isinstance(file, Sink):  # and not the memory that the names are tried with
                    file.failed = file.failed or error
                raise


def reread(path: Path) -> Iterator[ArrayInfo]:
    loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    for name, tensor in ({None: loaded} if isinstance(loaded, torch.Tensor) else loaded).items():
        yield name, native_dtype(dtype_of(tensor)), tuple(tensor.shape)


def numbers(content: bytes) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(BytesIO(content), weights_only=True)
    return found


def _load(path: Path, *, mapped: bool) -> Any:
    """Load a file without running code from it."""

    def ours(error: Exception) -> RefusedError:
        asked = re.search(r"GLOBAL (\S+)", str(error))
        if asked:
            reason = f"it asks for {asked[1]}, which is not a tensor and could run code"
            return unreadable_error(path, reason, "saving a flat dict of tensors alone, such as a state_dict")
        return unreadable_error(path, error)

    with warnings.catch_warnings(), Chained(ours):
        warnings.simplefilter("ignore")  # warnings of torch are for programmers
        if _is_archive(path):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
        with path.open("rb") as file:
            found = torch.load(file, map_location="cpu", weights_only=True)
            if file.read(1):  # without a checksum, the size is all that shows bytes that were inserted
                raise unreadable_error(path, "more bytes follow its last value")
            return found


def _is_archive(path: Path) -> bool:
    """Return False for a file of torch before 1.6, by torch's own check."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\3\4"


def _inspect_archive(path: Path, *, checksums: bool) -> tuple[bool, _Sums | None]:
    """Check all records but values. Return True if torch can map the file, and its checksums, if any."""
    if not _is_archive(path):
        return False, None
    with open_archive(path) as archive, chain_read_errors(path):
        members = archive.infolist()
        mapped = all(member.compress_type == zipfile.ZIP_STORED for member in members)
        if not any(member.CRC for member in members):
            if checksums:
                reason = "torch wrote it without checksums, so damage to it would not be seen"
                raise unreadable_error(path, reason, "--no-checksum")
            return mapped, None
        storages = [member for member in members if re.fullmatch(r"[^/]+/data/[^/]+", member.filename)]
        orders = [member for member in members if member.filename.endswith("/byteorder")]
        swapped = any(archive.read(member) != sys.byteorder.encode() for member in orders)
        for member in members:
            if swapped or member not in storages:  # torch swaps the bytes of another machine in memory
                compare_checksum(archive, member)
    known = frozenset((member.file_size, member.CRC) for member in storages)
    return mapped, None if swapped else _Sums(path, known)


def _refuse_overlaps(path: Path, arrays: Sequence[InMemory]) -> None:
    """Raise if two tensors share memory. They are sorted by address, so that few pairs are compared."""
    spans = sorted((*byte_bounds(x.array), at) for at, x in enumerate(arrays) if x.nbytes)
    before: list[tuple[int, int]] = []
    for low, high, at in spans:
        before = [(end, other) for end, other in before if end > low]
        for _, other in before:
            if shares_memory(arrays[at].array, arrays[other].array):
                both = f"{arrays[other].name!r} and {arrays[at].name!r}"
                reason = f"{both} share memory, and would be two arrays"
                raise unreadable_error(path, reason, "--untie, which writes the values of both")
        before.append((high, at))


def _read_content(
    path: Path,
    tensors: Sequence[tuple[str | None, torch.Tensor]],
    others: Sequence[tuple[str, str]],
    sums: _Sums | None,
    how: Reading,
) -> Content:
    """Return the tensors as arrays. Those that cannot be converted are refused when they are asked for."""
    arrays, refused, shown = [], [], list(others)
    for name, tensor in tensors:
        try:
            array = to_numpy(tensor)
        except XBridgeError as error:
            label, info = "the array" if name is None else repr(name), get("torch").array_info(tensor)
            reason = f"{label}: cannot {error.action}: {error.reason}"
            refused.append(Refused(name, tensor, unreadable_error(path, reason, error.hint)))
            what = f"{with_article(info.dtype)} tensor of shape {info.shape}: {error.reason}"
            shown.append((name or "", what))
            continue
        order = "C" if array.flags.c_contiguous else "F" if array.flags.f_contiguous else ""
        arrays.append(_InRecord(name, array.dtype, array.shape, order, array, tensor, sums))
    if not how.untie:
        _refuse_overlaps(path, [x for x in arrays if x.name not in how.skip])
    return Content(arrays, others=shown, refused=refused)
