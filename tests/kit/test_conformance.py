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
from inside import FEATURES
from kit_toy_suite import few_examples, run
from toylib import Toy, gaps, make_backend

import xbridge
from xbridge.testing import conformance
from xbridge.testing._parametrize import MARK, promise

if TYPE_CHECKING:
    from pathlib import Path

    from xbridge.protocol import HostArray

__all__ = ["few_examples"]


@pytest.mark.slow
@pytest.mark.usefixtures("own_registry", "few_examples")
def test_conformance__minimal_backend_passes() -> None:
    """A minimal backend passes, apart from the gaps that it declares."""
    xbridge.register_backend("toylib", make_backend())
    reports = run("toylib")
    assert (reports.failed, reports.astray) == ({}, {})


@pytest.mark.slow
@pytest.mark.usefixtures("own_registry", "few_examples")
def test_conformance__backend_that_copies_host_memory() -> None:
    """A backend that copies all host memory passes the tests of memory, given that it declares so."""

    def from_numpy(host: HostArray) -> Toy:
        return Toy(np.array(host, host.dtype.newbyteorder("=")))

    missing = gaps("readonly", "sharing")
    module = make_backend(gaps=missing, assumes_immutable=False, from_numpy=from_numpy)
    xbridge.register_backend("toylib", module)
    reports = run("toylib", "-k=memory")
    assert (reports.failed, reports.astray) == ({}, {})
    assert "test_dense_host_memory_is_shared" in reports.missed


def test_conformance__every_feature_has_a_test() -> None:
    """Each feature that a backend may lack is promised by some test of the suite."""
    tests = [vars(conformance)[name] for name in conformance.__all__]
    marked = {mark.args[0] for test in tests for mark in getattr(test, "pytestmark", ()) if mark.name == MARK}
    assert marked == set(FEATURES)
    assert len(tests) == len(set(conformance.__all__))


def test_promise__unknown_feature() -> None:
    """A test cannot promise a feature that does not exist."""
    with pytest.raises(KeyError, match="speed"):
        promise("speed")


@pytest.mark.slow
@pytest.mark.parametrize("importer", ["the package", "one line in a test file"])
def test_conformance__runs_from_another_project(importer: str, tmp_path: Path) -> None:
    """Another project can run the suite by --pyargs or by an import in a test file."""
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
    assert "1 xfailed" in done.stdout
