"""Try mutants: collect the tests once, and fork for each mutant.

    python tests/mutation/run.py --list        what would be changed, by file
    python tests/mutation/run.py               try what has not been tried, and report
    python tests/mutation/run.py --report      report what has been tried

Everything is kept in `.mutation`: the list of mutants, which test runs which line, and a line for each mutant
that was tried. An interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import selectors
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from in_place import Functions, NotInPlaceError
from mutants import Mutant, mutants

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

SLOW = 1.0
"""Tests that take more seconds than this come last, whatever they test."""
LIMIT, TIMES = 5.0, 5.0
"""A test may take this many seconds, and this many times what it takes without a mutant."""
LONGEST = 120.0
"""A test that nobody has timed yet may take this many seconds."""
CHUNK = 100
"""So many tests of a file are timed in one process."""
MEMORY = 8 << 30
"""Bytes that a mutant may ask for."""

PASSED, FAILED, LATE, DIED = "passed", "failed", "late", "died"


@dataclass
class Job:
    """Tests to run in a process of their own, with a mutant or without."""

    tests: list[int]
    finished: Callable[[Job], Iterable[Job]]
    mutant: Mutant | None = None
    lines: bool = False
    """Whether to find out which lines each test runs."""
    results: dict[int, tuple[str, float, dict[str, list[int]]]] = field(default_factory=dict)
    problem: str = ""


@dataclass
class Child:
    """A process that runs a job."""

    job: Job
    pid: int
    deadline: float
    scratch: str
    under_way: int | None = None
    heard: bytes = b""


class Lines:
    """Which test runs which line: for each line of each file, a number whose bits are tests."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.seconds: list[float] = []
        self.masks: dict[str, dict[int, int]] = {}
        self.hashes: dict[str, str] = {}
        self.modules: list[str] = []
        self.environment = ""

    def save(self, file: Path) -> None:
        """Keep it. Positions of bits are those of the names."""
        kept = {
            **vars(self),
            "masks": {p: {str(n): f"{m:x}" for n, m in of.items()} for p, of in self.masks.items()},
        }
        with gzip.open(file, "wt") as stream:
            json.dump(kept, stream)

    @classmethod
    def load(cls, file: Path) -> Lines:
        """What was kept."""
        with gzip.open(file, "rt") as stream:
            kept = json.load(stream)
        made = cls()
        vars(made).update(kept)
        made.masks = {p: {int(n): int(m, 16) for n, m in of.items()} for p, of in kept["masks"].items()}
        return made


class Runner:
    """What pytest calls; it has the tests, and runs them in children."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.root: Path = options.root
        self.kept: Path = options.root / ".mutation"
        self.kept.mkdir(exist_ok=True)
        self.until = time.monotonic() + 60 * options.minutes
        self.failed = False
        self.items: list[pytest.Item] = []
        self.functions: Functions
        self.known = Lines()
        self.sound: set[int] = set()
        self.unsound: set[int] = set()
        self.killers: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
        self.tried: Counter[str] = Counter()
        self.started = time.monotonic()

    # -- what pytest calls ---------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        """Collect without starting JAX, whose threads would be missing in every child."""
        with _without_jax():
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of the tests, run the mutants."""
        self.items = session.items
        file = self.kept / "lines.json.gz"
        self.get_ready()
        if self.options.map or not file.exists():
            self.find_lines(file)
        self.known = self.in_order(Lines.load(file))
        self.get_ready()
        self.trial()
        self.try_mutants()
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember that a test failed."""
        self.failed |= report.failed

    # -- what is known of the tests ------------------------------------------------------------------

    def targets(self) -> list[str]:
        """The files to change."""
        return targets(self.root, self.options.targets)

    def chunks(self, tests: Iterable[int]) -> list[list[int]]:
        """The tests by file, in pieces: what is set up for a file is set up in each."""
        files: dict[str, list[int]] = defaultdict(list)
        for test in tests:
            files[self.items[test].nodeid.partition("::")[0]].append(test)
        return [of[i : i + CHUNK] for of in files.values() for i in range(0, len(of), CHUNK)]

    def find_lines(self, file: Path) -> None:
        """Run every test, and keep which lines each runs and how long it takes."""
        say(f"Running {len(self.items)} tests to see which lines each runs")
        found = Lines()
        modules: set[str] = set()
        masks: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        results: dict[int, tuple[str, float, dict[str, list[int]]]] = {}

        def finished(job: Job) -> list[Job]:
            results.update(job.results)
            modules.update(job.problem.split())
            return self.rest(job, finished)

        self.work([Job(of, finished, lines=True) for of in self.chunks(range(len(self.items)))])
        self.need_all(results, range(len(self.items)))
        unfit: Counter[str] = Counter()
        for test, (outcome, seconds, lines) in sorted(results.items()):
            if outcome != PASSED or not lines:
                unfit[outcome if outcome != PASSED else "without a line to change"] += 1
                continue
            bit = 1 << len(found.names)
            found.names.append(self.items[test].nodeid)
            found.seconds.append(round(seconds, 4))
            for path, numbers in lines.items():
                for number in numbers:
                    masks[path][number] |= bit
        found.masks = {path: dict(of) for path, of in masks.items()}
        found.hashes = {path: _hash(self.root / path) for path in self.targets()}
        found.modules = sorted(modules)
        found.environment = _environment()
        found.save(file)
        say(f"{len(found.names)} tests run a line; left out: {dict(unfit)}")
        for test, (outcome, *_) in results.items():
            if outcome != PASSED:
                say(f"  {outcome}: {self.items[test].nodeid}")

    def in_order(self, kept: Lines) -> Lines:
        """The same with the bits in the order of the tests that were collected now."""
        places = {item.nodeid: i for i, item in enumerate(self.items)}
        stale = [path for path in self.targets() if kept.hashes.get(path) != _hash(self.root / path)]
        if stale:
            say(f"Lines were found before these changed (--map finds them again): {' '.join(stale)}")
        gone = [name for name in kept.names if name not in places]
        if gone:
            say(f"{len(gone)} tests are not here, such as {gone[0]}")
        to = [places.get(name) for name in kept.names]
        made = Lines()
        made.environment, made.modules = kept.environment, kept.modules
        made.seconds = [LIMIT] * len(self.items)
        for place, seconds in zip(to, kept.seconds, strict=True):
            if place is not None:
                made.seconds[place] = seconds
        for path, of in kept.masks.items():
            made.masks[path] = {}
            for number, mask in of.items():
                moved = (to[bit] for bit in _bits(mask))
                made.masks[path][number] = sum(1 << place for place in moved if place is not None)
        return made

    def get_ready(self) -> None:
        """Import what tests import, and find the functions, once for all children."""
        for name in self.known.modules:
            with suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                __import__(name)
        files = {str(self.root / path) for path in self.targets()}
        package = (
            os.path.commonpath([str(self.root), *files]) if len(files) < 2 else os.path.commonpath(files)
        )
        self.functions = Functions(files, package)

    def trial(self) -> None:
        """Where the lines were found on another machine, leave out the tests that fail on this one."""
        here = _environment()
        if self.known.environment == here:
            return
        file = self.kept / "trial.json"
        known: dict[str, list[str]] = json.loads(file.read_text()) if file.exists() else {}
        if here not in known:
            used = 0
            for of in self.known.masks.values():
                for mask in of.values():
                    used |= mask
            tests = list(_bits(used))
            say(f"Running {len(tests)} tests once on this machine")
            outcomes: dict[int, str] = {}

            def finished(job: Job) -> list[Job]:
                outcomes.update({test: outcome for test, (outcome, *_) in job.results.items()})
                return self.rest(job, finished)

            self.work([Job(of, finished) for of in self.chunks(tests)])
            self.need_all(outcomes, tests)
            known[here] = [self.items[test].nodeid for test in tests if outcomes[test] != PASSED]
            file.write_text(json.dumps(known))
        say(f"{len(known[here])} tests that fail on this machine are left out")
        for name in known[here]:
            say(f"  {name}")
        places = {item.nodeid: i for i, item in enumerate(self.items)}
        self.unsound |= {places[name] for name in known[here] if name in places}

    def need_all(self, results: Collection[int], tests: Collection[int]) -> None:
        """End the run if the time was up before all of some tests had run."""
        if len(results) < len(tests):
            raise pytest.UsageError(f"only {len(results)} of {len(tests)} tests ran; try more --minutes")

    def rest(self, job: Job, finished: Callable[[Job], Iterable[Job]]) -> list[Job]:
        """The tests of a job that come after the one that ended its process."""
        left = [test for test in job.tests if test not in job.results]
        return [Job(left, finished, lines=job.lines)] if left else []

    # -- the mutants ---------------------------------------------------------------------------------

    def try_mutants(self) -> None:
        """Try those that have not been tried, each by the tests that run its lines."""
        todo = left(self.options)
        say(f"{len(todo)} mutants to try, {self.options.jobs} at a time")
        with (self.kept / "results.jsonl").open("a") as stream:
            self.stream = stream
            self.work(self.first(mutant) for mutant in todo)

    def first(self, mutant: Mutant) -> Job:
        """The job of a mutant."""
        return Job(self.choose(mutant), self.judge, mutant)

    def choose(self, mutant: Mutant) -> list[int]:
        """The tests that run a line of a mutant: those that killed its neighbours, then one of each kind."""
        lines = self.known.masks.get(mutant.path, {})
        mask = 0
        for number in range(mutant.covers[0], mutant.covers[1] + 1):
            mask |= lines.get(number, 0)
        seconds = self.known.seconds
        tests = sorted((test for test in _bits(mask) if test not in self.unsound), key=seconds.__getitem__)
        again = {test for test, _ in self.killers[mutant.path, mutant.function].most_common(5)}
        seen: Counter[str] = Counter()
        keys = {}
        for test in tests:
            name = self.items[test].nodeid.partition("[")[0]
            seen[name] += 1
            slow = seconds[test] > SLOW
            keys[test] = (slow or test not in again, slow, seen[name], seconds[test])
        chosen: list[int] = []
        spent = 0.0
        for test in sorted(tests, key=keys.__getitem__):
            spent += seconds[test]
            if chosen and spent > self.options.enough:
                break
            chosen.append(test)
        return chosen

    def judge(self, job: Job) -> list[Job]:
        """Decide about a mutant. A test that fails without it as well, alone, is not a witness."""
        mutant = job.mutant
        assert mutant is not None
        if job.problem or not job.tests:
            self.record(job, f"skipped: {job.problem}" if job.problem else "no tests")
            return []
        bad = [test for test, (outcome, *_) in job.results.items() if outcome != PASSED]
        if not bad:
            self.record(job, "survived")
            return []
        if bad[0] not in self.sound | self.unsound:

            def checked(control: Job) -> list[Job]:
                outcome = control.results[bad[0]][0]
                (self.sound if outcome == PASSED else self.unsound).add(bad[0])
                return self.judge(job)

            return [Job(bad[:1], checked)]
        if bad[0] in self.unsound:
            return [self.first(mutant)]
        self.killers[mutant.path, mutant.function][bad[0]] += 1
        self.record(job, "timeout" if job.results[bad[0]][0] == LATE else "killed", bad[0])
        return []

    def record(self, job: Job, state: str, by: int | None = None) -> None:
        """Keep what came of a mutant."""
        assert job.mutant is not None
        line = {
            "id": job.mutant.id,
            "state": state,
            "by": None if by is None else self.items[by].nodeid,
            "tests": len(job.tests),
            "seconds": round(sum(seconds for _, seconds, _ in job.results.values()), 2),
        }
        if self.options.unchanged:
            say(f"{state}: {job.mutant.path}:{job.mutant.first} {line['by'] or ''}")
        else:
            self.stream.write(json.dumps(line) + "\n")
            self.stream.flush()
        self.tried[state] += 1
        if not sum(self.tried.values()) % 100:
            rate = sum(self.tried.values()) / (time.monotonic() - self.started) * 60
            say(f"{dict(self.tried)}, {rate:.0f} a minute")

    # -- processes -----------------------------------------------------------------------------------

    def work(self, jobs: Iterable[Job]) -> None:
        """Run jobs, several at a time, and those that come of them, until the time is up."""
        waiting, more = iter(jobs), list[Job]()
        poll = selectors.DefaultSelector()
        with tempfile.TemporaryDirectory(prefix="mutation-") as scratch:
            while True:
                late = time.monotonic() > self.until
                while not late and len(poll.get_map()) < self.options.jobs:
                    job = more.pop() if more else next(waiting, None)
                    if job is None:
                        break
                    if not job.tests:
                        more.extend(job.finished(job))
                        continue
                    child, pipe = self.fork(job, scratch)
                    poll.register(pipe, selectors.EVENT_READ, child)
                if not poll.get_map():
                    break
                self.listen(poll, more)
                if time.monotonic() > self.until + LIMIT:
                    for key in list(poll.get_map().values()):
                        self.end(poll, key)
                    say("The time is up: the next run goes on from here")
                    break

    def listen(self, poll: selectors.BaseSelector, more: list[Job]) -> None:
        """Hear what the children say, and end those that take too long."""
        for key, _ in poll.select(0.2):
            child: Child = key.data
            said = os.read(key.fd, 1 << 16)
            if not said:
                self.end(poll, key)
                if child.under_way is not None:
                    child.job.results[child.under_way] = (DIED, 0.0, {})
                more.extend(child.job.finished(child.job))
                continue
            *lines, child.heard = (child.heard + said).split(b"\n")
            for line in lines:
                self.hear(child, json.loads(line))
        for key in list(poll.get_map().values()):
            child = key.data
            if time.monotonic() > child.deadline:
                self.end(poll, key)
                if child.under_way is not None:
                    child.job.results[child.under_way] = (LATE, child.deadline, {})
                more.extend(child.job.finished(child.job))

    def hear(self, child: Child, said: list[Any]) -> None:
        """One line of a child: a test begins, has ended, or the mutant could not be put in."""
        word, *rest = said
        if word == "begin":
            child.under_way = rest[0]
            usual = self.known.seconds[rest[0]] if self.known.seconds else LONGEST / TIMES
            child.deadline = time.monotonic() + LIMIT + TIMES * usual
        elif word == "end":
            child.under_way = None
            child.job.results[rest[0]] = (rest[1], rest[2], rest[3])
        else:
            child.job.problem = rest[0]

    def end(self, poll: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        """End a child and all that it has started."""
        poll.unregister(key.fileobj)
        os.close(key.fd)
        with suppress(ProcessLookupError):
            os.killpg(key.data.pid, signal.SIGKILL)
        os.waitpid(key.data.pid, 0)
        shutil.rmtree(key.data.scratch, ignore_errors=True)

    def fork(self, job: Job, scratch: str) -> tuple[Child, int]:
        """Begin a job in a child."""
        reads, writes = os.pipe()
        own = tempfile.mkdtemp(dir=scratch)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pid = os.fork()
        if pid:
            with suppress(ProcessLookupError, PermissionError):
                os.setpgid(pid, pid)
            os.close(writes)
            return Child(job, pid, time.monotonic() + LONGEST, own), reads
        try:
            self.be_child(job, writes, own)
        finally:
            os._exit(1)

    def be_child(self, job: Job, pipe: int, scratch: str) -> None:
        """Put the mutant in, run the tests, and tell. The first that fails is enough."""
        with suppress(PermissionError):
            os.setpgid(0, 0)
        empty = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(empty, number)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = os.environ["TMPDIR"] = tempfile.tempdir = scratch
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.getrlimit(resource.RLIMIT_DATA)[1]))

        def tell(*said: Any) -> None:
            os.write(pipe, json.dumps(said).encode() + b"\n")

        loaded = set(sys.modules)
        self.functions.clear_caches()
        if job.mutant is not None and not self.options.unchanged:
            try:
                self.functions.change(self.root, job.mutant)
            except NotInPlaceError:
                tell("problem", "no function that exists has its code")
                os._exit(0)
        recorder = _Recorder(self.root, self.targets()) if job.lines else None
        for test, following in zip(job.tests, [*job.tests[1:], None], strict=True):
            item, after = self.items[test], None if following is None else self.items[following]
            tell("begin", test)
            self.failed = False
            start = time.perf_counter()
            if recorder:
                recorder.start()
            try:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            except BaseException:  # noqa: BLE001 -- a mutant may raise anything, and it is seen
                self.failed = True
            seconds = time.perf_counter() - start
            tell("end", test, FAILED if self.failed else PASSED, seconds, recorder.stop() if recorder else {})
            if self.failed and job.mutant is not None:
                break
        if recorder:
            tell("problem", " ".join(_modules(set(sys.modules) - loaded)))
        os._exit(0)


class _Recorder:
    """The lines of some files that run between `start` and `stop`."""

    def __init__(self, root: Path, paths: Sequence[str]) -> None:
        import coverage

        self.files = {str(root / path): path for path in paths}
        self.coverage = coverage.Coverage(
            data_file=None, config_file=False, include=list(self.files), messages=False
        )
        self.coverage.set_option("run:disable_warnings", ["no-data-collected"])

    def start(self) -> None:
        self.coverage.erase()
        self.coverage.start()

    def stop(self) -> dict[str, list[int]]:
        self.coverage.stop()
        data = self.coverage.get_data()
        found = {path: sorted(data.lines(file) or []) for file, path in self.files.items()}
        return {path: lines for path, lines in found.items() if lines}


@contextmanager
def _without_jax() -> Iterator[None]:
    """Answer for JAX which devices it has, so that it is not started; a module that makes an array fails."""
    try:
        import jax.extend.backend
        from jax._src import xla_bridge
    except ImportError:
        yield
        return

    def started() -> None:
        raise RuntimeError("a module starts JAX while it is collected; try an array made in the test")

    device = mock.NonCallableMock(platform="cpu", local_hardware_id=0)
    client = SimpleNamespace(local_devices=lambda: [device])
    with (
        mock.patch.object(jax.extend.backend, "backends", return_value={"cpu": client}),
        mock.patch.object(xla_bridge, "backends", started),
    ):
        yield


def _modules(names: Iterable[str]) -> list[str]:
    """Those of some modules that are installed, for all children to have."""
    files = {name: str(getattr(sys.modules[name], "__file__", None)) for name in names}
    return [name for name, file in files.items() if file.startswith(sys.prefix) and "__mp" not in name]


def _bits(mask: int) -> Iterator[int]:
    """The positions of the bits that are set."""
    text = bin(mask)[:1:-1]
    at = text.find("1")
    while at >= 0:
        yield at
        at = text.find("1", at + 1)


def _hash(file: Path) -> str:
    return sha256(file.read_bytes()).hexdigest()[:12]


def _environment() -> str:
    """What is installed, in one word."""
    versions = {f"{one.metadata['Name']} {one.version}" for one in distributions()}
    return sha256(" ".join([sys.version, *sorted(versions)]).encode()).hexdigest()[:12]


def say(text: str) -> None:
    """Print a line now."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def targets(root: Path, patterns: Iterable[str]) -> list[str]:
    """The files that some patterns mean, by their paths below the root."""
    found = {file for pattern in patterns for file in root.glob(pattern) if file.suffix == ".py"}
    return sorted(str(file.relative_to(root)) for file in found)


def listed(options: argparse.Namespace) -> list[Mutant]:
    """Every mutant of every target, in a mixed order that is always the same; from the list, if it holds."""
    file: Path = options.root / ".mutation" / "mutants.json.gz"
    file.parent.mkdir(exist_ok=True)
    known: dict[str, Any] = {}
    if file.exists():
        with gzip.open(file, "rt") as stream:
            known = json.load(stream)
    paths = targets(options.root, options.targets)
    for path in paths:
        now = _hash(options.root / path)
        if known.get(path, {}).get("hash") != now:
            made, at_import = mutants(options.root, path)
            kept = [one.to_json() for one in made]
            known[path] = {"hash": now, "at import": at_import, "mutants": kept}
    with gzip.open(file, "wt") as stream:
        json.dump(known, stream)
    options.at_import = {path: known[path]["at import"] for path in paths}
    found = [Mutant.from_json(one) for path in paths for one in known[path]["mutants"]]
    wanted = [one for one in found if any(only in one.path for only in options.only or [""])]
    return sorted(wanted, key=lambda one: one.id)


def results(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The last result of each mutant."""
    file: Path = options.root / ".mutation" / "results.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return {one["id"]: one for one in map(json.loads, lines)}


def left(options: argparse.Namespace) -> list[Mutant]:
    """The mutants of this part that have not been tried, or are to be tried again."""
    done = {name for name, one in results(options).items() if one["state"] not in (options.again or [])}
    index, count = options.shard
    every = listed(options)[index - 1 :: count]
    return every[: options.unchanged] if options.unchanged else [one for one in every if one.id not in done]


def report(options: argparse.Namespace) -> None:
    """Print a table of the files, and each mutant that no test noticed."""
    found = results(options)
    every = listed(options)
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for one in every:
        state = found.get(one.id, {}).get("state", "not tried")
        for path in (one.path, "together"):
            rows[path][state.partition(":")[0]] += 1
    sys.stdout.write("| file | possible | tried | noticed | rate |\n|---|---|---|---|---|\n")
    for path, states in rows.items():
        tried = states.total() - states["not tried"] - states["skipped"]
        noticed = states["killed"] + states["timeout"]
        rate = f"{100 * noticed / tried:.1f} %" if tried else ""
        sys.stdout.write(f"| `{path}` | {states.total()} | {tried} | {noticed} | {rate} |\n")
    sys.stdout.write(f"\n{dict(rows['together'])}; {sum(options.at_import.values())} run at import\n")
    for one in sorted(every, key=lambda one: (one.path, one.first)):
        result = found.get(one.id, {"state": "not tried"})
        if result["state"] not in ("killed", "timeout", "not tried"):
            sys.stdout.write(f"\n{one.path}:{one.first} {one.function}: {result['state']} ({one.id})\n")
            sys.stdout.writelines(f"- {line}" for line in one.old)
            sys.stdout.writelines(f"+ {line}" for line in one.new)


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    return int(index), int(count)


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--root", type=Path, default=Path.cwd(), help="the project; here, if not given")
    add("--targets", nargs="+", metavar="GLOB", help="files to change; those of pyproject.toml, if not given")
    add(
        "--only",
        action="append",
        metavar="TEXT",
        help="change only files whose path has this",
    )
    add("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    add("--minutes", type=float, default=1e9, help="stop after so many minutes")
    add("--enough", type=float, default=30.0, metavar="SECONDS", help="run tests of so many seconds a mutant")
    add("--shard", type=_shard, default=(1, 1), metavar="I/N", help="try one of N parts")
    add("--again", action="append", metavar="STATE", help="try again what was survived, skipped, ...")
    add("--unchanged", type=int, default=0, metavar="N", help="run N mutants' tests without the mutants")
    add("--map", action="store_true", help="find the lines that each test runs again")
    add("--list", action="store_true", help="only count the mutants")
    add("--report", action="store_true", help="only report")
    add("pytest", nargs="*", help="options and tests for pytest, after --; those of pyproject.toml, if none")
    options = parser.parse_args(words)
    options.root = options.root.resolve()
    file = options.root / "pyproject.toml"
    if file.exists():
        import tomllib

        settings = tomllib.loads(file.read_text()).get("tool", {}).get("mutation", {})
        options.targets = options.targets or settings["targets"]
        options.pytest = options.pytest or settings["pytest"]
    return options


def main(words: list[str] | None = None) -> int:
    """Do what was asked for."""
    options = parsed(words)
    if options.list:
        count = Counter(one.path for one in listed(options))
        for path, number in sorted(count.items()):
            sys.stdout.write(f"{number:6} {path}\n")
        sys.stdout.write(f"{count.total():6} together; {sum(options.at_import.values())} run at import\n")
        return 0
    if not options.report:
        listed(options)
        arguments = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:faulthandler", *options.pytest]
        os.chdir(options.root)
        code = pytest.main(["--rootdir", str(options.root), *arguments], plugins=[Runner(options)])
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return int(code)
    if not options.unchanged:
        report(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
