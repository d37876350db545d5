"""Processes in which a check calls functions, so that one that crashes or hangs ends its worker alone.

A worker prints a line of JSON after each function, and stores the program of the call that it runs. If it
ends early, that program is the finding, and another worker continues with the next function.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from xbridge._core.locks import lock
from xbridge.backends._registry import get, is_available, known_backends
from xbridge.errors import OptionError
from xbridge.testing._check import TIME_IS_OVER, Checked, check
from xbridge.testing._findings import Finding, read
from xbridge.testing._source import READONLY
from xbridge.testing._targets import find_targets

if TYPE_CHECKING:
    from collections.abc import Iterator

_PATIENCE = 15.0
"""The number of seconds that a function may take longer than its share, and all longer than asked."""

_START = 60.0
"""The number of seconds in which a worker imports the libraries. It prints a first line then."""


_HANGS = "does not end"


class Job(NamedTuple):
    """The functions of one worker, and how it calls them."""

    names: tuple[str, ...]
    """Of the form `MODULE:FUNCTION`."""
    backends: tuple[str, ...]
    words: dict[str, str]
    seconds: float
    emulated: bool


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


def _has_emulated() -> bool:
    """Return True if torch is installed and has backends in Python."""
    return is_available("torch") and hasattr(
        import_module("torch.utils.backend_registration"), "_setup_privateuseone_for_python_backend"
    )


class Children:
    """The processes of a check, none of which may outlive it."""

    def __init__(self) -> None:
        self.is_over = False
        self._processes: list[subprocess.Popen[str]] = []
        self._lock = lock()

    def start(self, arguments: list[str], stdout: int, stderr: IO[str] | int) -> subprocess.Popen[str]:
        """Start this interpreter."""
        with self._lock:
            process = subprocess.Popen(  # noqa: S603 -- our own module, or the program of a finding
                [sys.executable, *arguments],
                stdout=stdout,
                stderr=stderr,
                stdin=subprocess.DEVNULL,
                text=True,
            )
            self._processes.append(process)
            if self.is_over:
                process.kill()
        return process

    def end(self) -> None:
        """End every process, those that start later too."""
        with self._lock:
            self.is_over = True
            for process in self._processes:
                process.kill()


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
        while job.names and job.seconds > 0 and not children.is_over:
            done, reason, used = _run_worker(job, stored, results, children)
            job = job._replace(names=job.names[done:], seconds=job.seconds - used)
            if job.names:
                results.put(_ended(job.names[0].replace(":", "."), reason, stored, children))
                job = job._replace(names=job.names[1:])
    for name in job.names:
        results.put(Checked(name.replace(":", "."), [], TIME_IS_OVER))
    results.put(None)


def _run_worker(
    job: Job, stored: Path, results: SimpleQueue[Checked | None], children: Children
) -> tuple[int, str, float]:
    """Run one worker. Return the number of its results, how it ended, and its seconds without imports."""
    stored.write_text("", encoding="utf-8")
    errors = stored.with_suffix(".txt").open("w+", encoding="utf-8", errors="replace")
    arguments = ["-m", "xbridge.testing._workers", json.dumps(job), str(stored)]
    process = children.start(arguments, subprocess.PIPE, errors)
    begun = time.monotonic()
    share = max(job.seconds / len(job.names), 1.0)
    limit, done = 3 * share + _PATIENCE, 0
    timer = _Watch(process, _START + limit)
    with errors, process:
        assert process.stdout  # noqa: S101 -- for the type checker
        for line in process.stdout:
            stated = json.loads(line)
            begun = begun if stated else time.monotonic()
            timer.restart(min(limit, begun + job.seconds + _PATIENCE - time.monotonic()))
            if stated:
                results.put(Checked(**{**stated, "findings": read(stated["findings"])}))
                done += 1
        timer.cancel()
        status = process.wait()
        errors.seek(0)
        last = (errors.read().strip().splitlines() or [""])[-1]
    reason = (
        "ends the process"
        if status < 0
        else f"cannot be checked: {last or f'its process ends with {status}'}"
    )
    return done, _HANGS if timer.is_over else reason, time.monotonic() - begun


class _Watch:
    """A timer that kills a process unless it is restarted."""

    def __init__(self, process: subprocess.Popen[str], seconds: float) -> None:
        self.is_over = False
        self._process = process
        self._timer = threading.Timer(0, self._end)
        self.restart(seconds)

    def restart(self, seconds: float) -> None:
        """Begin anew."""
        self._timer.cancel()
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        """Stop."""
        self._timer.cancel()

    def _end(self) -> None:
        self.is_over = True
        self._process.kill()


def _ended(name: str, reason: str, stored: Path, children: Children) -> Checked:
    """Return the result for a function during which a worker ended."""
    program = stored.read_text(encoding="utf-8")
    backend, _, code = program.partition("\n")
    if not code or reason.startswith("cannot"):
        return Checked(name, [], f"it {reason}")
    if not _is_confirmed(code, reason, children):
        return Checked(name, [], f"it {reason} when it is checked, and not by itself")
    found = Finding(name, backend, reason, ("a crash",), f"the call {reason}", code, "crash")
    return Checked(name, [found], "")


def _is_confirmed(code: str, reason: str, children: Children) -> bool:
    """Return True if a program ends its process, or does not end, by itself too; or if it needs a device."""
    if "emu:" in code:
        return True
    with children.start(["-c", code], subprocess.DEVNULL, subprocess.DEVNULL) as process:
        try:
            status = process.wait(2 * _PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            return reason == _HANGS
    return status < 0 and reason != _HANGS


def main(text: str, path: str) -> None:
    """Check the functions of a job, and print the results."""
    names, backends, words, seconds, emulated = json.loads(text)
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a function prints is not a result
    if emulated:
        from xbridge.testing import emulated as accelerator  # noqa: PLC0415 -- it imports torch

        accelerator.install()
    targets = [target for name in names for target in find_targets(name)]
    for name in backends:
        get(name).devices()
    print(json.dumps({}), file=output, flush=True)
    with Path(path).open("w", encoding="utf-8") as stored:

        def store(program: str) -> None:
            stored.seek(0)
            stored.truncate()
            stored.write(program)
            stored.flush()

        for found in check(targets, backends, words, seconds, before=store):
            stated: dict[str, Any] = {
                **found._asdict(),
                "findings": [one._asdict() for one in found.findings],
            }
            print(json.dumps(stated), file=output, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3])
