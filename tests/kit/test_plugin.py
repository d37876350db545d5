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


def test_a_test_runs_with_what_is_asked_for_in_that_order(ids: Ids) -> None:
    test = "def test_x(backend): pass"
    assert ids(test, "--xbridge=toylib,numpy") == ["test_x[toylib]", "test_x[numpy]"]
    assert ids(test, "--xbridge=numpy", "--xbridge= toylib:chip:1 ,numpy") == [
        "test_x[numpy]",
        "test_x[toylib:chip:1]",
    ]


def test_without_a_choice_every_backend_that_is_here_is_run(ids: Ids) -> None:
    here = ids("def test_x(backend): pass")
    assert here == [f"test_x[{name}]" for name in filter(xbridge.is_available, xbridge.known_backends())]
    assert {"test_x[numpy]", "test_x[toylib]", "test_x[numpy_readonly]"} <= set(here)


def test_all_runs_every_kind_of_device(ids: Ids) -> None:
    found = ids("def test_x(backend): pass", "--xbridge=all")
    assert "test_x[numpy]" in found
    assert [test for test in found if "toylib" in test] == ["test_x[toylib:cpu]", "test_x[toylib:chip]"]


def test_the_configuration_file_chooses_unless_the_command_line_does(
    ids: Ids, pytester: pytest.Pytester
) -> None:
    test = "def test_x(backend): pass"
    pytester.makeini("[pytest]\nxbridge = toylib, numpy\n")
    assert ids(test) == ["test_x[toylib]", "test_x[numpy]"]
    assert ids(test, "--xbridge=numpy") == ["test_x[numpy]"]


def test_a_test_that_does_not_ask_is_left_alone(ids: Ids) -> None:
    assert ids("def test_x(): pass", "--xbridge=all") == ["test_x"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("nunpy", "*cannot find backend 'nunpy': *; try 'numpy'"),
        ("nolib", "*cannot use backend 'nolib': nolib_xbridge is not installed; try pip install nolib"),
        ("toylib:tpu", "*the devices of toylib here are cpu, chip:0, chip:1; try toylib:chip:1"),
        ("toylib:chip:2", "*cannot test 'toylib:chip:2'*"),
        ("numpy:", "*cannot read device '': *; try device='cpu'"),
    ],
)
def test_what_is_asked_for_by_name_and_not_there_ends_the_run(run: Run, asked: str, message: str) -> None:
    result = run("def test_x(): pass", "-q", f"--xbridge=numpy,{asked}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --xbridge: {message}"])


def test_no_name_at_all_ends_the_run(run: Run) -> None:
    result = run("def test_x(): pass", "--xbridge=,")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --xbridge: *no name is given; try --xbridge=all"])


def test_a_wrong_name_in_the_configuration_file_ends_the_run_and_says_where(
    run: Run, pytester: pytest.Pytester
) -> None:
    pytester.makeini("[pytest]\nxbridge = nunpy\n")
    result = run("def test_x(): pass")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: xbridge in the configuration file: cannot find backend 'nunpy'*"])


# -- fixtures ----------------------------------------------------------------------------------------


def test_the_fixtures_give_the_name_the_device_and_the_namespace_of_a_place(run: Run) -> None:
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


def test_any_of_the_fixtures_alone_makes_the_test_run_everywhere(ids: Ids) -> None:
    for name in ("backend", "device", "xp"):
        assert ids(f"def test_x({name}): pass", "--xbridge=numpy,toylib") == [
            "test_x[numpy]",
            "test_x[toylib]",
        ]


def test_the_fixtures_live_as_long_as_the_session(run: Run) -> None:
    test = """
        import pytest

        @pytest.fixture(scope="session")
        def mine(backend, device, xp):
            return backend

        def test_x(mine): pass
    """
    run(test, "--xbridge=numpy,toylib").assert_outcomes(passed=2)


def test_a_library_without_a_namespace_skips_what_needs_one(run: Run) -> None:
    result = run("def test_x(xp): pass", "--xbridge=barelib,numpy")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*: barelib has no namespace: never: it is too small"])


def test_a_project_s_own_fixture_named_backend_wins(run: Run) -> None:
    test = """
        import pytest

        @pytest.fixture
        def backend():
            return "redis"

        def test_x(backend, request):
            assert (backend, request.node.name) == ("redis", "test_x")
    """
    run(test, "--xbridge=numpy,toylib").assert_outcomes(passed=1)


def test_a_project_s_own_fixture_named_device_wins(run: Run) -> None:
    test = """
        import pytest

        @pytest.fixture
        def device():
            return "flux capacitor"

        def test_x(backend, device):
            assert (backend, device) == ("toylib", "flux capacitor")
    """
    run(test, "--xbridge=toylib").assert_outcomes(passed=1)


def test_the_device_follows_a_project_s_own_backend(run: Run) -> None:
    test = """
        import pytest

        @pytest.fixture(scope="session")
        def backend():
            return "toylib"

        def test_x(backend, device, xp, request):
            assert (device, xp.__name__) == ("chip:0", "array_api_compat.numpy")
            assert request.node.name == "test_x"
    """
    run(test, "--xbridge=numpy,numpy:cpu").assert_outcomes(passed=1)


def test_a_test_that_asks_too_late_gets_a_hint(run: Run) -> None:
    result = run("def test_x(request): request.getfixturevalue('backend')")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*try naming backend among the arguments of a test function"])


def test_fixtures__only_if_the_project_asks(run: Run, pytester: pytest.Pytester, loading: Loading) -> None:
    """A project that asks for nothing has no fixture of ours, and may give each name a meaning of its own."""
    test = "def test_x(backend): pass"
    for option, outcome in {
        "--xbridge=numpy": "*1 passed*",
        "-oxbridge=numpy": "*1 passed*",
        "-oxbridge_fixtures=false": "*fixture 'backend' not found",
    }.items():
        run(test, option).stdout.fnmatch_lines([outcome])
    shown = pytester.runpytest(*loading, "-p", "no:cacheprovider", "--fixtures").stdout.str()
    assert "xbridge" not in shown.partition("rootdir")[2].partition("\n\n")[2]


def test_fixtures__unittest_classes(run: Run) -> None:
    """A method of a `TestCase` runs with every library too, and follows marks."""
    test = """
        import unittest
        import pytest

        SEEN = []

        @pytest.mark.usefixtures("backend")
        class TestOne(unittest.TestCase):
            @pytest.fixture(autouse=True)
            def use(self, backend, device, xp):
                self.place = backend, str(device), xp

            def setUp(self):
                SEEN.append(self.place[:2])

            def test_place(self):
                assert self.place[:2] == SEEN[-1]

            @pytest.mark.xbridge(only="numpy")
            def test_one(self):
                assert self.place[0] == "numpy"

            @pytest.mark.xbridge(needs="complex64")
            def test_lack(self):
                assert self.place[0] == "numpy"

        class TestPlain(unittest.TestCase):
            def test_all(self):
                assert sorted(SEEN) == 3 * [("numpy", "cpu")] + [("toylib", "chip:0")]
    """
    result = run(test, "--xbridge=numpy,toylib", "-v")
    result.assert_outcomes(passed=5, skipped=1)
    result.stdout.fnmatch_lines(["*::TestOne::test_place[[]toylib] PASSED*"])


def test_makereport__exceptions_of_others(run: Run) -> None:
    """An exception of another library with our names for attributes is reported as any other."""
    test = """
        class StrangeError(Exception):
            exceptions = None
            finding = "none"

        def test_x():
            raise StrangeError
    """
    run(test, "--xbridge=numpy").assert_outcomes(failed=1)


def test_without_the_plugin_there_is_nothing_of_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_x(backend): pass")
    result = pytester.runpytest("-p", "no:xbridge", "-p", "no:cacheprovider")
    result.stdout.fnmatch_lines(["*fixture 'backend' not found"])


# -- the header --------------------------------------------------------------------------------------


def test_the_header_says_what_runs_where(run: Run) -> None:
    import numpy as np

    result = run("def test_x(): pass", "--xbridge=numpy,toylib:cpu,toylib:chip")
    result.stdout.fnmatch_lines([f"xbridge*: numpy {np.__version__} (cpu), toylib (cpu, chip:0, chip:1)"])
    result.stdout.no_fnmatch_line("*missing*")


def test_the_header_says_what_all_could_not_find(run: Run) -> None:
    result = run("def test_x(): pass", "--xbridge=all")
    result.stdout.fnmatch_lines(["xbridge*: numpy *, missing: *nolib (pip install nolib)*"])


def test_a_run_without_the_fixture_has_no_header(run: Run) -> None:
    run("def test_x(backend): pass").stdout.no_fnmatch_line("xbridge*:*")


# -- what it costs -----------------------------------------------------------------------------------

LOADED = """
import sys
from pathlib import Path

def pytest_sessionfinish():
    Path("loaded.txt").write_text(" ".join(sys.modules))
"""
HEAVY = {"xbridge", "hypothesis", "array_api_compat", *xbridge.known_backends()}


def loaded_by(test: str, pytester: pytest.Pytester, loading: Loading, *options: str) -> set[str]:
    pytester.makeconftest(LOADED)
    pytester.makepyfile(test_it=test)
    others = (
        "-p",
        "no:hypothesispytest",
        "-p",
        "no:jaxtyping",
        "-p",
        "no:zarr",
    )  # plugins of other packages, which import these
    result = pytester.runpytest_subprocess(*loading, *others, *options)
    assert result.ret == pytest.ExitCode.OK
    return set(pytester.path.joinpath("loaded.txt").read_text(encoding="utf-8").split())


def test_a_run_without_the_fixture_imports_nothing(pytester: pytest.Pytester, loading: Loading) -> None:
    loaded = loaded_by("def test_x(): pass", pytester, loading)
    assert "_xbridge_pytest" in loaded
    assert loaded & HEAVY == set()


def test_the_import_test_can_fail(pytester: pytest.Pytester, loading: Loading) -> None:
    loaded = loaded_by("def test_x(backend): pass", pytester, loading, "--xbridge=numpy")
    assert {"xbridge", "numpy"} <= loaded & HEAVY


def test_what_is_installed_announces_the_plugin() -> None:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"xbridge": "_xbridge_pytest"}


@pytest.fixture
def _sham(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that toys have once a module of the project has installed it."""
    pytester.makepyfile(
        pretend="""
        from xbridge import Device
        from xbridge._registry import registry

        def install():
            registry.get("toylib").devices = lambda: (Device("cpu"), Device("sham:0"))
        """
    )
    monkeypatch.setattr(_parametrize, "_EMULATED", {"toylib:sham": "pretend"})


@pytest.mark.usefixtures("_sham")
def test_a_pretended_device_is_installed_before_devices_are_listed(ids: Ids) -> None:
    for asked in ("toylib:sham", "toylib:sham:0", "toylib:sham:0,toylib", "toylib:cpu,toylib:sham"):
        places = [f"test_x[{word}]" for word in asked.split(",")]
        assert ids("def test_x(backend): pass", f"--xbridge={asked}") == places


@pytest.mark.usefixtures("_sham")
@pytest.mark.parametrize("asked", ["toylib,toylib:sham", "toylib:sham,toylib"])
def test_a_pretended_device_is_present_for_all_in_any_order(run: Run, asked: str) -> None:
    run("def test_x(device): assert device == 'sham:0'", f"--xbridge={asked}").assert_outcomes(passed=2)


def test_a_torch_without_backends_in_python_has_no_emulated_accelerator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registration = pytest.importorskip("torch.utils.backend_registration")
    from xbridge.testing import emulated

    monkeypatch.delattr(registration, "_setup_privateuseone_for_python_backend", raising=False)
    with pytest.raises(xbridge.MissingLibraryError, match="no backends in Python; try pip install --upgrade"):
        emulated.install.__wrapped__()


def test_the_emulated_accelerator_is_installed_by_its_name(
    pytester: pytest.Pytester, loading: Loading
) -> None:
    registration = pytest.importorskip("torch.utils.backend_registration")
    if not hasattr(registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch has no backends in Python")
    pytester.makepyfile(test_it="def test_x(device): assert device == 'emu:0'")
    result = pytester.runpytest_subprocess(
        *loading, "-p", "no:cacheprovider", "-p", "no:zarr", "--xbridge=torch:emu", "-v"
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["xbridge*: torch * (cpu, emu:0)", "test_it.py::test_x[[]torch:emu[]] PASSED*"]
    )
