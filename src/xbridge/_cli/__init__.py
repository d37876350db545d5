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
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn, TextIO, cast

from xbridge._cli.errors import RefusedError, one_line
from xbridge._core import __version__
from xbridge.errors import FOREIGN_ERRORS, XBridgeError

COMMANDS = ("info", "matrix", "show", "convert", "explain", "check")

_TO_END = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""The signals of this system that ask a program to end."""

EXAMPLES = """\
examples:
  xbridge-array info                                  show what is installed, and on which devices
  xbridge-array matrix dtypes                         show which dtypes convert, and whether memory is shared
  xbridge-array show model.pt                         list the arrays of a file
  xbridge-array explain model.npy --to torch          show what a conversion would do
  xbridge-array check my_package.signal               find the functions that fail with some library
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
            asked = _parse(sys.argv[1:] if argv is None else argv)
            status: int = asked.run(asked)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop(sys.stdout)  # the reader of the pipe has closed it
        return 0
    except (KeyboardInterrupt, MemoryError, XBridgeError, *FOREIGN_ERRORS) as error:
        # A library may turn the interrupt into another error, such as an ImportError.
        stopped = _status or (128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 0)
        if not stopped and not isinstance(error, (XBridgeError, OSError, MemoryError)):
            raise
        told = isinstance(error, XBridgeError) or (isinstance(error, KeyboardInterrupt) and error.args)
        words = one_line(error) if told or not stopped else "interrupted"
        for stream, text in ((sys.stdout, ""), (sys.stderr, f"xbridge-array: {words}\n")):
            try:
                print(text, end="", file=stream, flush=True)
            except OSError:  # stderr goes to a full disk or a closed pipe
                _drop(stream)
        return stopped or 2
    return status


def _drop(stream: TextIO) -> None:
    """Discard the rest of the output. Python's flush at the exit would fail too, and change the status."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


_status = 0
"""The exit status after a signal to end."""


def _interrupt(number: int, _: object) -> None:
    """Interrupt the program at the first signal to end. Others do nothing, while partial files are removed.

    They are not ignored by the system until the end: Python would report one that has come already.
    """
    global _status  # noqa: PLW0603 -- a signal is for the process
    if not _status:
        _status = 128 + number
        raise KeyboardInterrupt


def _ignore_signals() -> None:
    for number in _TO_END:
        signal.signal(number, signal.SIG_IGN)


def script() -> None:
    """Run as a script. A signal to end is an interrupt, so that no partial file is left.

    A signal that the shell ignores, as `nohup` does, stays ignored. Output to a closed stream is dropped, and
    characters that an encoding lacks are escaped: neither must fail a command that has written its file.
    """
    for number in _TO_END:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 -- until the end
    cast("TextIOWrapper", sys.stdout).reconfigure(errors="backslashreplace")
    try:
        status = main()
        _ignore_signals()  # the work is done
    except KeyboardInterrupt:  # between the two, or while an error was printed
        status = _status
    # Python ends by SIGINT, whatever the status, after an interrupt that left a program in a string, such as
    # that of a dataclass. Another one that comes to its end lets it forget that.
    exec("")  # noqa: S102 -- it is empty
    sys.exit(status)


class _Parser(ArgumentParser):
    """A parser that raises errors like those of the other modules in place of exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        raise RefusedError.build(f"run {self.prog}", message, f"{self.prog} --help")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Exit after the help or the version, if it could be printed."""
        sys.stdout.flush()
        super().exit(status, message)


def _parse(words: Sequence[str]) -> Namespace:
    """Parse the arguments; raise with a suggestion if a word is mistyped."""
    parser = _parser()
    command = next((word for word in words if not word.startswith("-")), None)
    if command is not None and command not in COMMANDS:
        near = get_close_matches(command, COMMANDS, 1, 0)[0]
        reason = f"the commands are {', '.join(COMMANDS)}"
        raise RefusedError.build(f"find the command {command!r}", reason, f"{parser.prog} {near}")
    asked, unknown = parser.parse_known_args(words)
    for word in unknown:
        (near,) = get_close_matches(word.partition("=")[0], asked.options, 1) or ["--help"]
        called = f"{parser.prog} {command}"
        raise RefusedError.build(f"run {called}", f"it has no argument {word!r}", f"{called} {near}")
    return asked


def _parser() -> _Parser:
    parser = _Parser(
        prog="xbridge-array",
        description="Convert array files, inspect conversions, and check functions with every array library.",
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
        sub.set_defaults(run=module.run, options=[*sub._option_string_actions])  # noqa: SLF001 -- no public way
    return parser
