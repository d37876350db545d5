"""The programs of `examples/functions` run, and each asserts its result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = sorted(Path(__file__).parents[2].joinpath("examples", "functions").glob("*.py"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_an_example_of_functions_runs(program: Path) -> None:
    for library in ("jax", "torch", "scipy", "sklearn", "distributed"):
        pytest.importorskip(library)
    done = subprocess.run([sys.executable, str(program)], stdout=subprocess.PIPE, check=True)
    assert done.stdout
