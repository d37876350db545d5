"""The installed wheel where programs are shipped: frozen, in a zip file, optimized, and read-only.

`make test-applications` runs them in an environment with the wheel. There, the checkout is not importable.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution, files
from pathlib import Path

import xbridge

INSTALLED = Path(xbridge.__file__).parent
CONVERSIONS = """
import numpy as np, xbridge

def check(condition):  # an assertion would be gone under -OO
    if not condition:
        raise SystemExit("wrong")

a = np.arange(3.0)
check(xbridge.to_numpy(a) is a and xbridge.asarray([1, 2]).tolist() == [1, 2])
check(xbridge.to_numpy(a, dtype="bfloat16").dtype.name == "bfloat16")
check(xbridge.tree.to_numpy({"a": [a]})["a"][0] is a)
check(xbridge.array_namespace(a).__name__ == "array_api_compat.numpy")
"""
PROGRAM = f"""{CONVERSIONS}
try:
    xbridge.to_backend(a, "torch")
except xbridge.MissingLibraryError as error:
    check("torch is not installed" in str(error))
else:
    raise SystemExit("torch was found")
"""
STRICT = """
import array_api_strict as strict

b = strict.asarray([1.0, 2.0])
check(xbridge.backend_of(b) == "array_api_strict" and xbridge.to_numpy(b).tolist() == [1.0, 2.0])
check(xbridge.array_namespace(b) is strict)
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a program that must succeed, and return its output."""
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_wheel__contains_what_a_user_needs() -> None:
    """The wheel has the package, the plugin, the marker of types and metadata, nothing else."""
    listed = {Path(str(file)) for file in files("xbridge-array") or ()}
    kept = {path for path in listed if "__pycache__" not in path.parts and ".." not in path.parts}
    assert {path.parts[0].partition("-")[0] for path in kept} == {
        "xbridge",
        "xbridge_array",
        "_xbridge_pytest.py",
    }
    others = {str(path) for path in kept if path.parts[0] == "xbridge" and path.suffix != ".py"}
    assert others == {"xbridge/py.typed"}
    assert {path.parts[1] for path in kept if path.parts[0] == "xbridge" and len(path.parts) > 2} == {
        *("_core", "_engine", "_host", "_observe", "_plan"),
        *("_registry", "_transfer", "backends", "files", "functions", "testing", "tree"),
    }


def test_wheel__version_is_that_of_the_package() -> None:
    """The distribution, the package and the command line have one version."""
    version = distribution("xbridge-array").version
    assert xbridge.__version__ == version
    assert version in run(sys.executable, "-m", "xbridge", "--version", cwd=INSTALLED.parent)


def test_pyinstaller__frozen_program_finds_backends(tmp_path: Path) -> None:
    """A frozen program has the backends if the submodules are collected, as the documents say."""
    (tmp_path / "program.py").write_text(CONVERSIONS + STRICT)
    collected = ("--collect-submodules", "xbridge", "--collect-submodules", "array_api_compat")
    options = ("--log-level", "ERROR", *collected)
    run(sys.executable, "-m", "PyInstaller", *options, "program.py", cwd=tmp_path)
    run(tmp_path / "dist" / "program" / "program", cwd=tmp_path)


def test_zipimport__package_runs_from_a_zip_file(tmp_path: Path) -> None:
    """The package converts when it is imported from a zip file."""
    with zipfile.ZipFile(tmp_path / "packages.zip", "w") as archive:
        for path in INSTALLED.rglob("*.py"):
            archive.write(path, path.relative_to(INSTALLED.parent))
    check = f"import xbridge; assert 'packages.zip' in xbridge.__file__\n{PROGRAM}"
    run(sys.executable, "-c", f"import sys; sys.path.insert(0, 'packages.zip')\n{check}", cwd=tmp_path)


def test_optimized__program_runs_without_docstrings_and_assertions(tmp_path: Path) -> None:
    """The package converts under `python -OO`."""
    run(sys.executable, "-OO", "-W", "error", "-c", PROGRAM, cwd=tmp_path)


def test_read_only__package_runs_where_nothing_can_be_written(tmp_path: Path) -> None:
    """The package converts from a folder in which no bytecode can be stored."""
    site = tmp_path / "site"
    shutil.copytree(INSTALLED, site / "xbridge", ignore=shutil.ignore_patterns("__pycache__"))
    for path in [*site.rglob("*"), site]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        run(sys.executable, "-c", f"import sys; sys.path.insert(0, {str(site)!r})\n{PROGRAM}", cwd=tmp_path)
    finally:
        for path in [site, *site.rglob("*")]:
            path.chmod(0o755)
