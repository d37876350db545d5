"""The search of `make hunt`, tried on a project whose test fails for one number in many."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")
ROOT = RUN.parents[2]

DRAWN = """\
from hypothesis import given, strategies as st

ALL = []

@given(st.integers(0, 2**40))
def test_is_drawn(n):
    ALL.append(n)

@given(st.integers(0, 2**40))
def test_is_below(n):
    assert n < {limit}

def test_draws_nothing():
    assert False

def teardown_module():
    print("drawn", ALL)
"""


def run(folder: Path, *command: str, limit: int = 2**41) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(DRAWN.format(limit=limit), "utf-8")
    (folder / "conftest.py").write_bytes((ROOT / "conftest.py").read_bytes())
    words = [sys.executable, *command, "-s", "-p", "no:cacheprovider"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


def drawn(run: subprocess.CompletedProcess[str]) -> list[str]:
    return re.findall(r"drawn (\[.+\])$", run.stdout, re.MULTILINE)


def test_suite__draws_the_same_in_every_run(tmp_path: Path) -> None:
    """Two runs of the suite draw the same examples."""
    first, second = (run(tmp_path, "-m", "pytest", "-k", "is_drawn") for _ in range(2))
    assert first.returncode == 0, first.stdout
    assert drawn(first) == drawn(second) != []


@pytest.mark.parametrize("seeds", [(1, 1), (1, 2)], ids=["same", "other"])
def test_hunt__draws_by_its_seed(tmp_path: Path, seeds: tuple[int, int]) -> None:
    """A round draws what follows from its seed, and another seed draws something else."""
    first, second = (
        run(tmp_path, str(RUN), f"--seed={seed}", "--hypothesis-profile=hunt", "-k", "is_drawn")
        for seed in seeds
    )
    assert first.returncode == 0, first.stdout
    assert len(drawn(first) + drawn(second)) == 2
    assert (drawn(first) == drawn(second)) is (seeds[0] == seeds[1])


def test_hunt__repeats_a_failure_by_the_seed_it_prints(tmp_path: Path) -> None:
    """A hunt ends with the first round that fails, and names the command that repeats this round."""
    hunted = run(tmp_path, str(RUN), "--minutes=5", "--hypothesis-profile=hunt", limit=2**38)
    assert hunted.returncode == 1
    (seed,) = re.findall(
        r"^this round failed; to repeat it: make hunt SEED=(\d+)$", hunted.stderr, re.MULTILINE
    )
    repeated = run(tmp_path, str(RUN), f"--seed={seed}", "--hypothesis-profile=hunt", limit=2**38)
    assert repeated.returncode == 1
    assert drawn(repeated) == drawn(hunted)[-1:] != []
    assert "1 failed, 1 passed, 1 deselected" in hunted.stdout


def test_hunt__ends_when_its_minutes_are_over(tmp_path: Path) -> None:
    """A round whose time is over runs no further test, and has not failed."""
    hunted = run(tmp_path, str(RUN), "--minutes=0", "--hypothesis-profile=hunt", limit=0)
    assert (hunted.returncode, drawn(hunted)) == (0, [])
