"""The page about testing one's own library: its first block runs as it stands, the others are the example's.

And the example's tests find a mistake that is made in its package, where the page says that they do.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import xbridge

pytest.importorskip("array_api_strict")

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "downstream"
PAGE = (ROOT / "docs" / "test-your-library.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python no-run\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
(CONFIGURATION,) = re.findall(r"^```toml\n(\[tool.pytest.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
LIBRARIES = "numpy", "array_api_strict", "numpy_readonly"


def run(project: Path, config: pytest.Config, *options: str) -> str:
    """What pytest says at the end of a run in a project of somebody else's."""
    load = () if config.pluginmanager.has_plugin("xbridge") else ("-p", "_xbridge_pytest")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *load, *options],
        cwd=project,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(EXAMPLE / "src"), *sys.path])},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.stdout


@pytest.mark.slow  # a run of pytest with every library
def test_test_your_library__first_example_covers_every_library(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """The five lines of the first example run once for each installed library."""
    first = BLOCKS[0]
    lines = [line for line in first.splitlines() if line and not line.startswith("from ")]
    assert len(lines) == 5
    (tmp_path / "test_spectra.py").write_text(first, "utf-8")
    (tmp_path / "pyproject.toml").write_text(CONFIGURATION, "utf-8")
    said = run(tmp_path, pytestconfig)
    import_module("xbridge.testing")  # which registers one of them
    installed = list(filter(xbridge.is_available, xbridge.known_backends()))
    assert {*installed} >= {*LIBRARIES}
    for library in installed:
        assert f"test_spectra.py::test_softmax_ignores_a_shift[{library}] PASSED" in said
    assert f"{len(installed)} passed" in said


@pytest.mark.parametrize("number", [n for n, block in enumerate(BLOCKS) if n and "def " in block])
def test_test_your_library__examples_are_in_the_project(number: int) -> None:
    """The other examples on the page are taken from `examples/downstream`."""
    files = [path.read_text("utf-8") for path in (EXAMPLE / "tests").glob("*.py")]
    assert any(BLOCKS[number] in text for text in files)


@pytest.mark.slow  # two runs of pytest
def test_test_your_library__finds_a_missing_device(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Without its `device=` argument the example fails on a CPU with array_api_strict."""
    project = tmp_path / "downstream"
    shutil.copytree(EXAMPLE, project, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    module = project / "src" / "spectra" / "__init__.py"
    right = module.read_text("utf-8")
    assert right.count(", device=device(x)") == 1
    module.write_text(right.replace(", device=device(x)", ""), "utf-8")
    ends = [
        run(project, pytestconfig, f"--xbridge={library}", "-k", "is_where_and_what").splitlines()[-1]
        for library in ("numpy", "array_api_strict")
    ]
    assert " 4 passed," in ends[0]
    assert " 1 failed, 3 passed," in ends[1]
