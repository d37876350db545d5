"""`matrix`: tables of conversions, measured by converting an array for every cell."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from xbridge import is_available, known_backends, shares_memory, to_backend
from xbridge.errors import XBridgeError
from xbridge.extend import DTYPES, get_backend
from xbridge.files.errors import RefusedError, one_line
from xbridge.files.output import print_json, print_table

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterator

    from xbridge.protocol import Array

HELP = "measure which dtypes and pairs of libraries convert"
DESCRIPTION = """\
Print a table that is measured now: convert an array for every cell, and show what happened to its memory.

  dtypes  from one backend to others, with a row for each dtype
  pairs   between all backends, or those of --to, with float32"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    words = "which table to print (default: pairs)"
    parser.add_argument("table", nargs="?", choices=("dtypes", "pairs"), default="pairs", help=words)
    words = "the source backend of dtypes (default: numpy)"
    parser.add_argument("--from", dest="source", default="numpy", metavar="BACKEND", help=words)
    parser.add_argument(
        "--to", nargs="+", metavar="BACKEND", help="the target backends (default: all that are installed)"
    )


def run(asked: Namespace) -> int:
    """Make the arrays, and convert each of them to each backend."""
    here = asked.to or [name for name in known_backends() if is_available(name)]
    pairs = asked.table == "pairs"
    made = _rows(asked.table, here, asked.source if pairs else get_backend(asked.source).name)
    targets = [get_backend(name).name for name in here if pairs or name != asked.source]
    if not targets:
        reason = f"{asked.source} is the only backend that is installed"
        raise RefusedError.build(f"measure {asked.table}", reason, "xbridge-array info")
    cells = {row: {name: _convert_one(make, name) for name in targets} for row, make in made}
    if asked.json:
        print_json({"table": asked.table, "from": None if pairs else asked.source, "rows": cells})
    else:
        corner = "from" if pairs else f"from {asked.source}"
        rows = [[row, *(cell["memory"] for cell in line.values())] for row, line in cells.items()]
        print_table([corner, *(f"to {name}" for name in targets)], rows)
    return 0


def _convert_one(make: Callable[[], Array], target: str) -> dict[str, str]:
    """Convert one array, and return what happened to its memory; a dash if there is no such array."""
    try:
        x = make()
    except XBridgeError:
        return {"memory": "-"}
    try:
        y = to_backend(x, target)
    except XBridgeError as error:
        return {"memory": f"refused: {type(error).__name__}", "why": one_line(error)}
    if y is x:
        return {"memory": "itself"}
    if not shares_memory(x, y):
        return {"memory": "copied"}
    return {"memory": "shared" if get_backend(target).memory_layout(y).writable else "shared, read-only"}


def _rows(table: str, here: list[str], source: str) -> Iterator[tuple[str, Callable[[], Array]]]:
    """Yield the name of each row, and a function that makes its array."""
    import numpy as np  # noqa: PLC0415 -- `--help` does not need it

    from xbridge.extend import native_dtype  # noqa: PLC0415 -- as above

    def zeros(name: str, dtype: str) -> Array:
        return to_backend(np.zeros((4, 6), native_dtype(dtype)), name)

    if table == "dtypes":
        yield from ((name, partial(zeros, source, name)) for name in DTYPES)
    else:
        yield from ((name, partial(zeros, name, "float32")) for name in here)
