"""Runs the conformance suite within a test, and says what happened to each of its tests."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import kit_toy_backend
import pytest
from fast_words import with_fast
from hypothesis import Phase, settings

import xbridge
from xbridge._core.protocol import names_written
from xbridge.testing import conformance
from xbridge.testing.conformance._cases import DTYPES_SETTING

if TYPE_CHECKING:
    from collections.abc import Iterator

settings.register_profile(
    "bites",
    max_examples=4,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
)


@pytest.fixture
def few_examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The sweeps find what is planted; Hypothesis only shows that it runs. A sweep has two dtypes."""
    monkeypatch.setenv(DTYPES_SETTING, "complex64,int64")
    before = settings.get_current_profile_name()
    settings.load_profile("bites")
    yield
    settings.load_profile(before)


@pytest.fixture
def every_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweep over every dtype, which finds what is planted in one of them."""
    monkeypatch.delenv(DTYPES_SETTING, raising=False)


class Reports:
    """What happened to each test, seen as a plugin of the run."""

    def __init__(self) -> None:
        self.ended: int = pytest.ExitCode.INTERNAL_ERROR
        self.passed: list[str] = []
        self.failed: dict[str, str] = {}
        self.raised: dict[str, type[BaseException]] = {}
        """How each test failed, unless it passed where it was to fail."""
        self.missed: dict[str, str] = {}
        """What was skipped, or failed as it was expected to."""
        self.astray: dict[str, str] = {}
        """What went wrong anywhere but in a test."""

    def pytest_exception_interact(
        self, node: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport
    ) -> None:
        if call.when == "call" and call.excinfo:
            self.raised[node.name.partition("[")[0]] = call.excinfo.type

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.rpartition("::")[2].partition("[")[0]
        if report.failed:
            kept = self.failed if report.when == "call" else self.astray
            kept[name] = str(report.longrepr)
        elif report.skipped:
            self.missed[name] = str(report.longrepr)
        elif report.when == "call":
            self.passed.append(name)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.astray[report.nodeid] = str(report.longrepr)


def run(backend: str, *options: str, where: str = conformance.__name__) -> Reports:
    """The conformance suite with one backend, or a module of it, in this process."""
    reports = Reports()
    quietly = ("-q", "--capture=no", "--tb=short", "--no-header", "--no-summary", "-p", "no:cacheprovider")
    apart = ("--noconftest",)  # ours chooses a profile of Hypothesis, for the whole process
    soon = ("-p", "no:unraisableexception")  # which looks through all memory at the end of every run
    suite = ("--pyargs", where, f"--xbridge={backend}")
    reports.ended = pytest.main([*suite, *quietly, *apart, *soon, *options], [reports])
    return reports


def register(name: str, **changes: Any) -> None:
    """A backend for tiles, with some words replaced, or left out where there is None instead.

    Each needs a name of its own, for what the kit knows of a backend it keeps by name.
    """
    module = ModuleType(name)
    own = {word: getattr(kit_toy_backend, word) for word in names_written(kit_toy_backend)}
    words = own | {"name": name} | changes
    vars(module).update(with_fast({word: thing for word, thing in words.items() if thing is not None}))
    xbridge.register_backend(name, module, roots=("kit_toy",))
