"""`explain FILE`: the plan of a conversion of a file's arrays, made without reading a value."""

from __future__ import annotations

import re
import tempfile
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, cast

from xbridge.errors import DeviceError, DTypeError, UnknownBackendError
from xbridge.extend import printable
from xbridge.files.errors import chain_read_errors
from xbridge.files.formats import add_file, read_all
from xbridge.files.output import print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xbridge import Plan
    from xbridge.files.formats.stored import Stored
    from xbridge.protocol import Array

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
    from xbridge import explain  # noqa: PLC0415 -- `--help` does not need it

    content = read_all(asked)
    if asked.array is not None:
        content = content.pick(asked.array)
    loaded: list[tuple[str | None, Array]] = [(x.name, x.array) for x in content.refused]
    with chain_read_errors(asked.file):  # a header may describe impossible arrays
        arrays = [*zip((x.name for x in content.arrays), _load(content.arrays), strict=True), *loaded]
    options = {"device": asked.device, "dtype": asked.dtype, "grad": asked.grad}
    copy = _COPY.get(asked.copy)
    try:
        plans = [(name, cast("Plan", explain(x, asked.to, copy=copy, **options))) for name, x in arrays]
    except (UnknownBackendError, DeviceError, DTypeError) as error:  # whose hint is in Python
        words = re.sub(r"^'(\w+)'$", r"--to \1", error.hint)
        words = re.sub(r"(\w+)='([\w:]+)',?", r"--\1 \2", words).replace("--backend", "--to")
        raise error.build(error.action, error.reason, words) from error
    if asked.json:
        print_json([{"name": name, **plan.to_dict()} for name, plan in plans])
    else:
        shown = (str(plan) if name is None else f"{printable(name)}\n{plan}" for name, plan in plans)
        print("\n\n".join(shown))
    return int(any(plan.error for _, plan in plans))


def _load(arrays: Sequence[Stored]) -> list[Array]:
    """Return arrays like those of a file, whose values are not defined.

    They share the memory of a sparse file: the system could refuse to allocate as much as the largest needs.
    """
    import numpy as np  # noqa: PLC0415 -- `--help` does not need it

    from xbridge.files.formats.stored import InMemory  # noqa: PLC0415 -- as above

    most = max((x.nbytes for x in arrays), default=0)
    with tempfile.TemporaryFile() as file:
        file.truncate(most + 1)  # an empty file cannot be mapped
        memory = np.memmap(file, np.uint8, "r+").view(np.ndarray)
    return [x.loaded if isinstance(x, InMemory) else x.view(memory[: x.nbytes]) for x in arrays]
