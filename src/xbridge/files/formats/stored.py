"""Arrays in a file, with dtype, shape and order, whose values are read in blocks of bounded size.

Readers return such arrays, and writers accept them. Blocks are enough for every format but torch's, whose
writer needs memory. For it, `map_values` returns a map of the file, or of an unnamed file with the blocks.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self, TypeAlias

import numpy as np

from xbridge._core.protocol import Array, HostArray
from xbridge._host import as_writable
from xbridge._host.memory import ALIGNMENT
from xbridge._registry.registry import get
from xbridge.backends import HOST
from xbridge.files.errors import RefusedError, chain_read_errors, unreadable_error
from xbridge.files.value_casts import cast_exactly, cast_to_nearest

Block: TypeAlias = bytes | memoryview
DType: TypeAlias = np.dtype[Any]
ArrayInfo: TypeAlias = tuple[str | None, DType, tuple[int, ...]]
"""The name, the dtype and the shape of an array in a file."""

BLOCK = 1 << 22
"""The bytes of a block, which bound the memory that is used: a cast needs about three blocks."""


@dataclass(frozen=True)
class Stored(ABC):
    """An array in a file, whose values are read when they are needed."""

    name: str | None
    """None if the file has no name for it."""
    dtype: DType
    shape: tuple[int, ...]
    order: str
    """The order of the elements: `C`, `F`, or an empty string for neither."""

    @property
    def label(self) -> str:
        """The name of the array in errors."""
        return "the array" if self.name is None else repr(self.name)

    @property
    def nbytes(self) -> int:
        """The size of the values in bytes."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def step(self) -> int:
        """The size of a block: whole elements, and at least one."""
        size = max(self.dtype.itemsize, 1)
        return max(BLOCK // size, 1) * size

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """Yield the bytes from first to last, in blocks of whole elements."""

    def like(self) -> Array:
        """Return an array of the same dtype, shape and order, whose values are not defined."""
        return np.empty(self.shape, self.dtype, "F" if self.order == "F" else "C")

    def map_values(self, scratch: Scratch) -> HostArray:
        """Return the values as a map of a file, which is read on access and must not be written."""
        return self._view_values(scratch.store(self.nbytes, self.blocks()))

    def _view_values(self, raw: HostArray) -> HostArray:
        """Return the values in a map of their bytes."""
        order: Literal["C", "F"] = "F" if self.order == "F" else "C"
        if not self.nbytes:
            return np.empty(self.shape, self.dtype, order)
        # A writable map of a file larger than memory would be refused, even a private one.
        return as_writable(raw).view(self.dtype).reshape(self.shape, order=order)


class MappedFile:
    """A file that is mapped once, if at all: each map holds a file open, and a system limits those."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def memory(self) -> HostArray:
        """The bytes of the file."""
        return _map_file(self.path)


class Scratch:
    """Temporary files without names, for values that a writer needs as memory. Many arrays share a file.

    Each file has room for twice as much as the one before, so there are few. Room that is not used takes no
    place on a disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = ExitStack()
        self._file: BinaryIO
        self._memory: HostArray = np.empty(0, np.uint8)
        self._end = 0

    def __enter__(self) -> Self:
        """Enter the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files. Maps of them stay."""
        self._files.close()

    def store(self, nbytes: int, blocks: Iterator[Block]) -> HostArray:
        """Write values, and return a map of them."""
        if not nbytes:
            return self._memory[:0]
        start = -(-self._end // ALIGNMENT) * ALIGNMENT
        if start + nbytes > self._memory.size:
            room = max(nbytes, 2 * self._memory.size)
            file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 -- the stack closes it
            self._file = self._files.enter_context(file)
            self._file.truncate(room)
            self._memory, start = _map_file(self._file), 0
        self._file.seek(start)
        self._file.writelines(blocks)
        self._file.flush()
        self._end = start + nbytes
        return self._memory[start : self._end]


def _map_file(file: Path | BinaryIO) -> HostArray:
    """Map a file read-only."""
    raw: HostArray = np.memmap(file, np.uint8, "r").view(np.ndarray)
    return raw


@dataclass(frozen=True)
class InFile(Stored):
    """An array at an offset in a file."""

    file: MappedFile
    offset: int

    def blocks(self) -> Iterator[Block]:
        """Yield the bytes from the file."""
        with chain_read_errors(self.file.path), self.file.path.open("rb") as file:
            file.seek(self.offset)
            yield from read_blocks(file, self, self.file.path)

    def map_values(self, scratch: Scratch) -> HostArray:  # noqa: ARG002 -- it is in a file already
        """Return the values from a map of the file, without the scratch file."""
        return self.like()

    def like(self) -> HostArray:
        """Return the values from a map of the file, without the scratch file."""
        end = self.offset + self.nbytes
        return self._view_values(
            self.file.memory[self.offset : end] if self.nbytes else np.empty(0, np.uint8)
        )


@dataclass(frozen=True)
class InArchive(Stored):
    """An array in an archive, with a checksum that is checked after the last block."""

    path: Path
    opened: Callable[[], AbstractContextManager[tuple[BinaryIO, object]]]
    """Open the member at its values, behind its header."""

    def blocks(self) -> Iterator[Block]:
        """Yield the unpacked bytes up to the end, at which the checksum is checked."""
        with self.opened() as (file, _):
            yield from read_blocks(file, self, self.path)
            if file.read(1):
                raise unreadable_error(self.path, f"more bytes follow the values of {self.label}")


@dataclass(frozen=True)
class InMemory(Stored):
    """An array in memory, which may be mapped."""

    array: HostArray
    loaded: Array = None
    """The array of the library that loaded it."""

    def like(self) -> Array:
        """Return the array of the library that loaded it."""
        return self.loaded

    def blocks(self) -> Iterator[Block]:
        """Yield the bytes, without a copy if they are contiguous."""
        turned = self.array.T if self.order == "F" else self.array
        items = turned.view(f"V{self.dtype.itemsize}")  # opaque items are copied whatever their values
        line = items.reshape(-1) if items.flags.c_contiguous else items.flat
        count = self.step // self.dtype.itemsize
        for start in range(0, items.size, count):
            yield np.ascontiguousarray(line[start : start + count]).view(np.uint8).data

    def map_values(self, scratch: Scratch) -> HostArray:  # noqa: ARG002 -- it is in memory already
        """Return the memory itself."""
        return self.array


@dataclass(frozen=True)
class Relaid(Stored):
    """An array with the same values in C order and this machine's byte order."""

    source: Stored
    scratch: Path

    def blocks(self) -> Iterator[Block]:
        """Yield the bytes in the new order, gathered from a map."""
        with Scratch(self.scratch) as scratch:
            array = self.source.map_values(scratch)
        for block in InMemory(self.name, array.dtype, self.shape, "C", array).blocks():
            values = np.frombuffer(block, array.dtype).astype(self.dtype, copy=False)
            yield values.view(np.uint8).data


@dataclass(frozen=True)
class Cast(Stored):
    """An array with the same values in another dtype, or with the nearest values that the dtype has."""

    source: Stored
    rounds: bool = False
    """True if finite values may become the nearest ones."""

    def blocks(self) -> Iterator[Block]:
        """Cast each block. Raise if a value has changed, or cannot be rounded."""
        for block in self.source.blocks():
            values = np.frombuffer(block, self.source.dtype)
            cast, kept = (cast_to_nearest if self.rounds else cast_exactly)(values, self.dtype)
            if not kept.all():
                at = int(np.argmin(kept))
                (can_round,) = cast_to_nearest(values[at : at + 1], self.dtype)[1]
                raise RefusedError.build(
                    f"cast {self.label} from {self.source.dtype} to {self.dtype}",
                    f"the value {values[at]} would become {cast[at]}",
                    f"a dtype that has all of its values{', or --round' if can_round else ''}",
                )
            yield cast.view(np.uint8).data


def number_arrays(names: Sequence[str]) -> list[Stored]:
    """Return an array for each name, with its number as its value."""
    dtype = np.dtype(np.int64)
    return [InMemory(name, dtype, (), "C", np.array(i, dtype)) for i, name in enumerate(names)]


def read_blocks(file: BinaryIO, stored: Stored, path: Path) -> Iterator[bytes]:
    """Yield the values that begin at the position of the file."""
    left = stored.nbytes
    while left:
        block = file.read(min(stored.step, left))
        left -= len(block)
        if len(block) < min(stored.step, left + len(block)):
            raise unreadable_error(path, f"it ends {left} bytes before the last value of {stored.label}")
        yield block


def name_of(dtype: DType) -> str:
    """Return the canonical name of a dtype in either byte order; empty if there is none."""
    return get(HOST).dtype_name(dtype.newbyteorder("=")) or ""
