"""Guests of the core: packages that can be taken out of a checkout, and the core still works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns, rmtree

import pytest

import xbridge

TESTS = Path(__file__).parents[1]
GUESTS = {"files": (), "functions": ("-k", "not aligned"), "testing": ("-o", "xbridge_fixtures=false")}
"""Each guest, and the options of pytest by which no test uses it."""

CORE = [f"{folder}/test_*.py" for folder in ("core", "plan", "observe", "tree", "transfer", "host")]
CORE += ["engine/test_nested.py"]
"""The tests of the core. Some are written with a guest."""


def uses(guest: str, path: Path) -> bool:
    """Return True if a test or a helper names a guest, or a helper that it imports does."""
    text = path.read_text(encoding="utf-8")
    names = re.findall(r"^ *(?:from|import) (\w+)", text, re.MULTILINE)
    helpers = [TESTS / "helpers" / f"{name}.py" for name in names]
    return f"xbridge.{guest}" in text or any(uses(guest, each) for each in helpers if each.exists())


def run_without(guest: str, copy: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with a copy of xbridge that lacks a package."""
    copytree(Path(xbridge.__file__).parent, copy / "xbridge", ignore=ignore_patterns("__pycache__"))
    rmtree(copy / "xbridge" / guest)
    # Polars sets this variable when it is imported, and a test of the copy may not change what it found.
    inherited = {name: text for name, text in os.environ.items() if name != "_RJEM_MALLOC_CONF"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=TESTS.parent,
        env={**inherited, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=False,
    )


CONVERT = """
import numpy as np, xbridge
assert xbridge.__file__.startswith({copy!r})
assert xbridge.to_numpy(xbridge.asarray([1, 2], dtype="float32")).dtype == "float32"
assert len(xbridge.align(np.ones(2), [1, 2])) == 2
try:
    __import__("xbridge.{guest}")
except ModuleNotFoundError:
    print("converted without it")
"""


@pytest.mark.parametrize("guest", GUESTS)
def test_guest__conversions_work_without_it(guest: str, tmp_path: Path) -> None:
    """A copy of xbridge without a guest is imported and converts."""
    done = run_without(guest, tmp_path, "-c", CONVERT.format(copy=str(tmp_path), guest=guest))
    assert (done.stdout, done.stderr) == ("converted without it\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("guest", GUESTS)
def test_guest__tests_of_the_core_pass_without_it(guest: str, tmp_path: Path) -> None:
    """Tests of the core that are not written with a guest pass in a copy of xbridge without it."""
    paths = [path for pattern in CORE for path in sorted(TESTS.glob(pattern))]
    some = ("-m", "not slow", *GUESTS[guest], *[str(path) for path in paths if not uses(guest, path)])
    done = run_without(guest, tmp_path, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *some)
    assert done.returncode == 0, done.stdout[-2000:]
