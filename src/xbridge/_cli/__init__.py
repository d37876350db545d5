"""The command line: `python -m xbridge`, or `xbridge-array`.

A subcommand is a module with a line of help, its arguments, and `run`. Modules are imported when a subcommand
or a file needs them, so that help appears at once. An error is one line on stderr and the exit status 2, as
with other tools for files.
"""

from __future__ import annotations

import os
import signal
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import cast

from xbridge._cli.errors import one_line
from xbridge._core import __version__
from xbridge.errors import XBridgeError

COMMANDS = ("info", "matrix", "show", "convert", "explain", "check")

EXAMPLES = """\
examples:
  xbridge-array info                                  what is installed, where, and on which devices
  xbridge-array matrix dtypes                         which dtypes convert, and whether memory is shared
  xbridge-array show model.pt                         the arrays of a file
  xbridge-array explain model.npy --to torch          what a conversion would do
  xbridge-array check my_package.signal               which of its functions fail with which library, and why
  xbridge-array convert model.pt model.safetensors    a file in another format

The exit status is 0; 1 if `explain` shows a conversion that would be refused or `check` found something; 2
with one line on stderr that says why and what to type next; and 130 after Ctrl-C."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand, and return the exit status."""
    asked = _parser().parse_args(argv)
    try:
        status: int = asked.run(asked)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the pipe has closed it. Python's flush at exit must not fail too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (XBridgeError, OSError, MemoryError, KeyboardInterrupt) as error:
        print(f"xbridge-array: {one_line(error)}", file=sys.stderr)
        return 130 if isinstance(error, KeyboardInterrupt) else 2
    return status


def script() -> None:
    """Run as a script. A signal to end is an interrupt, so that no partial file is left.

    A signal that the shell ignores, as `nohup` does, stays ignored. Output to a closed stream is dropped, and
    characters that an encoding lacks are escaped: neither must fail a command that has written its file.
    """
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # not every system has it
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 -- until the end
    cast("TextIOWrapper", sys.stdout).reconfigure(errors="backslashreplace")
    sys.exit(main())


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="xbridge-array",
        description="Move arrays between libraries and files, exactly.",
        epilog=EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = import_module(f"xbridge._cli.{name}")
        words = {"help": module.HELP, "description": module.DESCRIPTION}
        sub = subparsers.add_parser(name, **words, formatter_class=RawDescriptionHelpFormatter)
        module.arguments(sub)
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.set_defaults(run=module.run)
    return parser
