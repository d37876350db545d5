"""`show FILE`: the names, dtypes, shapes and sizes of the arrays in a file."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from xbridge.files.errors import check_source
from xbridge.files.formats import ALL, add_file, name_of_array, read_file, suggest_array
from xbridge.files.formats.sources import Sources
from xbridge.files.output import print_arrays

HELP = "list the arrays of a file"
DESCRIPTION = """\
List the arrays of a file with their names, dtypes, shapes and sizes, and then other values, if any. No array
data is read. An array in nested dicts and lists is named by its keys joined by dots, as with
`convert --flatten`."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add_file(parser, "show")
    parser.add_argument("--quiet", action="store_true", help="print only the totals")


def run(asked: Namespace) -> int:
    """Print a line for each array."""
    check_source(asked.file)
    with Sources() as sources:
        how = ALL._replace(checksums=False, at=asked.at)
        content = read_file(asked.file, asked.from_format, how, sources)
        if asked.array is not None:
            arrays = [x for x in content.arrays if name_of_array(x) == asked.array]
            if not arrays:
                raise suggest_array("--array", asked.array, [name_of_array(x) for x in content.arrays])
            content = content._replace(arrays=arrays, others=())
        print_arrays(content, {"source": str(asked.file)}, as_json=asked.json, quiet=asked.quiet)
    return 0
