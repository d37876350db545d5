"""`explain FILE`: the plan of a conversion of a file's arrays, made without reading a value."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from xbridge._core.text import printable
from xbridge.files.errors import chain_read_errors, check_source
from xbridge.files.formats import ALL, add_file, name_of_array, read_file, suggest_array
from xbridge.files.formats.sources import Sources
from xbridge.files.output import print_json

if TYPE_CHECKING:
    from xbridge.files.formats import Refused
    from xbridge.files.formats.stored import Stored

HELP = "show how the arrays of a file would be converted to a library"
DESCRIPTION = """\
Show the plan by which the arrays of a file would be converted to a library, with the options of
xbridge.to_backend. The arrays are those that the format's own reader returns: tensors for .pt, NumPy arrays
for all others. No array data is read."""

_COPY = {"true": True, "false": False}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add_file(parser, "explain")
    parser.add_argument("--to", required=True, metavar="BACKEND", help="the target library")
    parser.add_argument("--dtype", help="the dtype= of xbridge.to_backend")
    parser.add_argument("--device", help="the device= of xbridge.to_backend")
    parser.add_argument("--copy", choices=_COPY, help="the copy= of xbridge.to_backend")
    parser.add_argument("--grad", choices=("keep", "detach"), help="the grad= of xbridge.to_backend")


def run(asked: Namespace) -> int:
    """Print a plan for each array. The exit status is 1 if a conversion would be refused."""
    from xbridge._inspect import explain  # noqa: PLC0415 -- `--help` does not need it

    check_source(asked.file)
    copy = _COPY.get(asked.copy)
    with Sources() as sources:
        how = ALL._replace(checksums=False, at=asked.at)
        content = read_file(asked.file, asked.from_format, how, sources)
        arrays: list[Stored | Refused] = [*content.arrays, *content.refused]
        wanted = [x for x in arrays if asked.array in (None, name_of_array(x))]
        with chain_read_errors(asked.file):  # a header may describe impossible arrays
            likes = [(x.name, x.like()) for x in wanted]
        plans = [
            (name, explain(x, asked.to, device=asked.device, dtype=asked.dtype, copy=copy, grad=asked.grad))
            for name, x in likes
        ]
    if not plans and asked.array is not None:
        raise suggest_array("--array", asked.array, list(map(name_of_array, arrays)))
    if asked.json:
        print_json([{"name": name, **plan.to_dict()} for name, plan in plans])
    else:
        shown = (str(plan) if name is None else f"{printable(name)}\n{plan}" for name, plan in plans)
        print("\n\n".join(shown))
    return int(any(plan.error for _, plan in plans))
