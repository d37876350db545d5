"""The pytest plugin of `xbridge.testing`: what pytest calls, and nothing else.

pytest loads the plugins of all that is installed, in every run. So this module stands outside the package
and imports neither xbridge nor an array library; whoever asks for `--xbridge`, or for a fixture, pays for
them then. What to run with is thought out in `xbridge.testing._parametrize`.
"""

# ruff: noqa: PLC0415 -- nothing is imported before somebody asks for it

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType

    from xbridge import Device, record
    from xbridge._observe.policy import Rules
    from xbridge.testing._parametrize import BackendDevice

_RECORD: pytest.StashKey[record] = pytest.StashKey()
_RULES: pytest.StashKey[Rules] = pytest.StashKey()
"""What held before the run."""
_WORKER = "xbridge_record"
"""The name under which a process of pytest-xdist tells what it has converted."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer the choice on the command line and in the configuration file."""
    group = parser.getgroup("xbridge", "run tests with several array libraries and devices")
    group.addoption(
        "--xbridge",
        action="append",
        metavar="NAMES",
        help="what tests that use `backend` run with: names of backends, name:device, or all, separated by "
        "commas, such as numpy,torch:cuda; may be repeated; without it, every backend that is installed",
    )
    group.addoption(
        "--xbridge-record",
        action="store_true",
        help="print what the run has converted with xbridge, by line and route",
    )
    group.addoption(
        "--xbridge-policy",
        metavar="RULES",
        help="what conversions may do in this run, such as transfers=raise,copies=warn",
    )
    parser.addini("xbridge", type="linelist", help="the same as --xbridge, which goes before it")


def pytest_configure(config: pytest.Config) -> None:
    """Say what the marks mean."""
    config.addinivalue_line(
        "markers",
        "xbridge(only=, skip=, needs=): for a test that uses `backend`: run it with these backends alone, "
        "with all but these, or skip it where one lacks what is needed: 'device', 'grad', 'float64', ...",
    )
    config.addinivalue_line(
        "markers",
        "xbridge_promise(name): the test must fail with a backend that declares a gap of that name",
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """End the run now if what was asked for by name is not there; begin to watch."""
    config = session.config
    if _asked(config):
        from xbridge.testing import _parametrize

        _parametrize.places(config)
    if config.getoption("xbridge_policy"):
        from xbridge import OptionError
        from xbridge._observe import policy as _policy

        try:
            rules = _policy.rules_in(str(config.getoption("xbridge_policy")))
        except OptionError as error:
            raise pytest.UsageError(f"--xbridge-policy: {error}") from error
        config.stash[_RULES] = _policy.everywhere(rules)
    if config.getoption("xbridge_record"):
        from xbridge import record

        config.stash[_RECORD] = record().__enter__()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Watch no longer."""
    stash = session.config.stash
    if _RECORD in stash:
        stash[_RECORD].__exit__()
        output: dict[str, str] | None = getattr(session.config, "workeroutput", None)
        if output is not None:  # this process is one of pytest-xdist's
            output[_WORKER] = stash[_RECORD].to_json()
    if _RULES in stash:
        from xbridge._observe import policy as _policy

        _policy.everywhere(stash[_RULES])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add what a process of pytest-xdist has converted. One that was killed has told nothing."""
    told = getattr(node, "workeroutput", {})
    if _WORKER in told:
        from xbridge._observe import record as _record

        _record.merge(node.config.stash[_RECORD], told[_WORKER])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Tell what was converted."""
    if _RECORD in config.stash:
        terminalreporter.section("xbridge: what was converted")
        terminalreporter.write_line(config.stash[_RECORD].summary())


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what was asked for."""
    if not _asked(config):
        return None
    from xbridge.testing import _parametrize

    return _parametrize.header(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the test once for every place, if it uses `backend` and the fixture is ours.

    A mark on one that does not would do nothing; those of its class and module are for their other tests.
    """
    if "_xbridge_place" in metafunc.fixturenames:
        from xbridge.testing import _parametrize

        params = _parametrize.params(metafunc.definition)
        metafunc.parametrize("_xbridge_place", params, indirect=True)
    elif any(mark.name == "xbridge" and mark.kwargs for mark in metafunc.definition.own_markers):
        pytest.fail(
            f"{metafunc.definition.nodeid}: cannot heed its mark xbridge: it does not use the fixture "
            "backend of xbridge; try naming backend among its arguments",
            pytrace=False,
        )


@pytest.fixture(scope="session")
def _xbridge_place(request: pytest.FixtureRequest) -> BackendDevice:
    """One library and device of the matrix."""
    if not hasattr(request, "param"):
        pytest.fail(
            "cannot choose a backend: the test asks for it while it runs; "
            "try naming backend among the arguments of a test function",
            pytrace=False,
        )
    place: BackendDevice = request.param
    return place


@pytest.fixture(scope="session")
def backend(_xbridge_place: BackendDevice) -> str:
    """Name of an array library: the test runs once for each that `--xbridge` asks for."""
    return _xbridge_place.backend


@pytest.fixture(scope="session")
def device(backend: str, request: pytest.FixtureRequest) -> Device:
    """Where to put the arrays of `backend`: what was asked for, else one that is not its default."""
    from xbridge.testing import _parametrize

    if "_xbridge_place" in request.fixturenames:
        place: BackendDevice = request.getfixturevalue("_xbridge_place")
        return place.device
    return _parametrize.place(backend).device


@pytest.fixture(scope="session")
def xp(backend: str) -> ModuleType:
    """The array API namespace of `backend`."""
    from xbridge.testing import _parametrize

    return _parametrize.namespace(backend)


def _asked(config: pytest.Config) -> bool:
    return bool(config.getoption("xbridge") or config.getini("xbridge"))
