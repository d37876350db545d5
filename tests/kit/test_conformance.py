"""The suite from outside: the smallest backends pass it, and whoever has the package can run it.

What it notices is held by `test_bites.py`; that NumPy, torch and the strict companions pass, by the suite
itself, which is collected with the examples of the package.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from kit_toy_suite import few_examples, register, run
from toylib import Toy, gaps, make_backend

import xbridge
from xbridge._core.protocol import FEATURES
from xbridge.testing import conformance
from xbridge.testing._gaps import MARK, promise

if TYPE_CHECKING:
    from pathlib import Path

    from xbridge._core.protocol import HostArray

__all__ = ["few_examples"]


@pytest.mark.usefixtures("own_registry", "few_examples")
def test_the_smallest_toy_keeps_every_promise_but_those_that_it_names() -> None:
    xbridge.register_backend("toylib", make_backend())
    reports = run("toylib")
    assert (reports.failed, reports.astray) == ({}, {})


@pytest.mark.usefixtures("own_registry", "few_examples")
def test_a_toy_that_never_looks_at_host_memory_keeps_its_word_about_memory() -> None:
    def from_numpy(host: HostArray) -> Toy:
        return Toy(np.array(host, host.dtype.newbyteorder("=")))

    missing = gaps("readonly", "sharing")
    module = make_backend(gaps=missing, assumes_immutable=False, from_numpy=from_numpy)
    xbridge.register_backend("toylib", module)
    reports = run("toylib", "-k=memory")
    assert (reports.failed, reports.astray) == ({}, {})
    assert "test_dense_host_memory_is_shared" in reports.missed


@pytest.mark.usefixtures("own_registry")
def test_a_backend_without_a_verb_is_not_run_and_says_which(capsys: pytest.CaptureFixture[str]) -> None:
    register("tiles-misspelt", materialize=None, materialise=lambda x: x)
    reports = run("tiles-misspelt")
    assert reports.ended == pytest.ExitCode.USAGE_ERROR
    assert "defines materialise; try materialize" in capsys.readouterr().err


def test_every_promise_that_may_be_broken_has_a_test() -> None:
    tests = [vars(conformance)[name] for name in conformance.__all__]
    marked = {mark.args[0] for test in tests for mark in getattr(test, "pytestmark", ()) if mark.name == MARK}
    assert marked == set(FEATURES)
    assert len(tests) == len(set(conformance.__all__))


def test_an_unknown_promise_cannot_be_marked() -> None:
    with pytest.raises(KeyError, match="speed"):
        promise("speed")


@pytest.mark.parametrize("importer", ["the package", "one line in a test file"])
def test_another_project_runs_it_in_its_own_folder(importer: str, tmp_path: Path) -> None:
    where = ["--pyargs", "xbridge.testing.conformance"]
    if importer == "one line in a test file":
        (tmp_path / "test_mine.py").write_text("from xbridge.testing.conformance import *\n")
        where = ["test_mine.py"]
    options = ["--xbridge=numpy", "-k", "stacked or leaf", "-W", "error", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *where, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 xfailed" in done.stdout
