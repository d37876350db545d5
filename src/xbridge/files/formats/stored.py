"""Arrays in a file, with dtype, shape and order, whose values are read in blocks of bounded size.

Readers return such arrays, and writers accept them. Blocks are enough for every format but torch's, whose
writer needs memory. For it, `map_values` returns maps of the file, or of a temporary file with the blocks.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

import numpy as np

from xbridge import dtype_of
from xbridge.files.errors import RefusedError, chain_read_errors, unreadable_error
from xbridge.files.value_casts import cast_values
from xbridge.protocol import Array, HostArray

Block: TypeAlias = bytes | memoryview
DType: TypeAlias = np.dtype[Any]
ArrayInfo: TypeAlias = tuple[str | None, DType, tuple[int, ...]]
"""The name, the dtype and the shape of an array in a file."""

BLOCK = 1 << 22
"""The bytes of a block, which bound the memory that is used: a cast needs about three blocks."""

_ALIGNMENT = 64


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

    def map(self) -> HostArray | None:
        """Return the values without reading them; None if they are not in a file or in memory as such."""
        return None

    def view(self, raw: HostArray) -> HostArray:
        """Return an array of this dtype, shape and order over its bytes."""
        order: Literal["C", "F"] = "F" if self.order == "F" else "C"
        if not self.nbytes:  # whose bytes would be at the address of another array's
            return np.empty(self.shape, self.dtype, order)
        return raw.view(self.dtype).reshape(self.shape, order=order)


def map_values(arrays: Sequence[Stored], folder: Path) -> list[HostArray]:
    """Return the values of arrays as memory. What cannot be mapped is written to a temporary file first.

    That file has no name. It is one for all arrays, because a system limits the files that a process opens.
    """
    starts: dict[int, int] = {}
    maps = [x.map() for x in arrays]
    with tempfile.TemporaryFile(dir=folder) as file:
        for number, x in enumerate(arrays):
            if maps[number] is None:
                starts[number] = file.tell()
                file.writelines(x.blocks())
                file.write(bytes(-file.tell() % _ALIGNMENT))
        file.write(b"\0")  # an empty file cannot be mapped
        file.flush()
        memory = map_file(file)
    for number, start in starts.items():
        x = arrays[number]
        maps[number] = x.view(memory[start : start + x.nbytes])
    return [found for found in maps if found is not None]


def map_file(file: Path | BinaryIO) -> HostArray:
    """Map a file read-only."""
    raw: HostArray = np.memmap(file, np.uint8, "r").view(np.ndarray)
    return raw


@dataclass(frozen=True)
class InFile(Stored):
    """An array at an offset in a file."""

    path: Path
    offset: int
    memory: Callable[[], HostArray]
    """Return the bytes of the file, by one map for all of its arrays."""

    def blocks(self) -> Iterator[Block]:
        """Yield the bytes from the file."""
        with chain_read_errors(self.path), self.path.open("rb") as file:
            file.seek(self.offset)
            yield from read_blocks(file, self, self.path)

    def map(self) -> HostArray:
        """Return the values in the map of the file."""
        return self.view(self.memory()[self.offset : self.offset + self.nbytes])


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
    loaded: Array
    """The array of the library that loaded it."""

    def blocks(self) -> Iterator[Block]:
        """Yield the bytes, without a copy if they are contiguous."""
        turned = self.array.T if self.order == "F" else self.array
        items = turned.view(f"V{self.dtype.itemsize}")  # opaque items are copied whatever their values
        line = items.reshape(-1) if items.flags.c_contiguous else items.flat
        count = self.step // self.dtype.itemsize
        for start in range(0, items.size, count):
            yield np.ascontiguousarray(line[start : start + count]).view(np.uint8).data

    def map(self) -> HostArray:
        """Return the array itself."""
        return self.array


@dataclass(frozen=True)
class Relaid(Stored):
    """An array with the same values in C order and this machine's byte order."""

    source: Stored
    folder: Path

    def blocks(self) -> Iterator[Block]:
        """Yield the bytes in the new order, gathered from a map."""
        (array,) = map_values([self.source], self.folder)
        for block in InMemory(self.name, array.dtype, self.shape, "C", array, array).blocks():
            yield np.frombuffer(block, array.dtype).astype(self.dtype, copy=False).view(np.uint8).data


@dataclass(frozen=True)
class Cast(Stored):
    """An array with the same values in another dtype, or with the nearest values that the dtype has."""

    source: Stored
    rounds: bool = False

    def blocks(self) -> Iterator[Block]:
        """Cast each block. Raise if a value has changed, or cannot be rounded."""
        for block in self.source.blocks():
            values = np.frombuffer(block, self.source.dtype)
            cast, kept = cast_values(values, self.dtype, rounds=self.rounds)
            if not kept.all():
                at = int(np.argmin(kept))
                (can_round,) = cast_values(values[at : at + 1], self.dtype, rounds=True)[1]
                raise RefusedError.build(
                    f"cast {self.label} from {self.source.dtype} to {self.dtype}",
                    f"the value {values[at]} would become {cast[at]}",
                    "--round" if can_round else "",
                )
            yield cast.view(np.uint8).data


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
    """Return the name of a dtype in either byte order."""
    return dtype_of(np.empty(0, dtype.newbyteorder("=")))
