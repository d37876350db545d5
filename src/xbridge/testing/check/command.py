"""`check`: find arguments for the functions of a module, and hold each function to the default contract.

The functions run in another process, because one of them may end it. The command prints progress to stderr if
that is a terminal.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from xbridge.errors import OptionError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

    from xbridge.testing.check.process import Report

_LONGEST = 1e6
"""The longest time limit in seconds."""

HELP = "hold the array functions of a module to their contract with every library"
DESCRIPTION = """\
Find the functions of a module that take arrays, find arguments for each by its annotations and the types of
its numpydoc, and hold it to what every function promises: arguments stay as they are; a result depends on the
arguments alone, in threads too; it is the same in every memory layout, on every device, and with every
library that takes the call as it takes NumPy's; it has the device of the arguments and, for float32, no wider
dtype than for float64; and it shares memory with an argument always or never. A table shows what fails, and a
program that does not need xbridge reproduces each.

The module is imported and its functions are called with your rights, so they can read and write what you can.

The exit status is 1 if something was found, 3 if no function could be checked, 4 if nothing was found, but
the time was over before all was checked, and 5 if the module needs an array library that cannot be imported.
The last lines say what was not checked."""

_NOTHING_CHECKED = 3
"""The exit status if no function was checked."""

_INCOMPLETE = 4
"""The exit status if nothing was found, and something was not checked for lack of time."""

_LIBRARY_MISSING = 5
"""The exit status if the module needs an array library that cannot be imported."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument("target", metavar="MODULE[:FUNCTION]", help="what to check")
    parser.add_argument(
        "--backends", metavar="NAMES", help="backends, separated by commas (default: all that are installed)"
    )
    parser.add_argument(
        "--each",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="the processor time for each function (default: 2)",
    )


def run(asked: Namespace) -> int:
    """Check the functions, and print the findings."""
    from xbridge.testing._findings import as_rows  # noqa: PLC0415 -- `--help` does not need it
    from xbridge.testing.check.process import Report, check  # noqa: PLC0415 -- as above

    if not 0 < asked.each < _LONGEST:
        reason = f"the seconds are above 0 and below {_LONGEST:.0e}"
        raise OptionError.build("check for no time", reason, "--each 2")
    report, backends = Report(), _backends(asked.backends)
    interrupt: KeyboardInterrupt | None = None
    try:
        check(asked.target, backends, asked.each, report, _progress)
    except KeyboardInterrupt as error:  # raised again after the report
        interrupt = error
    if asked.json:
        names = ("checked", "skipped", "left_out", "late", "classes", "missing")
        said = {name: getattr(report, name) for name in names}
        print(json.dumps({"findings": as_rows(report.findings), **said}, indent=2))
    else:
        _print(report)
    if interrupt:
        raise interrupt
    if report.findings:
        return 1
    if not report.checked:
        return _LIBRARY_MISSING if report.missing else _NOTHING_CHECKED
    return _INCOMPLETE if report.late else 0


def _backends(words: str | None) -> list[str]:
    """Return the backends that words name; by default those that are installed and can write."""
    from xbridge import is_available, known_backends  # noqa: PLC0415 -- as above
    from xbridge.extend import get_backend  # noqa: PLC0415 -- as above
    from xbridge.testing._source import READONLY  # noqa: PLC0415 -- as above

    if words:
        return [get_backend(word.strip()).name for word in words.split(",")]
    return [name for name in known_backends() if name != READONLY and is_available(name)]


def _progress(report: Report) -> None:
    if sys.stderr.isatty():
        reached = len(report.checked) + len(report.skipped)
        print(f"[{reached}/{len(report.functions)}] {len(report.findings)} findings", file=sys.stderr)


def _print(report: Report) -> None:
    from xbridge.testing._findings import as_text, grouped  # noqa: PLC0415 -- as above

    nothing = "nothing was found" if report.checked else "nothing was checked"
    print(as_text(report.findings) if report.findings else nothing)
    for one, libraries in grouped(report.findings):
        print(f"\n# {one.function} {one.problem}: {one.property} ({', '.join(libraries)})\n{one.program}")
    print(f"\n{len(report.checked)} functions were checked, without optional arguments")
    print(*_unchecked(report), sep="\n")


def _unchecked(report: Report) -> Iterator[str]:
    """Yield a line for each reason why something was not checked."""
    if report.missing:
        yield f"not checked, because {report.missing} cannot be imported"
    reasons: dict[str, list[str]] = {}
    for function, reason in report.skipped.items():
        reasons.setdefault(f"not checked, because {reason}", []).append(function)
    for function, libraries in report.left_out.items():
        for library, reason in libraries.items():
            reasons.setdefault(f"not with {library}, because {reason}", []).append(function)
    for function, promises in report.late.items():
        reasons.setdefault(f"not to the end in the time ({', '.join(promises)})", []).append(function)
    for reason, functions in sorted(reasons.items()):
        yield f"{reason}: {', '.join(name.rpartition('.')[2] for name in functions)}"
    if report.classes:
        yield f"not checked, because they are classes: {', '.join(report.classes)}"
