"""A test with a backend has no deadline, unless the user gives one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kit_projects import Run

pytest_plugins = ["kit_projects"]


@pytest.mark.slow  # two runs of pytest, in which Hypothesis repeats what is late
def test_plugin__lifts_the_deadline_of_tests_with_a_backend(run: Run) -> None:
    """Tests with a backend, contracts included, have no default deadline; one that is given stays."""
    test = """
        import time
        from itertools import count

        from hypothesis import given, settings, strategies as st
        from xbridge.testing import contract

        settings.load_profile("default")

        @pytest.fixture(autouse=True)
        def slow(monkeypatch):
            seconds = count()
            monkeypatch.setattr(time, "perf_counter", lambda: float(next(seconds)))

        @given(n=st.just(1))
        def test_x(backend, n): pass

        SEEN = []

        @settings(max_examples=3)
        @given(n=st.integers())
        def test_few(backend, n):
            SEEN.append(n)
            assert len(SEEN) <= 3

        @settings(deadline=100)
        @given(n=st.just(1))
        def test_own(backend, n): pass

        @given(n=st.just(1))
        def test_y(n): pass

        @contract(st.just(1))
        def test_z(n): pass
    """
    run(test, "--xbridge=numpy").assert_outcomes(passed=3, failed=2)
    quick = 'register_profile("quick", deadline=100); settings.load_profile("quick")'
    run(test.replace('load_profile("default")', quick), "--xbridge=numpy").assert_outcomes(failed=5)


def test_plugin__methods_run_with_every_library(run: Run) -> None:
    """Hypothesis accepts that a test method runs on a new instance for each library."""
    test = """
        from hypothesis import given, strategies as st

        class TestX:
            @given(n=st.just(1))
            def test_x(self, backend, n): pass
    """
    run(test, "--xbridge=numpy,numpy_readonly").assert_outcomes(passed=2)
