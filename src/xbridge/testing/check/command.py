"""`check`: call the functions of a module with arrays of each library, and print what fails and how.

The functions run in worker processes, because one of them may end its process. The command prints progress to
stderr if it is a terminal.
"""

from __future__ import annotations

import json
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from xbridge.errors import MissingLibraryError, OptionError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from xbridge.testing.check.findings import Checked, Finding

_LONGEST = 1e9
"""The longest time limit in seconds that timers of all systems accept."""

HELP = "call the array functions of a module with every library, and show what fails"
DESCRIPTION = """\
Find the functions of a module that take arrays, infer how to call them, and compare each call with NumPy's:
plain arrays first, then one property at a time, such as a memory layout or another device, then calls that
Hypothesis generates, with several properties at once. A table shows the causes, the most severe first, and a
program that does not need xbridge reproduces each.

Most functions promise nothing about some classes of findings, so these are off by default: derivatives,
special-values, dtypes, options and lazy. --include adds them.

The module is imported and its functions are called with your rights, so they can read and write what you can.
A function is skipped if its name, parameters or source suggest that it writes files, runs programs or draws
random numbers. That is only a guess; a function that you name as MODULE:FUNCTION is called in any case. What
SciPy and scikit-learn declare as unsupported is not reported.

The exit status is 1 if something was found that the baseline does not have, 3 if no function could be
checked, 4 if nothing was found, but the time was over before all functions were checked, and 5 if no function
could be checked because an array library cannot be imported. Libraries that are left out are named at the
end. A check that is interrupted prints what it has found until then, and does not update the baseline."""

_NOTHING_CHECKED = 3
"""The exit status if no function was checked."""

_INCOMPLETE = 4
"""The exit status if nothing was found, and some functions were not checked for lack of time."""

_LIBRARY_MISSING = 5
"""The exit status if no function was checked, because an array library cannot be imported."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument("target", nargs="+", metavar="MODULE[:FUNCTION]", help="what to check")
    parser.add_argument(
        "--args",
        default="",
        metavar="KINDS",
        help="the kinds of arguments by name, such as 'x: float, axis: axis'; arrays are float, int, bool, "
        "complex or label, other arguments are axis, number or a literal",
    )
    parser.add_argument(
        "--backends", metavar="NAMES", help="backends, separated by commas (default: all that are installed)"
    )
    parser.add_argument(
        "--include",
        default="",
        metavar="CLASSES",
        help="add these classes of findings, separated by commas, or all",
    )
    parser.add_argument("--seed", type=int, default=0, help="another seed generates other calls (default: 0)")
    parser.add_argument(
        "--each",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="the processor time for each function (default: 2)",
    )
    parser.add_argument(
        "--seconds", type=float, help="the time for all functions after the first imports (default: no limit)"
    )
    parser.add_argument("--workers", type=int, default=2, help="the number of processes (default: 2)")
    parser.add_argument(
        "--format",
        choices=("text", "json", "junit", "github"),
        default="text",
        help="what to print (default: text)",
    )
    parser.add_argument(
        "--baseline", type=Path, metavar="FILE", help="fail only for findings that this file does not have"
    )
    parser.add_argument(
        "--update-baseline", action="store_true", help="write the findings to the baseline file"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="write a test for each function")
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="write a report in Markdown, or in JSON if FILE ends in .json",
    )


def run(asked: Namespace) -> int:
    """Check the functions, and print the findings."""
    from xbridge.testing.check import reports, triage  # noqa: PLC0415 -- `--help` does not need it
    from xbridge.testing.check.findings import Checked  # noqa: PLC0415 -- as above
    from xbridge.testing.check.ghostwriting import write_tests  # noqa: PLC0415 -- as above
    from xbridge.testing.check.search import TIME_IS_OVER, Options  # noqa: PLC0415 -- as above
    from xbridge.testing.check.signatures import read_words  # noqa: PLC0415 -- as above
    from xbridge.testing.check.workers import Job, absent, check_in_workers, chosen  # noqa: PLC0415 -- as above

    _refuse_options(asked)
    classes = triage.read_classes(asked.include)
    known = _read_baseline(asked)
    backends, emulated = chosen(asked.backends)
    words = read_words(asked.args)
    names, checked = _find_names(asked.target, words)
    options = Options(classes, asked.seed, asked.each)
    job = Job(
        tuple(names), backends, words, asked.seconds or _LONGEST, emulated, options, tuple(asked.target)
    )
    interrupt: KeyboardInterrupt | None = None
    try:
        for found in check_in_workers(job, asked.workers):
            checked.append(found)
            _progress(found, len(checked), len(names))
    except KeyboardInterrupt as error:  # raised again after the report
        interrupt = error
        done = {found.function for found in checked}
        left = [name for name in (each.replace(":", ".") for each in names) if name not in done]
        checked += [Checked(name, [], "the check was interrupted") for name in left]
    checked.sort(key=lambda found: found.function)
    refused = triage.unsupported(checked)
    left_out = ({} if asked.backends else absent()) | refused
    findings = triage.shown(checked, refused)
    new = [one for one in findings if reports.identify(one) not in known]
    if asked.json or asked.format == "json":
        print(json.dumps(reports.as_dict(checked, findings, known, left_out), indent=2))
    elif asked.format == "junit":
        print(reports.as_junit(checked, new, left_out))
    elif asked.format == "github":
        print(reports.as_annotations(checked, new, left_out))
    else:
        _print(checked, new, left_out)
        if len(findings) > len(new):
            print(f"{len(findings) - len(new)} failures are in the baseline")
    if asked.write:
        asked.write.write_text(write_tests(checked, findings, refused), encoding="utf-8")
    if asked.report:
        reports.write(findings, str(asked.report))
    if interrupt:
        raise interrupt
    if asked.update_baseline:
        reports.write_baseline(asked.baseline, findings)
        return 0
    if new:
        return 1
    if all(one.skipped for one in checked):
        return _LIBRARY_MISSING if any(one.lacks for one in checked) else _NOTHING_CHECKED
    return _INCOMPLETE if any(one.skipped == TIME_IS_OVER for one in checked) else 0


def _find_names(specs: list[str], words: dict[str, str]) -> tuple[list[str], list[Checked]]:
    """Return the functions of all modules, and a result for each module that needs a missing library.

    `words` are the kinds of arguments by name, each of which must be an argument of a function.
    """
    from xbridge.testing.check.findings import Checked  # noqa: PLC0415 -- `--help` does not need it
    from xbridge.testing.check.workers import find_names  # noqa: PLC0415 -- as above

    found, lacking = dict[str, list[str]](), list[Checked]()
    for spec in specs:
        try:
            found |= find_names(spec)
        except MissingLibraryError as error:
            lacking.append(Checked(spec.replace(":", "."), [], error.reason, lacks=True))
    taken = {name for parameters in found.values() for name in parameters}
    stray = next((name for name in words if name not in taken), None)
    if stray and not lacking:
        hint = f"one of {', '.join(sorted(taken))}" if taken else "no --args"
        near = get_close_matches(stray, sorted(taken), 1)
        hint = f"--args '{near[0]}: {words[stray]}'" if near else hint
        raise OptionError.build(f"read --args {stray!r}", "no function has such an argument", hint)
    return [*found], lacking


def _refuse_options(asked: Namespace) -> None:
    """Refuse combinations of options that make no sense."""
    clock = 1.0 if asked.seconds is None else asked.seconds
    if not 0 < clock < _LONGEST or not 0 < asked.each < _LONGEST or asked.workers < 1:
        reason = f"the seconds are above 0 and below {_LONGEST:.0e}, and the workers at least 1"
        raise OptionError.build("check for no time", reason, "--each 2 --workers 2")
    if asked.update_baseline and not asked.baseline:
        raise OptionError.build(
            "update the baseline", "no file is named", "--baseline FILE --update-baseline"
        )
    for option in ("report", "write", "baseline"):
        path = getattr(asked, option)
        if path and (path.is_dir() or not path.parent.is_dir()):
            reason = "it is a directory" if path.is_dir() else f"there is no directory {path.parent}"
            raise OptionError.build(f"write {path}", reason, f"--{option} FILE in a directory that exists")


def _read_baseline(asked: Namespace) -> set[str]:
    """Return the findings in the baseline file; none if the file is about to be written."""
    from xbridge.testing.check.reports import read_baseline  # noqa: PLC0415 -- `--help` does not need it

    return read_baseline(asked.baseline) if asked.baseline and not asked.update_baseline else set()


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _progress(found: Checked, number: int, total: int) -> None:
    if sys.stderr.isatty():
        count = found.skipped or f"{len(found.findings)} failures"
        print(f"[{number}/{total}] {found.function}: {_one_line(count)}", file=sys.stderr)


def _print(checked: list[Checked], findings: list[Finding], left_out: dict[str, str]) -> None:
    from xbridge.testing.check.findings import member  # noqa: PLC0415 -- `--help` does not need it
    from xbridge.testing.check.reports import as_text  # noqa: PLC0415 -- as above

    is_any = any(not one.skipped for one in checked)
    print(as_text(findings) or ("nothing was found" if is_any else "nothing was checked"))
    skipped: dict[str, list[str]] = {}
    for each in checked:
        if each.skipped:
            skipped.setdefault(each.skipped, []).append(member(each.function))
    print(f"\n{len(checked) - sum(map(len, skipped.values()))} functions were checked")
    for name, reason in left_out.items():
        print(f"{name} is left out: {_one_line(reason)}")
    cut = [member(each.function) for each in checked if not each.is_complete]
    if cut:
        print(f"in part, because the time was over: {', '.join(cut)}")
    for reason, names in skipped.items():
        print(f"not checked, because {reason}: {', '.join(sorted(names))}")
