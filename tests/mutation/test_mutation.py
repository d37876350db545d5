"""The runner of `make mutation`, tried on a toy: a module of five functions and its tests."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

RUN = Path(__file__).with_name("run.py")

TOY = """\
import functools


def double(x):
    return 2 * x


def bound(x, most=9):
    return min(x, most)


def forever(n):
    while n > 0:
        n -= 1
    return n


@functools.cache
def cached(x):
    return x + 1


def alone(x):
    return x


TABLE = {"double": double}
"""

TESTS = """\
import os
import pytest
import toy

HELD = toy.TABLE["double"]
assert toy.cached(1) == 2  # its answer is kept from before there is a mutant


def test_double_through_a_reference_taken_before():
    assert HELD(3) == 6


def test_bound():
    assert toy.bound(4) == 4 and toy.bound(10) == 9


def test_forever():
    assert toy.forever(3) == 0


def test_cached():
    assert toy.cached(1) == 2


def test_that_fails_when_it_runs_by_itself():
    assert toy.forever(1) == 0
    assert "SEEN" in os.environ


@pytest.fixture(autouse=True)
def seen():
    yield
    os.environ["SEEN"] = "1"
"""

CHANGES = {
    "killed": (5, "    return 2 * x\n", "    return 2 / (x or 1)\n", (5, 5)),
    "survives": (9, "    return min(x, most)\n", "    return min(most, x)\n", (9, 9)),
    "default": (8, "def bound(x, most=9):\n", "def bound(x, most=10):\n", (9, 9)),
    "late": (14, "        n -= 1\n", "        n = 1\n", (14, 14)),
    "cached": (20, "    return x + 1\n", "    return x - 1\n", (20, 20)),
    "untested": (24, "    return x\n", "    return None\n", (24, 24)),
    "same-result": (15, "    return n\n", "    return n + 0\n", (15, 15)),
}


def run(root: Path, *words: str) -> str:
    command = [sys.executable, str(RUN), "--root", str(root), "--targets", "toy.py", "--jobs", "2", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def states(root: Path) -> list[tuple[str, str]]:
    lines = (root / ".mutation/results.jsonl").read_text().splitlines()
    return [(one["id"], one["state"]) for one in map(json.loads, lines)]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("toy")
    (root / "toy.py").write_text(TOY)
    (root / "test_toy.py").write_text(TESTS)
    mutants = [
        {
            "id": name,
            "path": "toy.py",
            "function": name,
            "first": first,
            "old": [old],
            "new": [new],
            "covers": covers,
        }
        for name, (first, old, new, covers) in CHANGES.items()
    ]
    kept = {"toy.py": {"hash": sha256(TOY.encode()).hexdigest()[:12], "at import": 1, "mutants": mutants}}
    (root / ".mutation").mkdir()
    with gzip.open(root / ".mutation/mutants.json.gz", "wt") as stream:
        json.dump(kept, stream)
    run(root, "--shard", "1/2")
    return root


@pytest.fixture(scope="module")
def whole(toy: Path) -> dict[str, str]:
    first = states(toy)
    assert 0 < len(first) < len(CHANGES)
    run(toy)
    assert len(states(toy)) == len(CHANGES), "a mutant was tried twice"
    assert states(toy)[: len(first)] == first
    return dict(states(toy))


def test_mutation__resumes_with_untried_mutants(whole: dict[str, str]) -> None:
    """A run continues with the mutants that have not been tried."""
    assert set(whole) == set(CHANGES)


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("killed", "killed"),
        ("default", "killed"),
        ("cached", "killed"),
        ("late", "timeout"),
        ("survives", "survived"),
        ("same-result", "survived"),
        ("untested", "no tests"),
    ],
)
def test_mutation__state_depends_on_the_tests(whole: dict[str, str], name: str, state: str) -> None:
    """A mutant is killed, times out, survives or is untested, depending on its tests."""
    assert whole[name] == state


def test_mutation__ignores_tests_that_fail_alone(toy: Path, whole: dict[str, str]) -> None:
    """A test that fails on its own without a mutant kills nothing."""
    lines = map(json.loads, (toy / ".mutation/results.jsonl").read_text().splitlines())
    assert not [one for one in lines if "by_itself" in (one["by"] or "")]


def test_mutation__unchanged_code_survives(toy: Path, whole: dict[str, str]) -> None:
    """Without a change every mutant survives, and the results are left alone."""
    told = run(toy, "--unchanged", "7")
    assert told.count("survived: ") == 6
    assert told.count("no tests: ") == 1
    assert dict(states(toy)) == whole


def test_mutation__report_shows_survivors(toy: Path, whole: dict[str, str]) -> None:
    """The report counts mutants for each file and shows the diff of each survivor."""
    told = run(toy, "--report")
    assert "| `toy.py` | 7 | 7 | 4 | 57.1 % |" in told
    assert "-     return min(x, most)\n+     return min(most, x)\n" in told


def test_mutants__lists_changes_of_mutmut(tmp_path: Path) -> None:
    """`mutants` lists the changes of mutmut with the lines they replace."""
    pytest.importorskip("mutmut")
    (tmp_path / "toy.py").write_text(TOY)
    listed: list[Any] = []
    sys.path.insert(0, str(RUN.parent))
    try:
        from mutants import mutants

        listed, at_import = mutants(tmp_path, "toy.py")
    finally:
        sys.path.remove(str(RUN.parent))
    changes = {(one.function, *one.new) for one in listed}
    assert ("double", "    return 3 * x\n") in changes
    assert ("bound", "def bound(x, most=10):\n") in changes
    assert ("cached", "    return x - 1\n") in changes
    assert at_import == 3  # two for the key of the table, and one for the table
    assert all(one.applied(TOY) != TOY for one in listed)
