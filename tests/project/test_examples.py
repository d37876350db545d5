"""The programs of `examples/functions` run, and each asserts its result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fresh import forked

PROGRAMS = sorted(Path(__file__).parents[2].joinpath("examples", "functions").glob("*.py"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_an_example_of_functions_runs(program: Path) -> None:
    for library in ("jax", "torch", "scipy", "sklearn", "distributed"):
        pytest.importorskip(library)
    text = program.read_text("utf-8")
    if "LocalCluster" in text:  # whose processes import the program
        done = subprocess.run([sys.executable, str(program)], stdout=subprocess.PIPE, check=True)
        assert done.stdout
    else:
        text = f"import warnings; warnings.resetwarnings()\n{text}"
        status, lines = forked(text, "torch", "jax.numpy", "scipy.optimize", "sklearn.ensemble")
        assert status == 0
        assert lines
