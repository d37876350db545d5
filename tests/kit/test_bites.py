"""The conformance suite bites: a backend without a fault passes, and every planted fault is noticed.

Each fault is tried alone, by the test that promises what it breaks. It counts as noticed if that test ran,
and failed: an error on the way to it does not count.
"""

from __future__ import annotations

import pytest
from kit_toy_faults import FAULTS as BY_TEST
from kit_toy_faults import Changes
from kit_toy_suite import every_dtype, few_examples, register, run

import xbridge
from xbridge.testing import conformance

__all__ = ["every_dtype", "few_examples"]

pytestmark = pytest.mark.usefixtures("own_registry", "few_examples", "every_dtype")

FAULTS = [(test, changes) for test, faults in BY_TEST.items() for changes in faults]
"""The tests that must notice a fault, and the words to plant."""

RAISED: dict[str, type[Exception]] = {
    "test_the_fast_path_declines_unsupported_arrays": TypeError,
    "test_an_array_keeps_shared_host_memory_alive": BufferError,
    "test_dtype_name_reads_dtypes_of_numpy_or_returns_none": TypeError,
    "test_unsupported_arrays_have_an_owner_array_info_and_a_reason": TypeError,
}
"""Where a test may fail by what the faulty backend raises, and not by a check or a refusal."""


@pytest.mark.slow
def test_conformance__correct_backend_passes() -> None:
    """A backend without a fault passes the suite, including every test that a fault is planted for."""
    register("tiles")
    reports = run("tiles")
    assert reports.failed == {}
    assert reports.astray == {}
    assert BY_TEST.keys() <= set(reports.passed)


@pytest.mark.slow
@pytest.mark.unmeasured
@pytest.mark.parametrize(("test", "changes"), FAULTS, ids=[f"{test}: {', '.join(f)}" for test, f in FAULTS])
def test_conformance__notices_each_planted_fault(test: str, changes: Changes) -> None:
    """A planted fault fails the test that promises what it breaks, and no other."""
    name = f"tiles-{FAULTS.index((test, changes))}"
    register(name, **changes)
    reports = run(name, "-k", test, where=vars(conformance)[test].__module__)
    assert reports.astray == {}
    assert list(reports.failed) == [test], f"passed: {reports.passed}"
    expected = AssertionError, xbridge.XBridgeError, pytest.fail.Exception, RAISED.get(test, AssertionError)
    assert issubclass(reports.raised.get(test, AssertionError), expected), reports.failed[test]
