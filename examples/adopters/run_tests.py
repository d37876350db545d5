"""Run the tests of the projects, before and after their conversions are replaced by xbridge.

The tests come with the source distribution of a project, which pip downloads from the index, or from its
repository. Each project's tests run twice, each time in a process of their own. The table shows how many
of them passed. The exit status is 1 if a test passes before and fails after.

`python run_tests.py autoray pot` runs these projects. `--tests gymnasium=PATH` reads the tests from a
checkout.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent


class Project(NamedTuple):
    """A project, its replacement, and those of its tests that convert arrays."""

    module: str
    """The module of this folder that has `install`."""
    folder: str
    """The folder with the tests in the source."""
    tests: tuple[str, ...]
    """What pytest gets, relative to the source."""
    repository: str = ""
    """The repository and the commit, if the source distribution has no such tests."""


PROJECTS = {
    "gymnasium": Project(
        "gymnasium_array_conversion",
        "tests",
        (
            "tests/wrappers/test_array_conversion.py",
            "tests/wrappers/test_jax_to_numpy.py",
            "tests/wrappers/test_jax_to_torch.py",
            "tests/wrappers/test_numpy_to_torch.py",
            "tests/wrappers/vector/test_array_conversion.py",
        ),
        "https://github.com/Farama-Foundation/Gymnasium 3f0476a8cc224dcce2167cc4b6971ae0f04d5cfc",
    ),
    "autoray": Project("autoray_conversion", "tests", ("tests/test_autoray.py",)),
    "pot": Project(
        "pot_backend",
        "test",
        ("test/test_backend.py", "test/test_utils.py", "test/test_ot.py"),
        "https://github.com/PythonOT/POT aed0120242e86ab29e630fee59593ee99f416d97",
    ),
}

RUN = """
import importlib, sys, pytest
if sys.argv[1]:
    importlib.import_module(sys.argv[1]).install()
sys.exit(pytest.main(sys.argv[2:]))
"""


def main() -> None:
    """Run the tests of the projects, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "projects", nargs="*", metavar="PROJECT", help=f"of {', '.join(PROJECTS)}; default: all"
    )
    parser.add_argument("--tests", action="append", default=[], metavar="PROJECT=PATH", help="use a checkout")
    asked = parser.parse_args()
    given = dict(text.split("=", 1) for text in asked.tests)
    regressions = 0
    print("| project | passed before | passed after | fixed | new failures |\n|---|---|---|---|---|")
    for name in asked.projects or PROJECTS:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(given[name]).resolve() if name in given else fetch(name, Path(folder))
            before, after = (outcomes(name, source, install=install) for install in (False, True))
        fixed, broken = after - before, before - after
        regressions += len(broken)
        counts = " | ".join(str(len(tests)) for tests in (before, after, fixed, broken))
        print(f"| {name} {version(name)} | {counts} |", flush=True)
        for test in sorted(broken):
            print(f"new failure: {test}", file=sys.stderr)
    sys.exit(regressions > 0)


def fetch(name: str, folder: Path) -> Path:
    """Download the source of a project in its installed version, and return its folder."""
    project = PROJECTS[name]
    if project.repository:
        url, commit = project.repository.split()
        for command in ("init -q", f"fetch -q --depth=1 {url} {commit}", "checkout -q FETCH_HEAD"):
            subprocess.run(["git", *command.split()], cwd=folder, check=True)
        return folder
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", name, "-d", folder]
    subprocess.run([*pip, f"{name}=={version(name)}"], check=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if path.is_dir())


def outcomes(name: str, source: Path, *, install: bool) -> set[str]:
    """Run the tests of a project, and return the names of those that passed."""
    project = PROJECTS[name]
    with tempfile.TemporaryDirectory() as folder:
        # The folder has the tests alone, so that they import the installed package.
        shutil.copytree(source / project.folder, Path(folder) / project.folder)
        options = ["-q", "-rp", "-p", "no:cacheprovider", "-p", "no:randomly", "--tb=no", "-W", "ignore"]
        done = subprocess.run(
            [sys.executable, "-c", RUN, project.module if install else "", *options, *project.tests],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    passed = set(re.findall(r"^PASSED (.+)$", done.stdout, re.MULTILINE))
    if not passed:
        sys.exit(f"{name}: no test passed\n{done.stdout}\n{done.stderr}")
    return passed


if __name__ == "__main__":
    main()
