"""Formats of array files. A format is a module, found by the content or the name of a file.

A format opens a file as arrays whose values are not read yet, reports which arrays it can hold, and writes
arrays block by block. Formats do not refer to each other, so a new one is one module. Values are read when
they are written, so a file may be larger than memory.
"""

# pyright: reportReturnType=false
# The methods of a protocol consist of their docstrings.

from __future__ import annotations

import shlex
import zipfile
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from xbridge.errors import FOREIGN_ERRORS, MissingLibraryError
from xbridge.files.errors import RefusedError, chain_read_errors, format_list, shorten, unreadable_error

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np

    from xbridge._core.protocol import Array
    from xbridge.files.formats.sink import Sink
    from xbridge.files.formats.sources import Sources
    from xbridge.files.formats.stored import ArrayInfo, Stored

SUFFIXES = {
    ".npy": ("xbridge.files.formats.npy", "pip install numpy"),
    ".npz": ("xbridge.files.formats.npz", "pip install numpy"),
    ".safetensors": ("xbridge.files.formats.safetensors", "pip install 'xbridge-array[cli]'"),
    ".pt": ("xbridge.files.formats.pt", "pip install 'xbridge-array[torch]'"),
    ".pth": ("xbridge.files.formats.pt", "pip install 'xbridge-array[torch]'"),
}
"""The suffix of a name, the module of the format, and the command that installs its library."""

UNNAMED = "arr_0"
"""NumPy's name for an array without a name."""


FORMATS = ("npy", "npz", "safetensors", "pt")
"""The names of the formats."""


OUT_OF_SCOPE = {
    ".arrow": "Arrow",
    ".csv": "text",
    ".feather": "Arrow",
    ".gguf": "GGUF",
    ".h5": "HDF5",
    ".hdf5": "HDF5",
    ".keras": "Keras",
    ".mat": "MATLAB",
    ".msgpack": "MessagePack",
    ".nc": "NetCDF",
    ".onnx": "ONNX",
    ".parquet": "Parquet",
    ".pickle": "pickle",
    ".pkl": "pickle",
    ".txt": "text",
    ".zarr": "Zarr",
}
"""Formats that are neither read nor written, by the suffix of their names."""


class Reading(NamedTuple):
    """The parts of a file that are read, and the defects that are accepted."""

    checksums: bool = True
    """True to refuse a file that lacks the checksums which its format provides."""
    at: Sequence[str] = ()
    """The keys of the part to read, one for each level of containers."""
    flatten: bool = False
    """True to read the arrays of all levels, under their keys joined by dots."""
    skip_other: bool = False
    """True to leave out values that are not arrays."""
    untie: bool = False
    """True to read each name as an array of its own, even if names share memory."""
    skip: Sequence[str] = ()
    """The names of arrays and of other values to leave out."""


ALL = Reading(flatten=True, skip_other=True, untie=True)
"""The widest reading, which accepts every defect, to list names or to pick one array."""


class Refused(NamedTuple):
    """A value that looks like an array but cannot be converted, such as a sparse tensor."""

    name: str | None
    array: Array
    error: RefusedError

    def like(self) -> Array:
        """Return the array of the library that loaded it."""
        return self.array


class Content(NamedTuple):
    """The content of a file."""

    arrays: Sequence[Stored]
    metadata: Mapping[str, str] = {}
    """Text beside the arrays."""
    others: Sequence[tuple[str, str]] = ()
    """The names and descriptions of values that are not arrays, and of the refused ones."""
    refused: Sequence[Refused] = ()
    compression: Mapping[str | None, int] = {}
    """The compression of the arrays of an archive, by name, as `zipfile` numbers it."""
    files: Sequence[Path] = ()
    """The files that hold the values, if they are not in the file itself."""


class Format(Protocol):
    """A module that reads and writes the files of one format."""

    names: bool
    """True if files hold arrays by name; else they hold one array."""
    unnamed: bool
    """True if a file can hold one array without a name."""
    metadata: bool
    """True if files hold text beside the arrays."""
    orders: tuple[str, ...]
    """The axis orders that the format can hold: `C`, `F`, or an empty string for any other."""
    swaps: bool
    """True if the format can hold bytes in the order of another machine."""
    nested: bool
    """True if a file can hold dicts in dicts."""

    def lacks(self, dtype: np.dtype[Any], /) -> str:
        """Return why the format cannot hold a dtype; empty if it can."""

    def read(self, path: Path, sources: Sources, how: Reading, /) -> Content:
        """Open a file as long as the sources."""

    def write(self, file: Sink, content: Content, scratch: Path, /) -> None:
        """Write a file. Memory is mapped from unnamed files in the folder `scratch`."""

    def reread(self, path: Path, /) -> Iterator[ArrayInfo]:
        """Yield the arrays that the format's own library finds in a file that was written."""

    def numbers(self, content: bytes, /) -> Mapping[str, Any]:
        """Return the arrays by name, as the format's own library reads a small file that has names."""


def format_of(path: Path) -> Format:
    """Return the format for the suffix of a file's name."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        reason = f"its name ends in {suffix!r}" if suffix else "its name has no suffix"
        near = get_close_matches(suffix, SUFFIXES, 1, 0.75)
        hint = f"{path.with_suffix(near[0])}" if near else f"a name that ends in {', '.join(SUFFIXES)}"
        if str(path) == "-":
            reason = "a pipe is not written, because the new file is read back"
        elif suffix in OUT_OF_SCOPE:
            reason = f"{reason}, and {OUT_OF_SCOPE[suffix]} files are out of scope"
        elif path.name.endswith(".safetensors.index.json"):
            reason, hint = "an index is written with its shards", f"{path.name[:-11]} --shard 5GB"
        raise RefusedError.build(f"find the format of {path}", reason, hint)
    return _module(suffix, path)


def format_in(path: Path, asked: str | None) -> Format:
    """Return the format that was asked for, else that of the content. The name of a file must agree."""
    suffix, found = path.suffix.lower(), _recognize(path) if asked is None else f".{asked}"
    if found is None and suffix not in SUFFIXES:
        what = OUT_OF_SCOPE.get(suffix)
        reason = (
            f"{what} files are out of scope" if what else "it does not begin like a file of a known format"
        )
        raise unreadable_error(path, reason, f"a file in one of the formats {', '.join(FORMATS)}")
    if found is None:
        return format_of(path)
    if asked is None and suffix in SUFFIXES and SUFFIXES[suffix] != SUFFIXES[found]:
        reason = f"its name ends in {suffix}, and its content is that of a {found} file"
        raise unreadable_error(path, reason, f"--from-format {found[1:]}")
    return _module(found, path)


def name_of_array(x: Stored | Refused) -> str:
    """Return the name by which the caller picks an array."""
    return UNNAMED if x.name is None else x.name


def suggest_array(option: str, name: str, names: Sequence[str]) -> RefusedError:
    """Return the error for a name that no array has."""
    near = get_close_matches(name, names, 1, 0)
    hint = f"{option} {shlex.quote(near[0])}" if near else "another file"
    return RefusedError.build(f"find the array {name!r}", f"the file has {format_list(names)}", hint)


def _drop_names(content: Content, skipped: Sequence[str]) -> Content:
    """Leave out the arrays and other values of some names."""
    arrays = [x for x in content.arrays if name_of_array(x) not in skipped]
    others = [(name, value) for name, value in content.others if name not in skipped]
    every: list[Stored | Refused] = [*content.arrays, *content.refused]
    names = [name_of_array(x) for x in every]
    for name in skipped:
        if name not in (*names, *(other for other, _ in content.others)):
            raise suggest_array("--skip", name, names)
    refused = [x for x in content.refused if name_of_array(x) not in skipped]
    return content._replace(arrays=arrays, others=others, refused=refused)


def add_file(parser: ArgumentParser, verb: str) -> None:
    """Add the arguments for a file of which all arrays or one are read."""
    parser.add_argument("file", type=Path, metavar="FILE", help="an array file")
    words = "read FILE in this format, whatever its name ends in"
    parser.add_argument("--from-format", choices=FORMATS, help=words)
    parser.add_argument("--array", metavar="NAME", help=f"{verb} only this array")
    add_at(parser)


def add_at(parser: ArgumentParser) -> None:
    """Add the argument that picks a part of a file."""
    words = "take only the dict or tensor with this key of a .pt file; repeat it for a key in that dict"
    parser.add_argument("--at", action="append", default=[], metavar="KEY", help=words)


def read_file(path: Path, asked: str | None, how: Reading, sources: Sources) -> Content:
    """Open a file as long as the sources, in the format that was asked for, else that of its content."""
    form = format_in(path, asked)
    if how.at and not form.nested:
        names = [x.name for x in form.read(path, sources, ALL).arrays]
        hint = f"--array {shlex.quote(how.at[0])}" if how.at[0] in names else "no --at"
        reason = "only .pt files have dicts in dicts"
        raise RefusedError.build(f"find {how.at[0]!r} in {path}", reason, hint)
    sources.watch(path)
    return _drop_names(form.read(path, sources, how), how.skip)


def _recognize(path: Path) -> str | None:
    """Return the suffix of the format that the first bytes of a file belong to; None if there is none."""
    with path.open("rb") as file:
        first = file.read(9)
    if first.startswith((b"PK\3\4", b"PK\5\6")):
        try:
            with chain_read_errors(path), zipfile.ZipFile(path) as archive:
                names = archive.namelist()
        except RefusedError:
            return None  # it is damaged, and the format of its name says how
        return ".pt" if any(name.endswith("/data.pkl") for name in names) else ".npz"
    if first.startswith(b"\x93NUMPY"):
        return ".npy"
    if first.startswith(b"\x80\x02\x8a\nl\xfc\x9cF"):  # the magic number of torch before 1.6, as a pickle
        return ".pt"
    return ".safetensors" if first[8:] == b"{" or is_json(first) else None


def is_json(first: bytes) -> bool:
    """Return True if a file begins like JSON. A file of safetensors begins with a number, which has zeros."""
    return first.lstrip()[:1] == b"{" and b"\0" not in first


def _module(suffix: str, path: Path) -> Format:
    module, install = SUFFIXES[suffix]
    try:
        return cast("Format", import_module(module))
    except ModuleNotFoundError as error:
        reason = f"{error.name} is not installed"
        raise MissingLibraryError.build(f"read or write {path}", reason, install) from error
    except (SystemExit, *FOREIGN_ERRORS) as error:
        words = repr(error) if isinstance(error, SystemExit) else str(error)
        reason = f"its library cannot be imported: {shorten(words)}"
        hint = f"{install}, with --force-reinstall"
        raise MissingLibraryError.build(f"read or write {path}", reason, hint) from error
