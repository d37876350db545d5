"""The pytest plugin, from outside: which places a test runs at, what the fixtures give, what it all costs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from inside import is_observed

import _xbridge_pytest
import xbridge
from xbridge import record
from xbridge.testing import _parametrize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit_projects import Ids, Loading, Run

pytest_plugins = ["kit_projects"]

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


# -- which places ------------------------------------------------------------------------------------


def test_plugin__runs_the_named_backends_in_order(ids: Ids) -> None:
    """A test runs with the backends and devices that --xbridge names, in that order."""
    test = "def test_x(backend): pass"
    assert ids(test, "--xbridge=toylib,numpy") == ["test_x[toylib]", "test_x[numpy]"]
    assert ids(test, "--xbridge=numpy", "--xbridge= toylib:chip:1 ,numpy") == [
        "test_x[numpy]",
        "test_x[toylib:chip:1]",
    ]


def test_plugin__default_is_every_installed_backend(ids: Ids) -> None:
    """Without a choice, a test runs with every installed backend."""
    here = ids("def test_x(backend): pass")
    assert here == [f"test_x[{name}]" for name in filter(xbridge.is_available, xbridge.known_backends())]
    assert {"test_x[numpy]", "test_x[toylib]", "test_x[numpy_readonly]"} <= set(here)


def test_plugin__all_runs_every_kind_of_device(ids: Ids) -> None:
    """--xbridge=all runs a test once on each kind of device."""
    found = ids("def test_x(backend): pass", "--xbridge=all")
    assert "test_x[numpy]" in found
    assert [test for test in found if "toylib" in test] == ["test_x[toylib:cpu]", "test_x[toylib:chip]"]


def test_plugin__command_line_overrides_the_configuration_file(ids: Ids, pytester: pytest.Pytester) -> None:
    """The configuration file chooses the backends, unless the command line does."""
    test = "def test_x(backend): pass"
    pytester.makeini("[pytest]\nxbridge = toylib, numpy\n")
    assert ids(test) == ["test_x[toylib]", "test_x[numpy]"]
    assert ids(test, "--xbridge=numpy") == ["test_x[numpy]"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("numpy,nunpy", "*cannot find backend 'nunpy': *; try 'numpy'"),
        ("numpy,nolib", "*cannot use backend 'nolib': nolib_xbridge is not installed; try pip install nolib"),
        ("numpy,toylib:tpu", "*the devices of toylib here are cpu, chip:0, chip:1; try toylib:chip:1"),
        ("numpy,toylib:chip:2", "*cannot test 'toylib:chip:2'*"),
        ("numpy,cuda", "*cannot run with cuda: it is a device; try numpy:cuda"),
        ("numpy,numpy:", "*cannot read device '': *; try device='cpu'"),
        (",", "*no name is given; try --xbridge=all"),
    ],
)
def test_plugin__missing_backend_or_device_ends_the_run(run: Run, asked: str, message: str) -> None:
    """A choice without a name, or of what is not available, ends the run with a suggestion."""
    result = run("def test_x(): pass", "-q", f"--xbridge={asked}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --xbridge: {message}"])


# -- fixtures ----------------------------------------------------------------------------------------


def test_fixtures__backend_device_and_xp(run: Run) -> None:
    """The fixtures give the name, the device and the array namespace that a test runs with."""
    test = """
        import xbridge

        PLACES = []

        def test_place(backend, device, xp):
            assert type(backend) is str and type(device) is xbridge.Device
            PLACES.append((backend, device, xp.__name__))

        def test_all():
            assert PLACES == [
                ("toylib", "chip:0", "array_api_compat.numpy"),
                ("toylib", "chip:1", "array_api_compat.numpy"),
                ("toylib", "cpu", "array_api_compat.numpy"),
                ("numpy", "cpu", "array_api_compat.numpy"),
            ]
    """
    run(test, "--xbridge=toylib,toylib:chip:1,toylib:cpu,numpy").assert_outcomes(passed=5)


def test_fixtures__device_is_what_the_namespace_takes(run: Run) -> None:
    """Functions of `xp` take `device`, also where a library has objects for devices, and no names."""
    pytest.importorskip("array_api_strict")
    pytest.importorskip("torch")
    test = """
        def test_place(xp, device):
            x = xp.asarray([1.0], device=device)
            assert xp.zeros(1, device=device).device == x.device
    """
    run(test, "--xbridge=numpy,torch,array_api_strict").assert_outcomes(passed=3)


def test_fixtures__library_without_a_namespace(run: Run) -> None:
    """A test that uses xp is skipped for a library without an array namespace."""
    result = run("def test_x(xp): pass", "--xbridge=barelib,numpy")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*: barelib has no namespace: never: it is too small"])


def test_fixtures__project_overrides_backend(run: Run) -> None:
    """A fixture named backend in the project takes precedence, and nothing is parametrized."""
    test = """
        @pytest.fixture
        def backend():
            return "redis"

        def test_x(backend, request):
            assert (backend, request.node.name) == ("redis", "test_x")
    """
    run(test, "--xbridge=numpy,toylib").assert_outcomes(passed=1)


def test_fixtures__requested_too_late(run: Run) -> None:
    """A test that requests a fixture only while it runs fails with a hint."""
    result = run("def test_x(request): request.getfixturevalue('backend')")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*try naming backend among the arguments of a test function"])


def test_fixtures__only_if_the_project_asks(run: Run, pytester: pytest.Pytester, loading: Loading) -> None:
    """Without the option, a project has none of the fixtures and may use their names for its own."""
    test = "def test_x(backend): pass"
    for option, outcome in {
        "--xbridge=numpy": "*1 passed*",
        "-oxbridge=numpy": "*1 passed*",
        "-oxbridge_fixtures=false": "*fixture 'backend' not found",
    }.items():
        run(test, option).stdout.fnmatch_lines([outcome])
    shown = pytester.runpytest(*loading, "-p", "no:cacheprovider", "--fixtures").stdout.str()
    assert "xbridge" not in shown.partition("rootdir")[2].partition("\n\n")[2]


# -- Hypothesis --------------------------------------------------------------------------------------


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


# -- the header --------------------------------------------------------------------------------------


def test_report_header__lists_backends_and_devices(run: Run) -> None:
    """The header lists the backends, their versions and the devices that tests run on."""
    result = run("def test_x(): pass", "--xbridge=numpy,toylib:cpu,toylib:chip")
    result.stdout.fnmatch_lines([f"xbridge*: numpy {np.__version__} (cpu), toylib (cpu, chip:0, chip:1)"])
    result.stdout.no_fnmatch_line("*missing*")


# -- a run that is recorded, or held to a policy ----------------------------------------------------


COPIES = """
import threading
import numpy as np, xbridge

def copy():
    xbridge.to_numpy(np.ones(1000), copy=True)

def test_here():
    copy()

def test_in_a_thread():
    thread = threading.Thread(target=copy)
    thread.start()
    thread.join()
"""


@pytest.fixture(autouse=True)
def nobody_watches_afterwards() -> Iterator[None]:
    """What a run has begun, it ends."""
    before = xbridge.policy.now()
    yield
    assert not is_observed()
    assert xbridge.policy.now() == before


def test_xbridge_record__prints_a_summary(run: Run) -> None:
    """A recorded run ends with a table of its conversions, those in other threads included."""
    result = run(COPIES, "--xbridge-record")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "*= xbridge: conversions =*",
            "where * to avoid it",
            "test_it.py:7 * 2 * 16 kB * nothing: copy=True asks for new memory",
            "all * 16 kB *",
        ]
    )


def test_xbridge_record__adds_up_parallel_workers() -> None:
    """The records of pytest-xdist's workers are added up, except for those of a killed worker."""
    seen = record()
    told: dict[str, Any] = {}
    config = SimpleNamespace(stash=pytest.Stash(), workeroutput=told)
    with record() as ours:
        config.stash[_xbridge_pytest._RECORD] = record().__enter__()
        xbridge.to_numpy(np.ones(1000), copy=True)
        _xbridge_pytest.pytest_sessionfinish(SimpleNamespace(config=config))  # type: ignore[arg-type]
    main = SimpleNamespace(stash=pytest.Stash())
    main.stash[_xbridge_pytest._RECORD] = seen
    outputs: list[dict[str, Any]] = [{"workeroutput": output} for output in (told, told, {})]
    for output in [*outputs, {}]:
        _xbridge_pytest.pytest_testnodedown(SimpleNamespace(config=main, **output))
    (row,), (once,) = seen.rows, ours.rows
    assert (row.where, row.calls, row.copied) == (once.where, 2, 16_000)


def test_xbridge_policy__applies_to_the_run(run: Run) -> None:
    """The policy applies to every test of the run, in all threads."""
    result = run(COPIES, "--xbridge-policy=copies=raise", "-W", "error")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*PolicyError: *copies='raise'* forbids copies*"])


def test_xbridge_policy__misspelt(run: Run) -> None:
    """A misspelt policy ends the run with an error."""
    result = run(COPIES, "--xbridge-policy=transfer=raise")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --xbridge-policy: cannot take a policy on 'transfer': *"])


# -- what it costs -----------------------------------------------------------------------------------

LOADED = """
import sys
from pathlib import Path

def pytest_sessionfinish():
    Path("loaded.txt").write_text(" ".join(sys.modules))
"""
HEAVY = {"xbridge", "hypothesis", "array_api_compat", *xbridge.known_backends()}


def test_plugin__imports_nothing_by_itself(pytester: pytest.Pytester, loading: Loading) -> None:
    """A run without the fixtures imports neither xbridge nor any array library."""
    from kit_projects import WITHOUT

    pytester.makeconftest(LOADED)
    pytester.makepyfile(test_it="def test_x(): pass")
    others = (*WITHOUT, "-p", "no:hypothesispytest")  # plugins of other packages, which import these
    result = pytester.runpytest_subprocess(*loading, *others)
    assert result.ret == pytest.ExitCode.OK
    loaded = set(pytester.path.joinpath("loaded.txt").read_text(encoding="utf-8").split())
    assert "_xbridge_pytest" in loaded
    assert loaded & HEAVY == set()


def test_plugin__entry_point() -> None:
    """The project declares the plugin as an entry point for pytest."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"xbridge": "_xbridge_pytest"}


@pytest.fixture
def _sham(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that toys have once a module of the project has installed it."""
    pytester.makepyfile(
        pretend="""
        from xbridge import Device
        from xbridge._registry.registry import get as get_backend

        def install():
            get_backend("toylib").devices = lambda: (Device("cpu"), Device("sham:0"))
        """
    )
    monkeypatch.setattr(_parametrize, "_EMULATED", {"toylib:sham": "pretend"})


@pytest.mark.usefixtures("_sham")
def test_plugin__installs_emulated_devices_first(ids: Ids) -> None:
    """An emulated device is installed before the devices of its library are listed."""
    for asked in ("toylib:sham", "toylib:sham:0", "toylib:sham:0,toylib", "toylib:cpu,toylib:sham"):
        places = [f"test_x[{word}]" for word in asked.split(",")]
        assert ids("def test_x(backend): pass", f"--xbridge={asked}") == places


def test_emulated__torch_without_backends_in_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A torch without backends in Python is refused, with a suggestion to upgrade."""
    registration = pytest.importorskip("torch.utils.backend_registration")
    from xbridge.testing import emulated

    monkeypatch.delattr(registration, "_setup_privateuseone_for_python_backend", raising=False)
    with pytest.raises(xbridge.MissingLibraryError, match="no backends in Python; try pip install --upgrade"):
        emulated.install.__wrapped__()
