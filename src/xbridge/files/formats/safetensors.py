"""`.safetensors`: arrays by name, one after the other behind a JSON header, and text beside them.

The library checks a whole file: no values overlap, none are missing, none are left. Values are read here
after that check, because the library returns arrays and not their offsets. It writes from memory only, so the
header is written here too, in the library's order: the widest dtypes come first, so that all values are
aligned.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from xbridge.extend import native_dtype
from xbridge.files.errors import chain_read_errors, unreadable_error
from xbridge.files.formats import Content, Reading, Refused, is_json, load_format
from xbridge.files.formats.shards import read_index
from xbridge.files.formats.stored import ArrayInfo, InFile, map_file, name_of

names = True
unnamed = False
metadata = True
orders: tuple[str, ...] = ("C",)
swaps = False
nested = False

_CODES = {
    "bool": "BOOL",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
}
"""The dtypes of the format. An older library lacks some, and refuses the file when it is read back."""

_DTYPES = {code: name for name, code in _CODES.items()}
_METADATA = "__metadata__"


def lacks(dtype: np.dtype[Any]) -> str:
    return "" if name_of(dtype) in _CODES else "the format has no such dtype"


def read(path: Path, how: Reading) -> Content:
    with path.open("rb") as file:
        first = file.read(9)

    def read_shard(shard: Path) -> Content:
        return load_format("pt", shard).read(shard, how) if shard.suffix == ".bin" else _read(shard)

    return read_index(path, read_shard, _refuse_repeated_names) if is_json(first) else _read(path)


def _read(path: Path) -> Content:
    with chain_read_errors(path), safe_open(str(path), "numpy"):
        pass
    with chain_read_errors(path), path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        # Of two equal names, the library silently keeps the last.
        header = json.loads(file.read(size), object_pairs_hook=_refuse_repeated_names)
    text = header.pop(_METADATA, None) or {}
    memory = cache(partial(map_file, path))
    arrays, refused, others = [], [], []
    for name, info in header.items():
        if info["dtype"] not in _DTYPES:
            reason = f"the dtype {info['dtype']} of {name!r} is unknown"
            refused.append(Refused(name, None, unreadable_error(path, reason)))
            others.append((name, f"an array of {info['dtype']} of shape {tuple(info['shape'])}"))
            continue
        offset = 8 + size + info["data_offsets"][0]
        arrays.append(InFile(name, _dtype(info["dtype"]), tuple(info["shape"]), "C", path, offset, memory))
    return Content(arrays, text, others=others, refused=refused)


def write(path: Path, content: Content) -> None:
    header: dict[str, Any] = {_METADATA: dict(content.metadata)} if content.metadata else {}
    arrays = sorted(content.arrays, key=lambda stored: (-stored.dtype.itemsize, str(stored.name)))
    end = 0
    for stored in arrays:
        code = _CODES[name_of(stored.dtype)]
        offsets = [end, end := end + stored.nbytes]
        header[str(stored.name)] = {"dtype": code, "shape": stored.shape, "data_offsets": offsets}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for stored in arrays:
            file.writelines(stored.blocks())


def reread(path: Path) -> Iterator[ArrayInfo]:
    with safe_open(str(path), "numpy") as file:
        for name in file.keys():  # noqa: SIM118 -- it is not a mapping
            found = file.get_slice(name)
            yield name, _dtype(found.get_dtype()), tuple(found.get_shape())


def _refuse_repeated_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        name = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        message = f"its header has {name!r} twice"
        raise ValueError(message)
    return found


def _dtype(code: str) -> np.dtype[Any]:
    return native_dtype(_DTYPES[code]).newbyteorder("<")
