"""`show FILE`: the names, dtypes, shapes and sizes of the arrays in a file."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from xbridge.files.formats import add_file, read_all
from xbridge.files.output import print_arrays

HELP = "list the arrays of a file"
DESCRIPTION = """\
List the arrays of a file with their names, dtypes, shapes and sizes, and then other values, if any. No array
data is read. An array in nested dicts and lists is named by its keys joined by dots, as with
`convert --flatten`."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add_file(parser, "show")


def run(asked: Namespace) -> int:
    """Print a line for each array."""
    content = read_all(asked)
    if asked.array is not None:
        content = content.pick(asked.array)
    print_arrays(content, {"source": str(asked.file)}, as_json=asked.json)
    return 0
