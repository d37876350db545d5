"""Output of the command line: JSON, or aligned text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from xbridge.extend import format_bytes, printable, table
from xbridge.files.errors import shorten

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xbridge.files.formats import Content


def print_json(value: object) -> None:
    """Print a value as JSON, for programs."""
    print(json.dumps(value, indent=2))


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table of aligned columns."""
    print(*table([head, *rows]), sep="\n")


def print_arrays(content: Content, about: Mapping[str, str], *, as_json: bool) -> None:
    """Print the names, dtypes, shapes and sizes of arrays, the totals, and the other content of the file."""
    arrays, others = content.arrays, content.others
    if as_json:
        entries = [
            {"name": x.name, "dtype": str(x.dtype), "shape": x.shape, "bytes": x.nbytes} for x in arrays
        ]
        left_out = [{"name": name, "value": value} for name, value in others]
        print_json({**about, "arrays": entries, "others": left_out})
        return
    rows = [[_cell(x.name or ""), str(x.dtype), str(x.shape), format_bytes(x.nbytes)] for x in arrays]
    print_table(["array", "dtype", "shape", "size"], rows)
    if others:
        print()
        print_table(["not an array", "value"], [[_cell(name), _cell(value)] for name, value in others])
        print()
    words = "1 array" if len(arrays) == 1 else f"{len(arrays)} arrays"
    print(f"{words}, {format_bytes(sum(x.nbytes for x in arrays))}")


def _cell(name: str) -> str:
    """Return a name in one line that is cut to the size of a screen."""
    return shorten(printable(name), 200)
