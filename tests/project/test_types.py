"""The types of results, as a type checker reads them for users with the other libraries or without them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from typing import TYPE_CHECKING

import array_api_compat
import numpy as np
import pytest

import xbridge

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
from typing import Any, assert_type
import numpy as np
import xbridge
from xbridge.testing import assert_contract, contract

Host = np.ndarray[Any, np.dtype[Any]]
x = np.ones(2)
options: dict[str, Any] = {}
assert_type(xbridge.to_numpy(x), Host)
assert_type(xbridge.to_backend(x, "numpy", dtype="float32"), Host)
assert_type(xbridge.to_torch(x, device="cpu"), Tensor)
assert_type(xbridge.to_backend(x, backend="torch", copy=True), Tensor)
assert_type(xbridge.asarray([1.0], backend="torch", requires_grad=True), Tensor)
assert_type(xbridge.unsafe_share(x, "torch"), Tensor)
assert_type(xbridge.to_jax(x, grad="detach"), JaxArray)
assert_type(xbridge.to_backend(x, "jax"), JaxArray)
assert_type(xbridge.to_backend(x, "dask"), DaskArray)
assert_type(xbridge.to_backend(x, "cupy"), Any)
assert_type(xbridge.to_backend(x, np), Any)
assert_type(xbridge.asarray(x, dtype=float), Any)
assert_type(xbridge.asarray(x, **options), Any)
assert_type(xbridge.to_numpy(x), int)  # wrong
xbridge.to_backend(x, "torch", copi=True)  # wrong
xbridge.to_backend(x, "torch", grad="cut")  # wrong
xbridge.unsafe_share(x)  # wrong
contract(options["strategy"], dtype="kept", ulp=24, raises=ValueError)
contract(options["strategy"], dtpye="kept")  # wrong
contract(options["strategy"], ulp="24")  # wrong
assert_contract(np.sin, x, ulp="24")  # wrong
"""
"""A program of a user, before which the names of the libraries' types are to be defined."""

INSTALLED = """
from torch import Tensor
from jax import Array as JaxArray
from dask.array import Array as DaskArray
"""
MISSING = """
from typing import Any
Tensor = Any
JaxArray = Any
DaskArray = Any
"""


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has xbridge and the libraries that it requires, and no others."""
    folder = tmp_path_factory.mktemp("env")
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    for module in (np, array_api_compat, xbridge):
        (package,) = module.__path__
        (site / module.__name__).symlink_to(package)
    return folder / "bin" / "python"


def wrong_lines(program: str) -> set[int]:
    return {n for n, line in enumerate(program.splitlines(), 1) if line.endswith("# wrong")}


def errors(checker: str, program: str, interpreter: Path, others: Path) -> set[int]:
    """Return the lines of a program in which a checker finds an error."""
    pytest.importorskip(checker)
    folder = interpreter.parents[1]
    file, config = folder / "program.py", folder / "pyrightconfig.json"
    file.write_text(program, "utf-8")
    config.write_text(f'{{"include": ["program.py"], "extraPaths": ["{others}"]}}', "utf-8")
    options: dict[str, list[str | Path]] = {
        "mypy": ["--strict", "--python-executable", interpreter, "--cache-dir", folder / "cache", file],
        "pyright": ["--pythonpath", interpreter, "--project", config],
    }
    done = subprocess.run(
        [sys.executable, "-m", checker, *options[checker]],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, "MYPYPATH": str(others)},
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return {int(n) for n in re.findall(r"program\.py:(\d+):(?:\d+ -)? error", done.stdout)}


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="the environment is made with links")
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
@pytest.mark.parametrize("types", [INSTALLED, MISSING], ids=["installed", "missing"])
def test_types__checkers_find_exactly_the_wrong_calls(
    checker: str, types: str, interpreter: Path, tmp_path: Path
) -> None:
    """Type checkers know the types of installed libraries, treat others as Any and find wrong calls."""
    for path, name in (("torch", "Tensor"), ("jax", "Array"), ("dask/array", "Array")):
        if types == INSTALLED:
            package = tmp_path / path
            package.mkdir(parents=True)
            (package.parent / "__init__.py").touch()
            (package / "__init__.py").write_text(f"class {name}: ...\n", "utf-8")
    program = types + PROGRAM
    assert errors(checker, program, interpreter, tmp_path) == wrong_lines(program)
