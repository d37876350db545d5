"""The conformance suite on CuPy's backend over a stub of CuPy: what it decides, not what CuPy does.

On a machine with a GPU the suite runs on CuPy itself, as on any backend that is available.
"""

from __future__ import annotations

import pytest
import stub_cupy
from kit_toy_suite import few_examples, run

__all__ = ["few_examples"]

NEEDS_A_NAMESPACE = {
    "test_the_library_cannot_make_its_unsupported_dtypes",
    "test_the_namespace_makes_arrays_of_the_library",
}
"""What asks for more of the array API than the stub has."""


@pytest.mark.slow
@pytest.mark.usefixtures("own_registry", "few_examples")
def test_conformance__cupy_fails_only_the_named_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy's backend keeps every promise except those that need a namespace."""
    stub_cupy.install(monkeypatch, stub_cupy.module())
    reports = run("cupy")
    assert set(reports.failed) == NEEDS_A_NAMESPACE, reports.failed
    assert reports.astray == {}
    assert len(reports.passed) > 70
