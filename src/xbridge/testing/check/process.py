"""A check in another process, because a function may end its process, not return, or take all memory.

If that process ends early or is silent for too long, the call that it had announced is a finding, and another
process continues with the next function. That is no sandbox: it may read and write what the caller may.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from xbridge.errors import OptionError
from xbridge.testing._findings import Finding, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TextIO

_START = 300.0
"""The seconds in which a process imports the module and the libraries."""

_PATIENCE = 30.0
"""The seconds for a call, beside a multiple of the processor time of its function."""

_CLOCK = 10.0
"""How many seconds on the clock one second of processor time may take, because machines are busy."""

_PROGRAM = """\
import sys
sys.path.insert(0, {folder!r})
from xbridge.testing.check.worker import main
main(*sys.argv[1:])
"""


@dataclass
class Report:
    """What a check has found, and what it did not check."""

    functions: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    """Classes, which are not called."""
    findings: list[Finding] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Why a function was not checked, by its name."""
    left_out: dict[str, dict[str, str]] = field(default_factory=dict)
    """Why a function was not called with a library, by the names of the function and the library."""
    late: dict[str, list[str]] = field(default_factory=dict)
    """The promises that were not checked to the end, by the name of the function."""
    missing: str = ""
    """The array library that the module needs, if it cannot be imported."""

    def add(self, function: str, done: dict[str, Any]) -> None:
        """Add what a process says at the end of a function."""
        if done["skipped"]:
            self.skipped[function] = done["skipped"]
            return
        self.checked.append(function)
        for name, said in (("left_out", self.left_out), ("late", self.late)):
            if done[name]:
                said[function] = done[name]

    def add_crash(self, function: str, call: dict[str, str], how: str) -> None:
        """Add the call with which a process has ended, or that does not end."""
        self.checked.append(function)
        self.findings.append(Finding(function, call["backend"], how, (), f"the call {how}", call["program"]))


def check(  # noqa: C901 -- each kind of message from the process is one branch
    spec: str,
    backends: Sequence[str],
    seconds: float,
    report: Report,
    progress: Callable[[Report], object] = bool,
) -> None:
    """Check the functions that `MODULE` or `MODULE:FUNCTION` names, and add what is found to a report.

    Raises
    ------
    OptionError
        There is no such module or function.
    """
    while True:
        reached, call = len(report.checked) + len(report.skipped), dict[str, str]()
        words = (spec, str(reached), ",".join(backends), str(seconds))
        for line in _messages(_CLOCK * seconds + _PATIENCE, *words):
            if "refused" in line:
                report.missing = line["missing"]
                if report.missing:
                    return
                raise OptionError.build(f"check {spec!r}", line["refused"], _guess_meant(spec))
            if "functions" in line:
                report.functions, report.classes = line["functions"], line["classes"]
            elif "program" in line:
                call = line
            elif "finding" in line:
                report.findings += read([line["finding"]])
            elif "done" in line:
                report.add(report.functions[reached], line["done"])
                reached, call = reached + 1, {}
                progress(report)
            elif "ended" in line and call:
                report.add_crash(report.functions[reached], call, line["ended"])
                progress(report)
            elif "ended" in line and reached < len(report.functions or [""]):
                raise OptionError.build(f"check {spec!r}", f"its import {line['ended']}", "another module")
        if len(report.checked) + len(report.skipped) >= len(report.functions):
            return


def _guess_meant(spec: str) -> str:
    """Return the module that a path is, or the function that a dotted name is; "" if there is none."""
    path = Path(spec).resolve()
    if path.is_file():
        root = next(folder for folder in path.parents if not (folder / "__init__.py").exists())
        is_importable = root in {Path(folder).resolve() for folder in ("", *sys.path)}
        return ".".join(path.relative_to(root).with_suffix("").parts) if is_importable else ""
    module, dot, name = spec.rpartition(".")
    return f"{module}:{name}" if dot and name != "py" and not {*":/"} & {*spec} else ""


def _messages(limit: float, *words: str) -> Iterator[dict[str, Any]]:
    """Yield what a process writes, and at last how it has ended.

    It writes to a file: a pipe would be open until the last process ends that a function has started.
    """
    search_path = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    program = _PROGRAM.format(folder=os.getcwd())  # noqa: PTH109 -- a string
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder, "results")
        path.touch()
        process = subprocess.Popen(  # noqa: S603 -- our own program
            [sys.executable, "-P", "-c", program, str(path), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, search_path))},
            start_new_session=True,
        )
        try:
            with path.open(encoding="utf-8") as stream:
                yield from _read(process, stream, limit)
        finally:
            _end(process)


def _read(process: subprocess.Popen[bytes], stream: TextIO, limit: float) -> Iterator[dict[str, Any]]:
    """Yield each line until the process has ended, or has written nothing for as long as it may."""
    begun, left, allowed = time.monotonic(), "", _START
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
        has_ended = process.returncode is not None
        *lines, left = (left + stream.read()).split("\n")
        for line in map(json.loads, lines):
            yield line
            begun, allowed = time.monotonic(), _START if "functions" in line else limit
        if has_ended or time.monotonic() - begun > allowed:
            yield {"ended": "ends the process" if has_ended else "does not end"}
            return


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, and those that it has started in its session."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()
