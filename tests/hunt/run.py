"""A search for failures with random examples of Hypothesis, within a number of minutes.

    python tests/hunt/run.py --minutes 10      rounds with other seeds, until the time is over or a test fails
    python tests/hunt/run.py --seed 1234       the round of this seed again, whole
    python tests/hunt/run.py --minutes 10 -x   other options are pytest's

A round runs all tests that draw examples once. The examples and the order of the tests follow from its seed,
and each round is a process of its own. So a seed repeats a failure, one of an earlier test's state too.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time

import pytest


class Round:
    """A plugin of pytest that runs what draws examples, in the order of a seed, until a time."""

    def __init__(self, seed: int, end: float) -> None:
        self.seed = seed
        self.end = end

    @pytest.hookimpl(trylast=True)  # Hypothesis marks its tests before
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        drawing = [item for item in items if _draws(item)]
        config.hook.pytest_deselected(items=[item for item in items if not _draws(item)])
        random.Random(self.seed).shuffle(drawing)
        items[:] = drawing

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> bool | None:
        """Pass over what remains when the time is over."""
        return True if time.time() > self.end else None


def _draws(item: pytest.Item) -> bool:
    """Return True for a test of Hypothesis, and for those of pairs of libraries, which call Hypothesis."""
    return item.get_closest_marker("hypothesis") is not None or item.path.name == "test_pairs.py"


def run_round(seed: int, end: float, options: list[str]) -> int:
    """Run one round in this process."""
    return pytest.main(["-q", f"--hypothesis-seed={seed}", *options], [Round(seed, end)])


def main() -> int:
    """Run rounds in processes of their own. Return the status of the one that fails."""
    parser = argparse.ArgumentParser(description="search for failures with random examples")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="the time for all rounds")
    parser.add_argument("--seed", type=int, help="run the round of this seed alone")
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)  # a round's own process
    asked, options = parser.parse_known_args()
    if asked.until is not None:
        return run_round(asked.seed, asked.until, options)
    end = time.time() + 60 * asked.minutes
    while True:
        seed = random.SystemRandom().randrange(2**32) if asked.seed is None else asked.seed
        sys.stderr.write(f"seed {seed}\n")
        here = [sys.executable, __file__, f"--seed={seed}", f"--until={end}"]
        status = subprocess.run([*here, *options], check=False).returncode
        if status:
            sys.stderr.write(f"this round failed; to repeat it: make hunt SEED={seed}\n")
            return status
        if asked.seed is not None or time.time() > end:
            return 0


if __name__ == "__main__":
    sys.exit(main())
