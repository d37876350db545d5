"""`.npy`: one array without a name. NumPy's own functions read and write the header."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from xbridge.errors import Chained
from xbridge.files.errors import RefusedError, UnsupportedError, chain_read_errors, unreadable_error
from xbridge.files.formats import Content, Reading
from xbridge.files.formats.stored import ArrayInfo, InFile, Stored, map_file

Header: TypeAlias = "tuple[np.dtype[Any], tuple[int, ...], str]"
"""The dtype, the shape and the order, `C` or `F`."""

names = False
unnamed = True
metadata = False
orders: tuple[str, ...] = ("C", "F")
swaps = True
nested = False

_HEADERS = {
    (1, 0): (2, np.lib.format.read_array_header_1_0),
    (2, 0): (4, np.lib.format.read_array_header_2_0),
}
"""The bytes of the length of a header, and the function that reads it, by version."""

_LONGEST = 10_000
"""The longest header that NumPy accepts. NumPy checks this only after reading it, which may be 4 GiB."""


def lacks(dtype: np.dtype[Any]) -> str:
    # NumPy writes dtypes that other packages registered, such as ml_dtypes, as raw bytes.
    return "NumPy has no such dtype of its own" if dtype.isbuiltin == 2 else ""


def read(path: Path, how: Reading) -> Content:
    with path.open("rb") as file:
        header = read_header(file, path)
        stored = InFile(None, *header, path, file.tell(), cache(partial(map_file, path)))
        found = file.seek(0, 2) - stored.offset
    if found < stored.nbytes:
        raise unreadable_error(path, f"it has only {found} of the {stored.nbytes} bytes of its values")
    if found > stored.nbytes:
        more = f"{found - stored.nbytes} bytes follow its array, perhaps another array"
        raise unreadable_error(path, more)
    return Content([stored])


def write(path: Path, content: Content) -> None:
    with path.open("wb") as file:
        write_array(file, content.arrays[0])


def reread(path: Path) -> Iterator[ArrayInfo]:
    array = np.load(path, mmap_mode="r")
    yield None, array.dtype, array.shape


def read_header(file: Any, path: Path, member: str = "") -> Header:
    """Read the header of a file or of a member of an archive."""
    inside = f"{member!r}: " if member else ""
    with chain_read_errors(path, member):
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            reason = f"{inside}its header has the unknown version {version}"
            raise UnsupportedError.build(f"read {path}", reason)
        width, parse = _HEADERS[version]
        size = file.read(width)
        length = int.from_bytes(size, "little")
        if length > _LONGEST:
            raise unreadable_error(path, f"{inside}its header has {length} bytes, and NumPy reads {_LONGEST}")
        shape, fortran, dtype = parse(BytesIO(size + file.read(length)))
        if min(shape, default=0) < 0 or not dtype.itemsize:
            raise unreadable_error(path, f"{inside}there is no {dtype} array of shape {shape}")
        np.broadcast_to(np.empty((), f"V{dtype.itemsize}"), shape)  # raises for an impossible shape
        if dtype.hasobject:
            reason = f"{inside}it holds Python objects, as a pickle, which can run code when it is read"
            error = UnsupportedError.build(f"read {path}", reason)
            error.shape = shape
            raise error
    return dtype, shape, "F" if fortran and sum(n > 1 for n in shape) > 1 else "C"


def write_array(file: Any, stored: Stored) -> None:
    """Write one array as `numpy.save` would."""
    described = np.lib.format.dtype_to_descr(stored.dtype)
    header = {"descr": described, "fortran_order": stored.order == "F", "shape": stored.shape}
    with Chained(lambda error: RefusedError.build(f"describe {stored.label}", str(error))):
        np.lib.format.write_array_header_1_0(file, header)
    file.writelines(stored.blocks())
