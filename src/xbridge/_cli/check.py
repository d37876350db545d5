"""`check`: call the functions of a module with arrays of each library, and print what fails and how.

The functions run in worker processes, because one of them may end its process. The command prints progress to
stderr if it is a terminal.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from xbridge._cli.errors import RefusedError, one_line
from xbridge._cli.output import print_json

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from xbridge.testing.check.findings import Finding
    from xbridge.testing.check.search import Checked

_LONGEST = 1e9
"""More seconds than a timer of any system needs."""

HELP = "call the array functions of a module with every library, and show what fails"
DESCRIPTION = """\
Find the functions of a module that take arrays, infer how to call them, and compare each call with NumPy's:
plain arrays first, then one property at a time, such as a dtype, a memory layout, a NaN or another device.
A table shows the causes, and a program without xbridge reproduces each.

The module is imported and its functions are called with your rights: they can read and write what you can.
Functions that write files, run programs or draw random numbers are not called, by their names, parameters and
source; that is a guess, and a function that you name as MODULE:FUNCTION is called. What SciPy and
scikit-learn declare as unsupported is not reported. The exit status is 1 if something was found, and 3 if no
function could be checked."""

_NOTHING_CHECKED = 3
"""The exit status if no function was checked, which is not success."""


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument("target", nargs="+", metavar="MODULE[:FUNCTION]")
    parser.add_argument(
        "--args",
        default="",
        metavar="KINDS",
        help="kinds of arguments by name, such as 'x: float, axis: axis'; an array is float, int, bool, "
        "complex or label, and other arguments are axis, number, or a literal",
    )
    parser.add_argument(
        "--backends", metavar="NAMES", help="separated by commas; all that are installed, if not given"
    )
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="the time for all functions; 120, if not given"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes at a time; 2, if not given")
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write Markdown, or JSON if it ends in .json"
    )


def run(asked: Namespace) -> int:
    """Check the functions, and print the findings."""
    from xbridge.testing.check.findings import as_text, grouped, write  # noqa: PLC0415 -- `--help` does not need it
    from xbridge.testing.check.signatures import read_words  # noqa: PLC0415 -- `--help` does not need it
    from xbridge.testing.check.workers import Job, check_in_workers, chosen, find_names  # noqa: PLC0415 -- `--help` does not need it

    if not 0 < asked.seconds < _LONGEST or asked.workers < 1:
        reason = f"the seconds are above 0 and below {_LONGEST:.0e}, and the workers at least 1"
        raise RefusedError.build("check for no time", reason, "--seconds 120 --workers 2")
    if asked.report and (asked.report.is_dir() or not asked.report.parent.is_dir()):
        reason = (
            "it is a directory" if asked.report.is_dir() else f"there is no directory {asked.report.parent}"
        )
        raise RefusedError.build(f"write {asked.report}", reason, "--report findings.md")
    backends, emulated = chosen(asked.backends)
    words = read_words(asked.args)
    names = [name for spec in asked.target for name in find_names(spec)]
    job = Job(tuple(names), backends, words, asked.seconds, emulated, tuple(asked.target))
    checked = []
    for found in check_in_workers(job, asked.workers):
        checked.append(found)
        _progress(found, len(checked), len(names))
    checked.sort(key=lambda found: found.function)
    findings = [one for found in checked for one in found.findings]
    if asked.json:
        rows = [{**one._asdict(), "backends": libraries} for one, libraries in grouped(findings)]
        print_json(
            {"findings": rows, "skipped": {one.function: one.skipped for one in checked if one.skipped}}
        )
    else:
        is_any = any(not one.skipped for one in checked)
        none = "nothing was found" if is_any else "nothing was checked"
        _print(checked, findings, as_text(findings) if findings else none)
    if asked.report:  # the last step, because it may fail
        write(findings, str(asked.report))
    if findings:
        return 1
    return 0 if any(not one.skipped for one in checked) else _NOTHING_CHECKED


def _progress(found: Checked, number: int, total: int) -> None:
    if sys.stderr.isatty():
        count = found.skipped or f"{len(found.findings)} failures"
        print(f"[{number}/{total}] {found.function}: {one_line(count)}", file=sys.stderr)


def _print(checked: list[Checked], findings: list[Finding], table: str) -> None:
    from xbridge.testing.check.findings import grouped  # noqa: PLC0415 -- `--help` does not need it

    print(table)
    for one, libraries in grouped(findings):
        print(f"\n# {one.function} {one.problem}: {one.property} ({', '.join(libraries)})\n{one.program}")
    skipped: dict[str, list[str]] = {}
    for each in checked:
        if each.skipped:
            skipped.setdefault(each.skipped, []).append(each.function.rpartition(".")[2])
    print(f"\n{len(checked) - sum(map(len, skipped.values()))} functions were checked")
    cut = [each.function.rpartition(".")[2] for each in checked if not each.is_complete]
    if cut:
        print(f"in part, because the time was over: {', '.join(cut)}")
    for reason, names in skipped.items():
        print(f"not checked, because {reason}: {', '.join(sorted(names))}")
