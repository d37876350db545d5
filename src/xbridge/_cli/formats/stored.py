"""Arrays that are still in a file: known by dtype, shape and order, read in blocks of bounded size.

What a reader hands out and a writer takes. Blocks are enough for every format but torch's, whose writer
wants memory: `mapped` gives it a map of the file, or of an unnamed file that the blocks were written to.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeAlias

import numpy as np

from xbridge._cli.errors import RefusedError, unreadable
from xbridge._host import as_writable
from xbridge.backends import HOST
from xbridge.backends._registry import get
from xbridge.errors import Chained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from xbridge._core.protocol import Array, HostArray

    Block: TypeAlias = bytes | memoryview
    DType: TypeAlias = np.dtype[Any]
    ArrayInfo: TypeAlias = tuple[str | None, DType, tuple[int, ...]]
    """The name, the dtype and the shape of an array in a file."""

BLOCK = 1 << 22
"""Bytes that are held at a time; a cast holds two blocks and what it compares them by."""


@dataclass(frozen=True)
class Stored(ABC):
    """One array, without its values."""

    name: str | None
    """None where the file gives it none."""
    dtype: DType
    shape: tuple[int, ...]
    order: str
    """How its elements follow each other: `C`, `F`, or `` for neither."""

    @property
    def label(self) -> str:
        """What errors call it."""
        return "the array" if self.name is None else repr(self.name)

    @property
    def nbytes(self) -> int:
        """The size of its values."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def step(self) -> int:
        """The size of a block: whole elements, and at least one."""
        size = max(self.dtype.itemsize, 1)
        return max(BLOCK // size, 1) * size

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """Its bytes from the first to the last, in its order and byte order; whole elements each."""

    def like(self) -> Array:
        """An array of the same facts, as a program would load it; nobody may read its values."""
        return np.empty(self.shape, self.dtype, "F" if self.order == "F" else "C")

    def mapped(self, scratch: Path) -> HostArray:
        """Its values as memory that is paged in when it is read. It only looks writable."""
        with tempfile.TemporaryFile(dir=scratch) as file:
            file.writelines(self.blocks())
            file.flush()
            return self._map(file, 0)

    def _map(self, file: BinaryIO, offset: int) -> HostArray:
        order: Literal["C", "F"] = "F" if self.order == "F" else "C"
        if not self.nbytes:
            return np.empty(self.shape, self.dtype, order)
        # Mapped to be written, even privately, a file larger than memory would be refused.
        raw: HostArray = np.memmap(file, np.uint8, "r", offset, (self.nbytes,)).view(np.ndarray)
        return as_writable(raw).view(self.dtype).reshape(self.shape, order=order)


@dataclass(frozen=True)
class InFile(Stored):
    """Somewhere in a file, as it is."""

    path: Path
    offset: int

    def blocks(self) -> Iterator[Block]:
        """Read them."""
        with Chained(partial(unreadable, self.path)), self.path.open("rb") as file:
            file.seek(self.offset)
            yield from read_blocks(file, self, self.path)

    def mapped(self, scratch: Path) -> HostArray:  # noqa: ARG002 -- it is in a file already
        """The file itself."""
        return self.like()

    def like(self) -> HostArray:
        """The file itself."""
        with self.path.open("rb") as file:
            return self._map(file, self.offset)


@dataclass(frozen=True)
class InArchive(Stored):
    """In an archive, which has a checksum: it is held against the values when the last were read."""

    path: Path
    opened: Callable[[], AbstractContextManager[tuple[BinaryIO, object]]]
    """Opens it where the values begin; what it says of them has been read."""

    def blocks(self) -> Iterator[Block]:
        """Unpack them, up to the end, where the checksum is compared."""
        with self.opened() as (file, _):
            yield from read_blocks(file, self, self.path)
            if file.read(1):
                raise unreadable(self.path, f"more bytes follow the values of {self.label}")


@dataclass(frozen=True)
class InMemory(Stored):
    """In memory, which may be mapped."""

    array: HostArray
    loaded: Array = None
    """The array as its library gave it."""

    def like(self) -> Array:
        """That array."""
        return self.loaded

    def blocks(self) -> Iterator[Block]:
        """Look at them, or gather them where they do not follow each other."""
        turned = self.array.T if self.order == "F" else self.array
        items = turned.view(f"V{self.dtype.itemsize}")  # opaque: a cast would look at the values
        line = items.reshape(-1) if items.flags.c_contiguous else items.flat
        count = self.step // self.dtype.itemsize
        for start in range(0, items.size, count):
            yield np.ascontiguousarray(line[start : start + count]).view(np.uint8).data

    def mapped(self, scratch: Path) -> HostArray:  # noqa: ARG002 -- it is in memory already
        """The memory itself."""
        return self.array


@dataclass(frozen=True)
class Relaid(Stored):
    """The same values in C order and this machine's byte order."""

    source: Stored
    scratch: Path

    def blocks(self) -> Iterator[Block]:
        """Gather them from a map."""
        array = self.source.mapped(self.scratch)
        for block in InMemory(self.name, array.dtype, self.shape, "C", array).blocks():
            values = np.frombuffer(block, array.dtype).astype(self.dtype, copy=False)
            yield values.view(np.uint8).data


@dataclass(frozen=True)
class Cast(Stored):
    """The same values in another dtype, which has all of them."""

    source: Stored

    def blocks(self) -> Iterator[Block]:
        """Cast there and back, and refuse the first block that comes back changed."""
        for block in self.source.blocks():
            values = np.frombuffer(block, self.source.dtype)
            with np.errstate(all="ignore"):
                there = values.astype(self.dtype)
                back = there.astype(values.dtype)
            same = (_bytes_of(back) == _bytes_of(values)).all(1)  # bytes tell -0.0 from 0.0
            same |= (back != back) & (values != values)  # noqa: PLR0124 -- NaN is not itself
            same &= in_range(values, there) & in_range(there, values)
            if not same.all():
                at = int(np.argmin(same))
                raise RefusedError.build(
                    f"cast {self.label} from {self.source.dtype} to {self.dtype}",
                    f"the value {values[at]} would become {there[at]}",
                    "a dtype that has all of its values",
                )
            yield there.view(np.uint8).data


def counted(names: Sequence[str | None]) -> list[Stored]:
    """Return an array for each name, which holds its number."""
    numbers = [np.array(number, np.int64) for number, _ in enumerate(names)]
    return [InMemory(name, x.dtype, (), "C", x) for name, x in zip(names, numbers, strict=True)]


def read_blocks(file: BinaryIO, stored: Stored, path: Path) -> Iterator[bytes]:
    """The values that begin where the file stands."""
    left = stored.nbytes
    while left:
        block = file.read(min(stored.step, left))
        left -= len(block)
        if len(block) < min(stored.step, left + len(block)):
            raise unreadable(path, f"it ends {left} bytes before the last value of {stored.label}")
        yield block


def in_range(whole: HostArray, real: HostArray) -> HostArray | bool:
    """Whether floats lie below the end of an integer dtype, for which some machines take what is beyond."""
    if whole.dtype.kind not in "iu" or real.dtype.kind in "biu":
        return True
    end = float(np.iinfo(whole.dtype).max)  # which rounds up to the power of two where it rounds
    below: HostArray = np.real(real).astype(np.float64) < (end if end >= 2.0**53 else end + 1)
    return below


def _bytes_of(line: HostArray) -> HostArray:
    """A row for each element."""
    return line.view(np.uint8).reshape(line.size, line.itemsize)


def name_of(dtype: DType) -> str:
    """The canonical name of a dtype in either byte order; empty where there is none."""
    return get(HOST).dtype_name(dtype.newbyteorder("=")) or ""


def order_of(shape: tuple[int, ...], *, fortran: bool) -> str:
    """`F` where that differs from `C`."""
    return "F" if fortran and sum(n > 1 for n in shape) > 1 else "C"
