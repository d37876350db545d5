"""The programs of `examples/functions` run, and each asserts its result."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from fresh import forked

PROGRAMS = sorted(Path(__file__).parents[2].joinpath("examples", "functions").glob("*.py"))


def libraries(program: Path) -> set[str]:
    """The packages that a program imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(program.read_text("utf-8"))):
        names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found.update(name.partition(".")[0] for name in names)
    return found


@pytest.mark.slow  # each trains or optimizes something for seconds
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_examples__functions_run(program: Path) -> None:
    """Each program in `examples/functions` runs without an error."""
    for library in libraries(program):
        if find_spec(library) is None:  # an import may take seconds
            pytest.skip(f"it needs {library}")
    text = program.read_text("utf-8")
    if "LocalCluster" in text:  # whose processes import the program
        done = subprocess.run([sys.executable, str(program)], stdout=subprocess.PIPE, check=True)
        assert done.stdout
    else:
        text = f"import warnings; warnings.resetwarnings()\n{text}"
        status, lines = forked(text, "torch", "jax.numpy", "scipy.optimize", "sklearn.ensemble")
        assert status == 0
        assert lines
