"""Read the shards of a model: several files, and an index that gives the file of each array by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xbridge.files.errors import chain_read_errors, unreadable_error
from xbridge.files.formats import Content, Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge.files.formats.stored import Stored

_LONGEST = 64 << 20
_TOTALS = ("total_size", "total_parameters")


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
