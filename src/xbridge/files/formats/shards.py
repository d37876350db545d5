"""Shards of a model: several files, and an index that gives the file of each array by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xbridge.files.errors import RefusedError, chain_read_errors, unreadable_error
from xbridge.files.formats import Content, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from xbridge.files.formats.stored import Stored

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_LONGEST = 64 << 20
_TOTALS = ("total_size", "total_parameters")
"""The entries of an index about its arrays."""


def read_index(path: Path, read: Callable[[Path], Content], pairs: Callable[[Any], Any]) -> Content:
    """Read the shards beside an index. Its names and those of the shards must be the same."""
    if path.stat().st_size > _LONGEST:
        raise unreadable_error(path, f"it is text of more than {_LONGEST} bytes, which is not an index")
    with chain_read_errors(path):
        index = json.loads(path.read_bytes(), object_pairs_hook=pairs)
    files, text = index.get("weight_map"), index.get("metadata") or {}
    is_index = isinstance(files, dict) and all(isinstance(file, str) for file in files.values())
    if not is_index or not isinstance(text, dict):
        reason = "it is JSON, and not an index of shards"
        raise unreadable_error(path, reason)
    texts: dict[str, str] = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in text.items()
        if key not in _TOTALS
    }
    arrays: dict[tuple[str, str], Stored] = {}
    left: set[tuple[str, str]] = set()
    refused: list[Refused] = []
    others: list[tuple[str, str]] = []
    shards = [_shard(path, file) for file in dict.fromkeys(files.values())]
    for shard in shards:
        content = read(shard)
        for key, value in content.metadata.items():
            if texts.setdefault(key, value) != value:
                raise unreadable_error(path, f"its shards differ in the metadata {key!r}")
        arrays |= {(str(x.name), shard.name): x for x in content.arrays}
        left |= {(str(x.name), shard.name) for x in content.refused}
        refused += content.refused
        others += content.others
    there = arrays.keys() | left
    for name, file in sorted(there ^ files.items()):
        reason = f"its shard {file} lacks the array {name!r}"
        if (name, file) in there:
            reason = f"its shard {file} has the array {name!r}, and its index does not"
        raise unreadable_error(path, reason)
    found = [arrays[pair] for pair in files.items() if pair in arrays]
    return Content(found, texts, others=others, refused=refused, files=shards)


def _shard(path: Path, name: str) -> Path:
    """Return a shard of an index, which is a file in its folder."""
    if not name.endswith((".safetensors", ".bin")) or Path(name).name != name:
        reason = f"it names the shard {name!r}, which is not a .safetensors or .bin file in its folder"
        raise unreadable_error(path, reason)
    shard = path.with_name(name)
    with chain_read_errors(path):  # the name may be too long for the system
        there = shard.is_file()
    if not there:
        raise unreadable_error(path, f"its shard {name} does not exist")
    return shard


def read_size(text: str) -> int:
    """Return the number of bytes that a string such as `5GB` means."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?) ?([KMG]?i?B?)", text, re.IGNORECASE)
    unit = found and _UNITS.get(found[2].upper() or "B")
    size = int(float(found[1]) * unit) if found and unit else 0
    if not size:
        reason = "it is not a size"
        raise RefusedError.build(f"write shards of {text!r}", reason, "--shard 5GB, or --shard 512MiB")
    return size


def split(arrays: Sequence[Stored], most: int) -> Iterator[list[Stored]]:
    """Yield the arrays of each shard, in order: at most `most` bytes of values, or one array."""
    shard: list[Stored] = []
    size = 0
    for x in arrays:
        size += x.nbytes
        if shard and x.nbytes and size > most:
            yield shard
            shard, size = [], x.nbytes
        shard.append(x)
    yield shard


def name_shards(target: Path, count: int) -> list[Path]:
    """Return the names of the shards of a target, and of their index, as other tools write them."""
    stem, suffix = target.stem, target.suffix
    numbers = range(1, count + 1)
    shards = [target.with_name(f"{stem}-{number:05}-of-{count:05}{suffix}") for number in numbers]
    return [*shards, index_name(target)]


def index_name(target: Path) -> Path:
    """Return the name of the index of a target's shards."""
    return target.with_name(f"{target.name}.index.json")


def format_index(shards: Mapping[Path, Sequence[Stored] | None]) -> bytes:
    """Return the text of the index file, which says in which file each array is."""
    placed = [(x, shard.name) for shard, arrays in shards.items() for x in arrays or ()]
    total = sum(x.nbytes for x, _ in placed)
    files = {str(x.name): name for x, name in placed}
    index = {"metadata": {"total_size": total}, "weight_map": files}
    return json.dumps(index, indent=2, ensure_ascii=False).encode() + b"\n"
