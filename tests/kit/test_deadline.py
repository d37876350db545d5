"""A test with a backend has no deadline, unless the user gives one."""

from __future__ import annotations

import time
from contextlib import nullcontext
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.errors import DeadlineExceeded

from _xbridge_pytest import _lift_deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kit_projects import Run

pytest_plugins = ["kit_projects"]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hypothesis' own profile, and a clock by which every example takes a second or more."""
    before, seconds = settings.get_current_profile_name(), count()
    settings.load_profile("default")
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(seconds)))
    yield
    settings.load_profile(before)


def example() -> Callable[[], None]:
    @given(st.just(1))
    def test(n: int) -> None:
        pass

    return test


settings.register_profile("quick", deadline=100)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("profile", "options", "passes"),
    [
        ("default", {}, True),
        ("default", {"max_examples": 3}, True),
        ("default", {"deadline": 100}, False),
        ("quick", {}, False),
    ],
)
def test_lift_deadline__default_alone(profile: str, options: dict[str, Any], *, passes: bool) -> None:
    """The default deadline is lifted, and not that of a test or of a profile; other settings stay."""
    settings.load_profile(profile)
    with pytest.raises(DeadlineExceeded):
        settings(**options)(example())()
    test = settings(**options)(example())
    _lift_deadline(test)
    with nullcontext() if passes else pytest.raises(DeadlineExceeded):
        test()


def test_plugin__lifts_the_deadline_of_tests_with_a_backend(run: Run) -> None:
    """Tests with a backend, contracts included, have no deadline; other tests keep theirs."""
    test = """
        import time
        from itertools import count

        import pytest
        from hypothesis import given, settings, strategies as st
        from xbridge.testing import contract

        settings.load_profile("default")

        @pytest.fixture(autouse=True)
        def slow(monkeypatch):
            seconds = count()
            monkeypatch.setattr(time, "perf_counter", lambda: float(next(seconds)))

        @given(n=st.just(1))
        def test_x(backend, n): pass

        @given(n=st.just(1))
        def test_y(n): pass

        @contract(st.just(1))
        def test_z(n): pass
    """
    run(test, "--xbridge=numpy", "-k", "test_x or test_z").assert_outcomes(passed=2, deselected=1)
    run(test, "--xbridge=numpy", "-k", "test_y").assert_outcomes(failed=1, deselected=2)


def test_plugin__methods_run_with_every_library(run: Run) -> None:
    """Hypothesis accepts that a test method runs on a new instance for each library."""
    test = """
        from hypothesis import given, strategies as st

        class TestX:
            @given(n=st.just(1))
            def test_x(self, backend, n): pass
    """
    run(test, "--xbridge=numpy,numpy_readonly").assert_outcomes(passed=2)
