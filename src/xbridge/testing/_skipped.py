"""A plugin of pytest that finds backends with which no test of a run ran, although the run names them.

A library may lack what every test needs. Such a run would pass, and nothing would have been tested.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

_KEY = "xbridge_skipped"
"""The key under which a worker of pytest-xdist sends its counts."""


class SkippedBackends:
    """Counts of the tests of each backend: all, and those that were skipped.

    Parameters
    ----------
    chosen : iterable of str
        The words that selected the backends and devices of the run.
    """

    def __init__(self, chosen: Iterable[str]) -> None:
        self._chosen = tuple(chosen)
        self._words: dict[str, str] = {}
        self._all: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()
        self._deselected: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the tests that are to run."""
        self._words = {item.nodeid: _word(item) for item in session.items if _word(item)}
        self._all = Counter(self._words.values())

    def pytest_deselected(self, items: Iterable[pytest.Item]) -> None:
        """Remember the backends of tests that the caller leaves out."""
        self._deselected.update(map(_word, items))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test that was skipped. A test that fails as expected has run."""
        if report.nodeid in self._words and report.skipped and not hasattr(report, "wasxfail"):
            self._skipped[self._words[report.nodeid]] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that would pass although every test with a backend was skipped."""
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:  # this process is a worker of pytest-xdist
            output[_KEY] = (dict(self._all), dict(self._skipped), list(self._deselected))
        elif session.exitstatus == pytest.ExitCode.OK and self._is_empty() and _runs_tests(session.config):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add the counts of a worker. Every worker has collected all tests."""
        found, skipped, deselected = getattr(node, "workeroutput", {}).get(_KEY, ({}, {}, ()))
        self._all |= Counter(found)
        self._skipped += Counter(skipped)
        self._deselected.update(deselected)

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        """Name the backends without a test that ran, in one line."""
        lacking = [word for word in self._chosen if word not in self._deselected and not self._ran(word)]
        if not lacking or not _runs_tests(config) or not (self._all or config.getoption("xbridge")):
            return
        counts = [f"{word} ({self._all[word]} skipped)" if self._all[word] else word for word in lacking]
        said = f"{'failed: ' if self._is_empty() else ''}no test ran with {', '.join(counts)}"
        hint = "-rs, which shows why" if self._all else "naming backend among the arguments of a test"
        terminalreporter.write_line(f"xbridge: {said}; try {hint}", yellow=True)

    def _ran(self, word: str) -> bool:
        """Return True if a test with a backend was not skipped, or the run ended before it."""
        return self._skipped[word] < self._all[word]

    def _is_empty(self) -> bool:
        """Return True if there are tests with backends, and all were skipped."""
        return bool(self._all) and self._skipped == self._all


def _word(item: pytest.Item) -> str:
    """Return the word that selected the backend of a test; "" for a test without one."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if "_xbridge_place" not in parameters:
        return ""
    place = parameters["_xbridge_place"]
    return place.id if place else "none"


def _runs_tests(config: pytest.Config) -> bool:
    return not (config.getoption("collectonly") or config.getoption("setuponly"))
