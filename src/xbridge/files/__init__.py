"""The command line: `python -m xbridge`, or `xbridge-array`.

A subcommand is a module with a line of help, its arguments, and `run`. Modules are imported when a subcommand
or a file needs them, so that help appears at once. An error is one line on stderr and the exit status 2, as
with other tools for files.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper
from typing import NoReturn

from xbridge import __version__
from xbridge.errors import XBridgeError
from xbridge.files.errors import RefusedError, one_line

COMMANDS = {
    **{name: f"xbridge.files.{name}" for name in ("info", "matrix", "show", "convert", "explain", "migrate")},
    **({"check": "xbridge.testing.check.command"} if find_spec("xbridge.testing") else {}),
}

EXAMPLES = """\
examples:
  xbridge-array info                                  show what is installed, and on which devices
  xbridge-array matrix dtypes                         show which dtypes convert, and whether memory is shared
  xbridge-array show model.pt                         list the arrays of a file
  xbridge-array explain model.npy --to torch          show what a conversion would do
  xbridge-array check my_package.signal               find the functions that fail with some library
  xbridge-array migrate src                           list the conversions that a program writes by hand
  xbridge-array convert model.pt model.safetensors    convert a file to another format

exit status:
  0         success
  1         `explain` shows a conversion that would fail, or `check` found something
  2         an error, with one line on stderr that says why and what to try
  3         `check` could not check any function
  4         `check` found nothing in the time that it had, which was too short for all functions
  5         `check` could not check any function, because an array library cannot be imported
  130, 143  ended by Ctrl-C, by SIGTERM"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand, and return the exit status."""
    try:
        with warnings.catch_warnings():
            if not sys.warnoptions:
                warnings.simplefilter("ignore")  # warnings of libraries are for programmers
            asked, unknown = _build_parser().parse_known_args(argv)
            if unknown:
                asked.refuse(f"unrecognized arguments: {' '.join(unknown)}")
            status: int = asked.run(asked)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the pipe has closed it; Python would flush the rest at the exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("xbridge-array: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except (XBridgeError, OSError, MemoryError) as error:
        print(f"xbridge-array: {one_line(error)}", file=sys.stderr)
        return 2
    return status


def script() -> None:
    """Run as a script: SIGTERM ends it as an exit does, which removes partial files."""

    def leave(number: int, _: object) -> NoReturn:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name may have characters that an encoding lacks
    sys.exit(main())


class _Parser(ArgumentParser):
    """A parser that raises errors like those of the other modules in place of exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        raise RefusedError.build(f"run {self.prog}", message, f"{self.prog} --help")


def _build_parser() -> _Parser:
    parser = _Parser(
        prog="xbridge-array",
        description="Convert array files, inspect conversions, and check functions with every array library.",
        epilog=EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, path in COMMANDS.items():
        module = import_module(path)
        words = {"help": module.HELP, "description": module.DESCRIPTION}
        sub = subparsers.add_parser(name, **words, formatter_class=RawDescriptionHelpFormatter)
        module.add_arguments(sub)
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.set_defaults(run=module.run, refuse=sub.error)
    return parser
