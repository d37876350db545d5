"""The hooks of the pytest plugin of `xbridge.testing`.

pytest loads the plugins of all installed packages in every run. So this module is outside the package and
imports neither xbridge nor an array library. A run imports them if it uses `--xbridge` or a fixture.
`xbridge.testing._parametrize` chooses the backends and devices.
"""

# ruff: noqa: PLC0415 -- nothing is imported before a run uses it

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from xbridge import record

_RECORD: pytest.StashKey[record] = pytest.StashKey()
_RULES: pytest.StashKey[Any] = pytest.StashKey()
"""The rules before the run."""
_WORKER = "xbridge_record"
"""The key under which a worker of pytest-xdist sends its record."""

_SETTINGS = "_hypothesis_internal_use_settings"
"""The attribute in which Hypothesis stores the settings of a test. It refuses a second decorator."""

_FINDING = "xbridge_finding"
"""The name of a finding among the properties of a report."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the command line and of the configuration file."""
    group = parser.getgroup("xbridge", "run tests with several array libraries and devices")
    group.addoption(
        "--xbridge",
        action="append",
        metavar="NAMES",
        help="backends for tests that use `backend`: names, name:device, or all, separated by commas, such "
        "as numpy,torch:cuda; may be repeated; by default every backend that is installed",
    )
    group.addoption(
        "--xbridge-record",
        action="store_true",
        help="print the conversions of the run, by line and route",
    )
    group.addoption(
        "--xbridge-policy",
        metavar="RULES",
        help="the policy for conversions in this run, such as transfers=raise,copies=warn",
    )
    group.addoption(
        "--xbridge-report",
        metavar="FILE",
        help="write the findings of the assertions to a file: JSON if it ends in .json, else Markdown",
    )
    parser.addini("xbridge", type="linelist", help="the same as --xbridge, which takes precedence")
    parser.addini(
        "xbridge_fixtures",
        type="bool",
        default=False,
        help="whether there are the fixtures backend, device and xp, for every backend that is installed; "
        "--xbridge and xbridge imply it",
    )
    parser.addini(
        "xbridge_without",
        type="args",
        help="layouts that are drawn only if a test asks for them, such as neg",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks, and the fixtures if the project asks for them."""
    if config.getini("xbridge_fixtures") or _asked(config):
        from xbridge.testing import _parametrize

        config.pluginmanager.register(_parametrize, "xbridge_fixtures")
    config.addinivalue_line(
        "markers",
        "xbridge(only=, skip=, needs=, without=, xfail=): for a test that uses `backend`: run it with these "
        "backends alone, with all but these, or skip it if one lacks a needed feature: 'device', 'grad', "
        "'float64', ...; draw these layouts only on request: 'neg', 'conj', ...; expect it to fail with "
        "these backends, a dict with the reason for each",
    )
    config.addinivalue_line(
        "markers",
        "xbridge_promise(name): the test must fail with a backend that declares a gap of that name",
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Raise if a named backend is missing; start the policy and the record."""
    config = session.config
    report = config.getoption("xbridge_report")
    if report and (Path(report).is_dir() or not Path(report).parent.is_dir()):
        raise pytest.UsageError(f"--xbridge-report: {report} is a directory, or in none; try findings.md")
    if _asked(config):
        from xbridge.testing import _parametrize

        _parametrize.places(config)
    if config.getoption("xbridge_policy"):
        from xbridge import OptionError, extend

        try:
            rules = extend.rules_in(str(config.getoption("xbridge_policy")))
        except OptionError as error:
            raise pytest.UsageError(f"--xbridge-policy: {error}") from error
        config.stash[_RULES] = extend.set_process_rules(rules)
    if config.getoption("xbridge_record"):
        from xbridge import record

        config.stash[_RECORD] = record().__enter__()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the record and the policy."""
    stash = session.config.stash
    if _RECORD in stash:
        stash[_RECORD].__exit__()
        output: dict[str, str] | None = getattr(session.config, "workeroutput", None)
        if output is not None:  # this process is a worker of pytest-xdist
            output[_WORKER] = stash[_RECORD].to_json()
    if _RULES in stash:
        from xbridge import extend

        extend.set_process_rules(stash[_RULES])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Store the findings of the exceptions of a test in its report, which pytest-xdist sends too.

    Nothing is asked of exceptions of others, whose attributes may have any meaning.
    """
    matches = sys.modules.get("xbridge.testing._matches")
    if call.excinfo is not None and matches is not None:
        raised = [call.excinfo.value]
        while raised:
            error: Any = raised.pop()
            if isinstance(error, BaseExceptionGroup):
                raised += error.exceptions
            elif isinstance(error, matches.MismatchError):
                item.user_properties.append((_FINDING, error.finding._asdict()))
    return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Merge the record of a worker of pytest-xdist. A worker that was killed sends none."""
    sent = getattr(node, "workeroutput", {})
    if _WORKER in sent:
        from xbridge import extend

        extend.merge_record(node.config.stash[_RECORD], sent[_WORKER])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the findings and the record."""
    failed = terminalreporter.stats.get("failed", [])
    found = [value for report in failed for name, value in report.user_properties if name == _FINDING]
    target = config.getoption("xbridge_report")
    if found or target:
        from xbridge.testing import _findings

        read = _findings.read(found)
        if target:
            _findings.write(read, str(target))
        if read:
            terminalreporter.section("xbridge: findings")
            terminalreporter.write_line(_findings.as_text(read))
    if _RECORD in config.stash:
        terminalreporter.section("xbridge: conversions")
        terminalreporter.write_line(config.stash[_RECORD].summary())


def pytest_report_header(config: pytest.Config) -> str | None:
    """Return a line on the backends of the run."""
    if not _asked(config):
        return None
    from xbridge.testing import _parametrize

    return _parametrize.header(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test that uses the plugin's `backend`.

    A mark on a test without the fixture has no effect, so it is an error. Marks of its class and module may
    be for other tests.
    """
    uses_backend = "_xbridge_place" in metafunc.fixturenames
    if uses_backend or hasattr(metafunc.function, "xbridge_contract"):
        _lift_deadline(metafunc.function)
    if uses_backend:
        from xbridge.testing import _parametrize

        params = _parametrize.params(metafunc.definition)
        metafunc.parametrize("_xbridge_place", params, indirect=True)
    elif any(mark.name == "xbridge" and mark.kwargs for mark in metafunc.definition.own_markers):
        pytest.fail(
            f"{metafunc.definition.nodeid}: cannot follow its mark xbridge: it does not use the fixture "
            "backend of xbridge; try naming backend among its arguments",
            pytrace=False,
        )


def _lift_deadline(function: Any) -> None:
    """Let an example of a Hypothesis test take any time, because a library may start or compile during one.

    Another deadline than the usual one stays: that of the user's profile, or of settings of the test. A
    method runs with a new object for each library, as pytest's parameters do it, which Hypothesis takes for
    a mistake if there is no mark.
    """
    if not hasattr(function, "hypothesis"):
        return
    from hypothesis import HealthCheck, settings

    given = getattr(function, _SETTINGS, None) or settings()
    is_usual = given.deadline == settings.get_profile("default").deadline
    lifted = settings(
        given,
        deadline=None if is_usual else given.deadline,
        suppress_health_check={*given.suppress_health_check, HealthCheck.differing_executors},
    )
    setattr(function, _SETTINGS, lifted)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Leave out the layouts that the marks of a test and the configuration file name."""
    named = item.config.getini("xbridge_without")
    if not named and not any("without" in mark.kwargs for mark in item.iter_markers("xbridge")):
        return (yield)
    from xbridge.testing import _parametrize, _without

    with _without.without(_parametrize.left_out(item)):
        return (yield)


def _asked(config: pytest.Config) -> bool:
    return bool(config.getoption("xbridge") or config.getini("xbridge"))
