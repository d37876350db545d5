"""Output of the command line: JSON, tables of rich on a terminal, or aligned text for other programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from xbridge.extend import format_bytes, printable, table
from xbridge.files.errors import shorten

if TYPE_CHECKING:
    from rich.console import RenderableType

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

        drawn = Table(*head)
        for row in rows:
            drawn.add_row(*row)
        Console(markup=False, emoji=False).print(drawn)
        return
    print(*table([head, *rows]), sep="\n")


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


@contextmanager
def progress(what: str, total: int, files: Sequence[Path]) -> Iterator[None]:
    """Show a bar while files are written, by their sizes. Small conversions have no bar."""
    if total < BIG or not sys.stderr.isatty() or not find_spec("rich"):
        yield
        return
    from rich.console import Console  # noqa: PLC0415 -- an extra
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn  # noqa: PLC0415

    class Bar(Progress):
        """A bar that looks at the files whenever it is drawn."""

        def get_renderables(self) -> Iterable[RenderableType]:
            for task in self.task_ids:
                self.update(task, completed=sum(file.stat().st_size for file in files))
            return super().get_renderables()

    name = TextColumn("{task.description}", markup=False)
    columns = (name, BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, console=Console(stderr=True, emoji=False), transient=True) as bar:
        bar.add_task(what, total=total)
        yield
