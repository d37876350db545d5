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
from shlex import quote
from typing import NoReturn, TextIO, cast

from xbridge._core import __version__
from xbridge.errors import FOREIGN_ERRORS, XBridgeError
from xbridge.files.errors import RefusedError, one_line

COMMANDS = ("info", "matrix", "show", "convert", "explain", "check")

_MODULES = {"check": "xbridge.testing.check.command"}
"""The modules of commands that are not here."""

_MEANT = {
    **dict.fromkeys(("ls", "list", "cat", "head", "view", "inspect", "print", "dump", "read"), "show"),
    **dict.fromkeys(("cp", "copy", "save", "cast", "export", "write", "to"), "convert"),
    **dict.fromkeys(("plan", "preview", "why"), "explain"),
    **dict.fromkeys(("test", "lint", "verify", "fuzz", "bugs"), "check"),
    **dict.fromkeys(("env", "doctor", "devices", "backends", "libraries"), "info"),
    **{table: f"matrix {table}" for table in ("dtypes", "layouts", "pairs")},
    "version": "--version",
}
"""Words of other programs for the commands."""

_OPTIONS_MEANT = {
    "-q": "--quiet",
    **dict.fromkeys(("-v", "-V"), "--version"),
    **dict.fromkeys(("-f", "-y", "--overwrite", "--replace", "--clobber"), "--force"),
    **dict.fromkeys(("-k", "--key", "--name", "--tensor", "--select", "--only"), "--array"),
    **dict.fromkeys(("--exclude", "--drop", "--without", "--ignore"), "--skip"),
    **dict.fromkeys(("-t", "--backend", "--target", "--library"), "--to"),
    **dict.fromkeys(("--format", "--input-format"), "--from-format"),
}
"""Names of options in other programs."""

_TO_A_DTYPE = ("--dtype", "--type", "--astype", "--to")
_TO_A_FILE = ("-o", "--output", "--out", "--dst", "--to")
"""Options of other converters for a dtype, and for the file, which is an argument by position here."""

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
    parser, options = _parser()
    i = next((i for i, word in enumerate(words) if not word.startswith("-")), None)
    if i is not None and words[i] not in COMMANDS:
        near = _MEANT.get(words[i]) or " ".join(get_close_matches(words[i], COMMANDS, 1)) or "--help"
        rest = words[i + 1 :] if near.partition(" ")[0] in COMMANDS else []
        if words[i] == "help" and words[i + 1 :][:1]:
            near = f"{words[i + 1]} --help"
        reason = f"the commands are {', '.join(COMMANDS)}"
        hint = f"{parser.prog} {' '.join([near, *map(quote, rest)])}"
        raise RefusedError.build(f"find the command {words[i]!r}", reason, hint)
    known, unknown = options["" if i is None else words[i]], list[str]()
    try:
        asked, unknown = parser.parse_known_args(words)
        if not unknown:
            return asked
    except RefusedError as error:  # perhaps an argument is missing because its name is mistyped
        unknown = [
            word for word in words if _option(word) not in known and _hint_for_option(word, words, known)
        ]
        if not unknown and error.reason.endswith(": --to"):
            library = f"--to {quote(words[2])}" if len(words) == 3 else "--to torch"
            hint = f"{parser.prog} {quote(words[0])} {quote(words[1])} {library}"
            raise RefusedError.build(error.action, "the library is named by --to", hint) from None
        if not unknown:
            raise
    word = unknown[0]
    called = " ".join([parser.prog, *words[i : i + 1]] if i is not None else [parser.prog])
    meant = _hint_for_option(word, words, known) or " ".join(get_close_matches(_option(word), known, 1))
    if not meant and word[0] != "-" and "--array" in known:
        meant = f"--array {quote(word)}"
    hint = f"{called} {meant or '--help'}"
    raise RefusedError.build(f"run {called}", f"it has no argument {word!r}", hint)


def _option(word: str) -> str:
    return word.partition("=")[0]


def _hint_for_option(word: str, words: Sequence[str], known: Sequence[str]) -> str:
    """Return the arguments that an option of other programs stands for; "" if there are none."""
    option, _, value = word.partition("=")
    later = words[words.index(word) + 1 :]
    value = value or " ".join(later[:1])
    if option in _TO_A_DTYPE and "--cast" in known and _is_dtype(value):
        return f"--cast float32={value}"
    if option in _TO_A_FILE and "--cast" in known and value:
        return " ".join(map(quote, [words[1], value]))
    meant = _OPTIONS_MEANT.get(option, "")
    return meant if meant in known else ""


def _is_dtype(word: str) -> bool:
    from xbridge._core.dtypes import DTYPES  # noqa: PLC0415 -- `--help` does not need it

    return word in DTYPES


def _parser() -> tuple[_Parser, dict[str, list[str]]]:
    """Return the parser, and the options of each command."""
    parser = _Parser(
        prog="xbridge-array",
        description="Convert array files, inspect conversions, and check functions with every array library.",
        epilog=EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    options = {"": ["--version", "--help"]}
    for name in COMMANDS:
        module = import_module(_MODULES.get(name, f"xbridge.files.{name}"))
        words = {"help": module.HELP, "description": module.DESCRIPTION}
        sub = subparsers.add_parser(name, **words, formatter_class=RawDescriptionHelpFormatter)
        module.add_arguments(sub)
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.set_defaults(run=module.run)
        options[name] = [*sub._option_string_actions]  # noqa: SLF001 -- no public way
    return parser, options
