"""`show FILE`: the names, dtypes, shapes and sizes of the arrays in a file."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from pathlib import Path

from xbridge._cli.errors import check_source
from xbridge._cli.formats import FORMATS, format_in
from xbridge._cli.output import print_arrays

HELP = "the arrays of a file"
DESCRIPTION = """\
Show the names, dtypes, shapes and sizes of the arrays in a file. No value is read."""


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument("file", type=Path, metavar="FILE", help="an array file")
    parser.add_argument("--from-format", choices=FORMATS, help="the format, whatever the name ends in")


def run(asked: Namespace) -> int:
    """Print a line for each array."""
    check_source(asked.file)
    with ExitStack() as stack:
        content = format_in(asked.file, asked.from_format).read(asked.file, stack, checksums=False)
        print_arrays(content.arrays, as_json=asked.json, source=str(asked.file))
    return 0
