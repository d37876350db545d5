"""Output of the command line: JSON, tables of rich on a terminal, or aligned text for other programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from xbridge._core import text
from xbridge._core.text import printable
from xbridge.files.errors import shorten

if TYPE_CHECKING:
    from xbridge.files.formats import Content

BIG = 64 << 20
"""The size in bytes from which a conversion takes long enough for a progress bar."""


def print_json(value: object) -> None:
    """Print a value as JSON, for programs."""
    print(json.dumps(value, indent=2))


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: one of rich's on a terminal, aligned text elsewhere."""
    if sys.stdout.isatty() and find_spec("rich"):
        from rich.console import Console  # noqa: PLC0415 -- an extra
        from rich.table import Table  # noqa: PLC0415 -- an extra, only for a table

        table = Table(*head)
        for row in rows:
            table.add_row(*row)
        Console(markup=False, emoji=False).print(table)
        return
    print(*text.table([head, *rows]), sep="\n")


def print_arrays(content: Content, about: Mapping[str, str], *, as_json: bool, quiet: bool = False) -> None:
    """Print the names, dtypes, shapes and sizes of arrays, the totals, and the other content of the file."""
    arrays, others = content.arrays, content.others
    if as_json:
        entries = [
            {"name": x.name, "dtype": str(x.dtype), "shape": x.shape, "bytes": x.nbytes} for x in arrays
        ]
        left_out = [{"name": name, "value": value} for name, value in others]
        print_json({**about, "arrays": entries, "others": left_out})
        return
    if not quiet:
        rows = [
            [_cell(x.name or ""), str(x.dtype), str(x.shape), text.format_bytes(x.nbytes)] for x in arrays
        ]
        print_table(["array", "dtype", "shape", "size"], rows)
        if others:
            print()
            print_table(["not an array", "value"], [[_cell(name), _cell(value)] for name, value in others])
            print()
    words = "1 array" if len(arrays) == 1 else f"{len(arrays)} arrays"
    print(f"{words}, {text.format_bytes(sum(x.nbytes for x in arrays))}")


def _cell(name: str) -> str:
    """Return a name in one line that is cut to the size of a screen."""
    return shorten(printable(name), 200)


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], object]]:
    """Return a context whose function adds bytes to a progress bar. Small conversions have no bar."""
    if total < BIG or not sys.stderr.isatty() or not find_spec("rich"):
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415 -- an extra
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn  # noqa: PLC0415

    name = TextColumn("{task.description}", markup=False)
    columns = (name, BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True, emoji=False), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
