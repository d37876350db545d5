"""The pytest plugin, from outside: which places a test runs at, what the fixtures give, what it all costs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import xbridge
from xbridge.testing import _parametrize

if TYPE_CHECKING:
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


# -- the header --------------------------------------------------------------------------------------


def test_report_header__lists_backends_and_devices(run: Run) -> None:
    """The header lists the backends, their versions and the devices that tests run on."""
    import numpy as np

    result = run("def test_x(): pass", "--xbridge=numpy,toylib:cpu,toylib:chip")
    result.stdout.fnmatch_lines([f"xbridge*: numpy {np.__version__} (cpu), toylib (cpu, chip:0, chip:1)"])
    result.stdout.no_fnmatch_line("*missing*")


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
