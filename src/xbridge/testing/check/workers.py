"""Processes in which a check imports and calls functions, so that one that does harm ends its worker alone.

A worker writes a line of JSON after each function, and stores the program of the call that it runs. If it
ends early, that program is the finding, and another worker continues with the next function. So it does
after a finding, or a change of what later calls depend on, such as torch's default dtype.

A process has a guard, which ends with it whatever it has started; a temporary folder to work in, which is not
searched for modules; and a limit of memory. That is no sandbox: it may read and write what the caller may.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xbridge._core.locks import lock
from xbridge._registry.registry import get, is_available, known_backends
from xbridge.errors import MissingLibraryError, OptionError, XBridgeError
from xbridge.testing._source import READONLY
from xbridge.testing.check import guard
from xbridge.testing.check.findings import Checked, Finding, needs, read
from xbridge.testing.check.search import TIME_IS_OVER, Options, check, share_of
from xbridge.testing.check.signatures import parameter_names
from xbridge.testing.check.targets import find_targets, missing_among, packages_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

_PATIENCE = 15.0
"""The seconds by which a function may exceed its share of the time, and a check the time that was asked."""

_START = 300.0
"""The number of seconds in which a worker imports the libraries, or a module. It writes a first line then."""

_MEMORY = 0.25
"""The share of the machine's memory that a process may allocate."""

_GUARD = inspect.getsource(guard)
"""The program that each process runs first."""

_BEGUN, _CHANGED = "begun", "changed"
"""What a worker writes when it begins, and when it ends because another process should continue."""

_HANGS = "does not end"
_EXITS = "it ends the process when it is imported"


class Job(NamedTuple):
    """The functions of one worker, and how it calls them."""

    names: tuple[str, ...]
    """Of the form `MODULE:FUNCTION`."""
    backends: tuple[str, ...]
    words: dict[str, str]
    seconds: float
    emulated: bool
    options: Options = Options()
    asked: tuple[str, ...] = ()
    """Those of the names that the caller gave, which are called whatever they may do."""


def chosen(words: str | None) -> tuple[tuple[str, ...], bool]:
    """Return the backends that words name, and True if the emulated accelerator is one of their devices.

    By default every backend that is installed is used, except for the read-only one: a check finds writes by
    comparing the arguments. The emulated accelerator is used if torch has it.

    Raises
    ------
    UnknownBackendError, MissingLibraryError
        A name is unknown, or its library is missing.
    """
    listed = (
        [*map(str.strip, words.split(","))]
        if words
        else [name for name in known_backends() if is_available(name)]
    )
    if not words:
        listed = [name for name in listed if name != READONLY] + ["torch:emu"] * _has_emulated()
    for word in listed:
        if ":" in word and word != "torch:emu":
            name = word.partition(":")[0]
            raise OptionError.build(f"check with {word!r}", "it calls each device that is there", name)
    names = dict.fromkeys(word.partition(":")[0] for word in listed)
    return tuple(get(name).name for name in names), "torch:emu" in listed


def absent() -> dict[str, str]:
    """Return the libraries that cannot be used here, each with the reason."""
    reasons = {}
    for name in known_backends():
        try:
            get(name)
        except XBridgeError as error:
            reasons[name] = error.reason
    return reasons


def _has_emulated() -> bool:
    """Return True if torch is installed and has backends in Python."""
    return is_available("torch") and hasattr(
        import_module("torch.utils.backend_registration"), "_setup_privateuseone_for_python_backend"
    )


class Children:
    """The processes of a check, none of which may outlive it."""

    def __init__(self) -> None:
        self.is_over: bool = False
        self._processes: dict[subprocess.Popen[str], TemporaryDirectory[str]] = {}
        self._lock = lock()

    def start(self, code: str, *arguments: str, errors: Path | None = None) -> subprocess.Popen[str]:
        """Start this interpreter with a program, with a guard, in an empty folder of its own."""
        searched = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        paths = os.pathsep.join(map(os.path.abspath, searched))
        folder = TemporaryDirectory(ignore_cleanup_errors=True)  # what a function has made is the function's
        with self._lock, open(errors or os.devnull, "w", encoding="utf-8") as stderr:  # noqa: PTH123 -- devnull
            process = subprocess.Popen(  # noqa: S603 -- our own module, or the program of a finding
                [
                    *(sys.executable, "-P", "-c"),
                    f"{_GUARD}\nlimit_memory({_MEMORY})\nguard()\n{code}",
                    *arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                text=True,
                cwd=folder.name,
                env={**os.environ, **({"PYTHONPATH": paths} if paths else {})},
                start_new_session=True,
            )
            self._processes[process] = folder
        if self.is_over:
            self.stop(process)
        return process

    def stop(self, process: subprocess.Popen[str]) -> None:
        """End a process with all that it has started, such as programs that a function runs."""
        with self._lock:
            folder = self._processes.pop(process, None)
        if folder is None:
            return
        process.terminate()
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:  # a function has stopped the guard
            process.kill()
            process.wait()
        folder.cleanup()

    def end(self) -> None:
        """End every process, those that start later too."""
        self.is_over = True
        for process in [*self._processes]:
            self.stop(process)


class _Worker:
    """A process that writes lines of JSON to a file, and ends with the context.

    A pipe would be open until the last process that a function has forked ends.
    """

    def __init__(self, children: Children, folder: Path, function: str, *arguments: str) -> None:
        self.is_late = False
        self.limit = _START
        """The number of seconds until the next line, before which it must come."""
        self._children = children
        self._results, self._errors = folder / "results.txt", folder / "errors.txt"
        self._results.write_text("", encoding="utf-8")
        code = f"import sys\nfrom {__name__} import {function}\n{_searching()}{function}(*sys.argv[1:])"
        self._process = children.start(code, str(self._results), *arguments, errors=self._errors)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._children.stop(self._process)

    def lines(self) -> Iterator[Any]:
        """Yield what the process writes, until it ends or is late."""
        start, left = time.monotonic(), ""
        with self._results.open(encoding="utf-8") as stream:
            while not self.is_late:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(0.05)
                has_ended = self._process.returncode is not None
                *whole, left = (left + stream.read()).split("\n")
                for line in whole:
                    yield json.loads(line)
                    start = time.monotonic()
                if has_ended:
                    return
                self.is_late = time.monotonic() - start > self.limit

    @property
    def status(self) -> int | None:
        """The status with which the process ended; None if it runs."""
        return self._process.returncode

    def last_error(self) -> str:
        """Return the last line of the traceback with which the process ended; "" if it ended otherwise."""
        text = self._errors.read_text("utf-8", "replace").strip()
        return (
            text.splitlines()[-1] if self.status == 1 and "Traceback (most recent call last)" in text else ""
        )


def _searching() -> str:
    """Return the statement by which modules of the caller's folder are found, as by `python -m`."""
    return f"import sys; sys.path.insert(0, {os.getcwd()!r})\n"  # noqa: PTH109 -- a string


def find_names(spec: str) -> dict[str, list[str]]:
    """Return the functions that `MODULE` or `MODULE:FUNCTION` names, each with the names of its parameters.

    Another process imports the module.

    Raises
    ------
    OptionError
        There is no such module or function, or its import ends the process or does not end.
    MissingLibraryError
        The module imports array libraries that cannot be imported.
    """
    children = Children()
    try:
        with (
            TemporaryDirectory() as folder,
            _Worker(children, Path(folder), "write_names", spec) as worker,
        ):
            for stated in worker.lines():
                if "found" in stated:
                    found: dict[str, list[str]] = stated["found"]
                    return found
                if stated["lacks"]:
                    reason = needs(stated["lacks"])
                    raise MissingLibraryError.build(stated["action"], reason, "xbridge-array info")
                raise OptionError.build(stated["action"], stated["reason"], stated["hint"])
            reason = f"its import {_HANGS} in {_START:.0f} seconds" if worker.is_late else _EXITS
            raise OptionError.build(f"check {spec!r}", reason, "MODULE or MODULE:FUNCTION")
    finally:
        children.end()


def check_in_workers(job: Job, workers: int = 2) -> Iterator[Checked]:
    """Check the functions of a job in worker processes, and yield each result as it comes.

    The processes end with the iteration, after an interrupt too.
    """
    children = Children()
    results: SimpleQueue[Checked | None] = SimpleQueue()
    parts = [job._replace(names=job.names[n::workers]) for n in range(workers)]
    threads = [
        threading.Thread(target=_supervise, args=(part, results, children), daemon=True)
        for part in parts
        if part.names
    ]
    for thread in threads:
        thread.start()
    running = len(threads)
    try:
        while running:
            found = results.get()
            if found is None:
                running -= 1
            else:
                yield found
    finally:
        children.end()
        for thread in threads:
            thread.join(_PATIENCE)


def _supervise(job: Job, results: SimpleQueue[Checked | None], children: Children) -> None:
    """Run workers until all functions of a job have a result."""
    with TemporaryDirectory() as folder:
        stored = Path(folder) / "program.py"
        is_first = True
        while job.names and job.seconds > 0 and not children.is_over:
            begun = time.monotonic()
            done, reason, used = _run_worker(job, stored, results, children)
            if not is_first:  # there is a process for each finding, and their imports take time too
                used = time.monotonic() - begun
            is_first = False
            job = job._replace(names=job.names[done:], seconds=job.seconds - used)
            if job.names and reason:
                results.put(_result_of_crash(job.names[0].replace(":", "."), reason, stored, children))
                job = job._replace(names=job.names[1:])
    for name in job.names:
        results.put(Checked(name.replace(":", "."), [], TIME_IS_OVER))
    results.put(None)


def _run_worker(
    job: Job, stored: Path, results: SimpleQueue[Checked | None], children: Children
) -> tuple[int, str, float]:
    """Run one worker. Return the number of its results, how it ended, and its seconds without imports.

    How it ended is "" if another worker is to continue.
    """
    stored.write_text("", encoding="utf-8")
    begun = time.monotonic()
    share = share_of(job.seconds, len(job.names), job.options.each)
    limit, done = 3 * share + _PATIENCE, 0
    with _Worker(children, stored.parent, "main", json.dumps(job), str(stored)) as worker:
        worker.limit = _START + limit
        for stated in worker.lines():
            if stated == _CHANGED:
                return done, "", time.monotonic() - begun
            if stated == _BEGUN:
                begun = time.monotonic()
            else:
                results.put(Checked(**{**stated, "findings": read(stated["findings"])}))
                done += 1
            if done == len(job.names):
                break
            worker.limit = min(limit, begun + job.seconds + _PATIENCE - time.monotonic())
        used = time.monotonic() - begun
        if worker.is_late:
            return done, _HANGS, used
        error = worker.last_error()
        return done, f"cannot be checked: {error}" if error else "ends the process", used


def _result_of_crash(name: str, reason: str, stored: Path, children: Children) -> Checked:
    """Return the result for the function that a worker was checking when it ended or hung."""
    program = stored.read_text(encoding="utf-8")
    backend, _, code = program.partition("\n")
    if not code or reason.startswith("cannot"):
        return Checked(name, [], f"it {reason}")
    if not _is_confirmed(code, reason, children):
        return Checked(name, [], f"it {reason} when it is checked, and not by itself")
    found = Finding(
        name, backend, reason, ("a crash",), f"the call {reason}", code, "crash", category="crash"
    )
    return Checked(name, [found], "")


def _is_confirmed(code: str, reason: str, children: Children) -> bool:
    """Return True if a program ends its process, or does not end, by itself too; or if it needs a device."""
    if "emu:" in code:
        return True
    process = children.start(_searching() + _AT_END + code)
    try:
        status = process.wait(2 * _PATIENCE)
    except subprocess.TimeoutExpired:
        return reason == _HANGS
    finally:
        children.stop(process)
    return status != _USUAL and reason != _HANGS


_USUAL = 99
_AT_END = f"import atexit, os\natexit.register(os._exit, {_USUAL})\n"
"""A program that comes to its end, or raises, has this status. `os._exit` and signals give another one."""


def write_names(path: str, spec: str) -> None:
    """Import a module, and write the functions that are found in it, or the error."""
    try:
        targets = find_targets(spec)
        stated: object = {
            "found": {one.spec: parameter_names(one.declaration or one.function) for one in targets}
        }
    except OptionError as error:
        lacks = missing_among(packages_of(error.__cause__)) if error.__cause__ else []
        stated = {"action": error.action, "reason": error.reason, "hint": error.hint, "lacks": lacks}
    Path(path).write_text(f"{json.dumps(stated)}\n", encoding="utf-8")


def _state(backends: Sequence[str]) -> list[object]:
    """Return what calls of functions depend on, and a function may change for those after it."""
    torch = sys.modules.get("torch")
    ours = [get(name).plan_state for name in backends]
    return [
        *[state() for state in ours if state],
        (torch.is_grad_enabled(), torch.get_default_device()) if torch else None,
        np.geterr(),
        {**os.environ},
        os.getcwd(),  # noqa: PTH109 -- it is compared
    ]


def main(output: str, text: str, path: str) -> None:
    """Check the functions of a job, and write the results."""
    names, backends, words, seconds, emulated, options, asked = json.loads(text)
    if emulated:
        from xbridge.testing import emulated as accelerator  # noqa: PLC0415 -- it imports torch

        accelerator.install()
    targets = [target for name in names for target in find_targets(name)]
    for name in backends:
        get(name).devices()
    with (
        Path(output).open("w", encoding="utf-8") as results,
        Path(path).open("w", encoding="utf-8") as stored,
    ):

        def state(line: object) -> None:
            print(json.dumps(line), file=results, flush=True)

        def store(program: str) -> None:
            stored.seek(0)
            stored.truncate()
            stored.write(program)
            stored.flush()

        state(_BEGUN)
        before = _state(backends)
        for found in check(
            targets, backends, words, seconds, options=Options(*options), asked=asked, before=store
        ):
            state({**found._asdict(), "findings": [one._asdict() for one in found.findings]})
            if found.findings or _state(backends) != before:
                state(_CHANGED)
                return
