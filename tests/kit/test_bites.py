"""The conformance suite bites: a backend without a fault passes, and every planted fault is noticed.

Each fault is tried alone, by the test that promises what it breaks. It counts as noticed if that test ran,
and failed: an error on the way to it does not count.
"""

from __future__ import annotations

import pytest
from kit_toy_faults import FAULTS as BY_TEST
from kit_toy_suite import every_dtype, few_examples, register, run

import xbridge
from xbridge.testing import conformance

__all__ = ["every_dtype", "few_examples"]

pytestmark = pytest.mark.usefixtures("own_registry", "few_examples", "every_dtype")

FAULTS = {fault: (test, changes) for test, faults in BY_TEST.items() for fault, changes in faults.items()}
"""What is wrong -> the test that must notice it, and the words to plant."""


RAISED: dict[str, type[Exception]] = {
    "the hot path raises for what must not leave": TypeError,
    "memory of the host is held forever": BufferError,
    "a dtype object of NumPy is an error": TypeError,
    "a refusal is raised": TypeError,
}
"""Where a test fails by what the faulty backend raises, and not by a check or a refusal."""


@pytest.mark.slow
def test_conformance__correct_backend_passes() -> None:
    """A backend without a fault passes the suite, including every test that a fault is planted for."""
    register("tiles")
    reports = run("tiles")
    assert reports.failed == {}
    assert reports.astray == {}
    assert {test for test, _ in FAULTS.values()} <= set(reports.passed)


@pytest.mark.slow
@pytest.mark.unmeasured
@pytest.mark.parametrize("fault", FAULTS)
def test_conformance__notices_each_planted_fault(fault: str) -> None:
    """A planted fault fails the test that promises what it breaks, and no other."""
    test, changes = FAULTS[fault]
    name = f"tiles-{list(FAULTS).index(fault)}"
    register(name, **changes)
    reports = run(name, "-k", test, where=vars(conformance)[test].__module__)
    assert reports.astray == {}
    assert list(reports.failed) == [test], f"passed: {reports.passed}"
    expected = RAISED.get(fault, (AssertionError, xbridge.XBridgeError, pytest.fail.Exception))
    assert issubclass(reports.raised.get(test, AssertionError), expected), reports.failed[test]
