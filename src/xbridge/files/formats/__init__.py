"""Formats of array files. A format is a module, found by the suffix of a file.

A format opens a file as arrays whose values are not read yet, reports which arrays it can hold, and writes
arrays block by block. Formats do not refer to each other, so a new one is one module. Values are read when
they are written, so a file may be larger than memory.
"""

# pyright: reportReturnType=false
# The methods of a protocol consist of their docstrings.

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, cast

from xbridge.errors import FOREIGN_ERRORS, MissingLibraryError
from xbridge.files.errors import (
    RefusedError,
    check_source,
    format_list,
    shorten,
)

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np

    from xbridge.files.formats.stored import ArrayInfo, Stored
    from xbridge.protocol import Array

SUFFIXES = {".npy": "npy", ".npz": "npz", ".safetensors": "safetensors", ".pt": "pt", ".pth": "pt"}
"""The suffix of a name, and the format, which is a module of this package."""

_READ_TOO = {".bin": "pt", ".ckpt": "pt", ".tar": "pt", ".json": "safetensors"}
"""Suffixes that files are only read under: other names of checkpoints, and that of an index of shards."""

_INSTALL = {
    "safetensors": "pip install 'xbridge-array[cli]'",
    "pt": "pip install 'xbridge-array[torch]'",
}

UNNAMED = "arr_0"
"""NumPy's name for an array without a name."""


class Reading(NamedTuple):
    """The parts of a file that are read, and the defects that are accepted."""

    checksums: bool = True
    """True to compare the checksums of a file that is loaded as a whole."""
    at: Sequence[str] = ()
    """The keys of the part to read, one for each level of containers."""
    flatten: bool = False
    """True to read the arrays of all levels, under their keys joined by dots."""
    skip_other: bool = False
    """True to leave out values that are not arrays."""
    untie: bool = False
    """True to read each name as an array of its own, even if names share memory."""
    skip: Sequence[str] = ()


ALL = Reading(flatten=True, skip_other=True, untie=True)
"""The widest reading, to list names or to pick one array."""


class Refused(NamedTuple):
    """A value that looks like an array but cannot be converted, such as a sparse tensor."""

    name: str | None
    array: Array
    error: RefusedError


class Content(NamedTuple):
    """The content of a file."""

    arrays: Sequence[Stored]
    metadata: Mapping[str, str] = {}
    others: Sequence[tuple[str, str]] = ()
    """The names and descriptions of values that are not arrays, and of the refused ones."""
    refused: Sequence[Refused] = ()
    files: Sequence[Path] = ()
    """The files that hold the values, if they are not in the file itself."""

    def pick(self, name: str) -> Self:
        """Return the arrays of one name, and no other values."""
        found = [x for x in self.arrays if name_of_array(x) == name]
        refused = [x for x in self.refused if name_of_array(x) == name]
        if not found and not refused:
            raise self._unknown_name(name)
        return self._replace(arrays=found, refused=refused, others=())

    def skip(self, names: Sequence[str]) -> Self:
        """Leave out the arrays and other values of some names."""
        every = [*self.names(), *dict(self.others).keys() - {x.name for x in self.refused}]
        for name in names:
            if name not in every:
                raise self._unknown_name(name)
            if every.count(name) > 1:
                raise RefusedError.build(f"leave out {name!r}", *ambiguity_of(name))
        return self._replace(
            arrays=[x for x in self.arrays if name_of_array(x) not in names],
            others=[(name, value) for name, value in self.others if name not in names],
            refused=[x for x in self.refused if name_of_array(x) not in names],
        )

    def names(self) -> list[str]:
        """Return the names of all arrays, also of the refused ones."""
        return [*map(name_of_array, self.arrays), *map(name_of_array, self.refused)]

    def _unknown_name(self, name: str) -> RefusedError:
        return RefusedError.build(f"find the array {name!r}", f"the file has {format_list(self.names())}")


class Format(Protocol):
    """A module that reads and writes the files of one format."""

    names: bool
    """True if files hold arrays by name; else they hold one array."""
    unnamed: bool
    """True if a file can hold one array without a name."""
    metadata: bool
    orders: tuple[str, ...]
    """The axis orders that the format can hold: `C`, `F`, or an empty string for any other."""
    swaps: bool
    """True if the format can hold bytes in the order of another machine."""
    nested: bool
    """True if a file can hold dicts in dicts."""

    def lacks(self, dtype: np.dtype[Any], /) -> str:
        """Return why the format cannot hold a dtype; empty if it can."""

    def read(self, path: Path, how: Reading, /) -> Content:
        """Open a file."""

    def write(self, path: Path, content: Content, /) -> None:
        """Write a file. Temporary files may be made in its folder."""

    def reread(self, path: Path, /) -> Iterator[ArrayInfo]:
        """Yield the arrays that the format's own library finds in a file that was written."""


def format_of(path: Path, suffixes: Mapping[str, str] = SUFFIXES) -> Format:
    """Return the format for the suffix of a file's name."""
    suffix = path.suffix.lower()
    if suffix not in suffixes:
        reason = f"its name ends in {suffix!r}" if suffix else "its name has no suffix"
        reason = f"{reason}, and those of the formats are {', '.join(suffixes)}"
        raise RefusedError.build(f"find the format of {path}", reason)
    return load_format(suffixes[suffix], path)


def name_of_array(x: Stored | Refused) -> str:
    """Return the name by which the caller picks an array."""
    return UNNAMED if x.name is None else x.name


def ambiguity_of(name: str) -> tuple[str, str]:
    """Return why two values have the same name, and a hint."""
    if "." not in name:
        return f"two values have the name {name!r}, which is both a string and a number there", ""
    reason = f"two values have the name {name!r}, which is their keys joined by dots"
    return reason, "--at KEY, which takes some of the arrays"


def add_file(parser: ArgumentParser, verb: str) -> None:
    """Add the arguments for a file of which all arrays or one are read."""
    parser.add_argument("file", type=Path, metavar="FILE", help="an array file")
    add_reading(parser, "FILE")
    parser.add_argument("--array", metavar="NAME", help=f"{verb} only this array")


def add_reading(parser: ArgumentParser, file: str) -> None:
    """Add the arguments that say how a file is read."""
    words = f"take only the dict or tensor with this key of a .pt {file}; repeat it for a key in that dict"
    parser.add_argument("--at", action="append", default=[], metavar="KEY", help=words)


def read_all(asked: Namespace) -> Content:
    """Open a file to list or to explain its arrays."""
    check_source(asked.file)
    return read_file(asked.file, ALL._replace(checksums=False, at=asked.at))


def read_file(path: Path, how: Reading) -> Content:
    """Open a file in the format of its name."""
    form = format_of(path, SUFFIXES | _READ_TOO)
    if how.at and not form.nested:
        raise RefusedError.build(f"find {how.at[0]!r} in {path}", "only .pt files have dicts in dicts")
    return form.read(path, how).skip(how.skip)


def is_json(first: bytes) -> bool:
    """Return True if a file begins like JSON. A file of safetensors begins with a number, which has zeros."""
    return first.lstrip()[:1] == b"{" and b"\0" not in first


def load_format(name: str, path: Path) -> Format:
    """Return the module of a format. The path is for an error."""
    install = _INSTALL.get(name, "pip install numpy")
    try:
        return cast("Format", import_module(f"xbridge.files.formats.{name}"))
    except ModuleNotFoundError as error:
        reason = f"{error.name} is not installed"
        raise MissingLibraryError.build(f"read or write {path}", reason, install) from error
    except FOREIGN_ERRORS as error:
        reason = f"its library cannot be imported: {shorten(str(error), 600)}"
        hint = f"{install}, with --force-reinstall"
        raise MissingLibraryError.build(f"read or write {path}", reason, hint) from error
