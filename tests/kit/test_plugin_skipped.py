"""A run that names a backend, and in which no test ran with it, fails or says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from xbridge.testing._skipped import SkippedBackends

if TYPE_CHECKING:
    from kit_projects import Run

pytest_plugins = ["kit_projects"]

NEEDS = """
    import pytest

    @pytest.mark.xbridge(needs="complex64")
    def test_x(backend): pass

    @pytest.mark.xbridge(needs="complex64")
    def test_y(backend): pass
"""


def said(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if line.startswith("xbridge: ") and "no test ran" in line]


def test_skipped_backends__all_tests_skipped(run: Run) -> None:
    """A run fails if every test with a named backend was skipped."""
    result = run(NEEDS, "--xbridge=toylib:cpu,toylib:chip")
    result.assert_outcomes(skipped=4)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    line = "xbridge: failed: no test ran with toylib:cpu (2 skipped), toylib:chip (2 skipped); try -rs, "
    assert said(result) == [f"{line}which shows why"]


def test_skipped_backends__one_of_several_backends(run: Run) -> None:
    """A run passes if only one of its backends ran no test, and names that one."""
    result = run(NEEDS, "--xbridge=toylib:cpu,numpy")
    result.assert_outcomes(passed=2, skipped=2)
    assert result.ret == 0
    assert said(result) == ["xbridge: no test ran with toylib:cpu (2 skipped); try -rs, which shows why"]


@pytest.mark.parametrize(
    ("body", "ends"),
    [
        ("def test_x(backend): pytest.skip('no')", 1),
        ("@pytest.mark.xbridge(only='torch')\ndef test_x(backend): pass", 1),
        ("@pytest.mark.xfail\ndef test_x(backend): assert False", 0),
        ("def test_x(backend): assert False", 1),
    ],
)
def test_skipped_backends__skips_and_expected_failures(run: Run, body: str, ends: int) -> None:
    """Skips by a test or a mark count alike, and an expected failure counts as a run."""
    result = run(f"import pytest\n\n{body}", "--xbridge=numpy")
    assert result.ret == ends
    assert len(said(result)) == ("False" not in body)


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--xbridge=toylib", "--collect-only"),
        ("--xbridge=toylib", "--setup-plan"),
        ("--xbridge=toylib,numpy", "-k", "numpy"),
    ],
)
def test_skipped_backends__leave_other_runs_alone(run: Run, options: tuple[str, ...]) -> None:
    """Runs that name no backend, only collect, or deselect tests end as usual."""
    result = run(NEEDS, *options)
    assert (result.ret, said(result)) == (0, [])


@pytest.mark.parametrize("where", ["option", "file"])
def test_skipped_backends__no_test_uses_a_backend(run: Run, pytester: pytest.Pytester, where: str) -> None:
    """A run in which no test uses a backend says so if the command line names one."""
    pytester.makeini("[pytest]\nxbridge = numpy")
    result = run("def test_x(): pass", *(["--xbridge=numpy"] if where == "option" else []))
    assert result.ret == 0
    line = "xbridge: no test ran with numpy; try naming backend among the arguments of a test"
    assert said(result) == ([line] if where == "option" else [])


class Terminal:
    """What is written."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write_line(self, line: str, **_: object) -> None:
        self.lines.append(line)


def config(output: dict[str, Any] | None = None) -> Any:
    here = SimpleNamespace(getoption=lambda name: False)
    if output is not None:
        here.workeroutput = output
    return here


def test_skipped_backends__add_up_the_counts_of_workers() -> None:
    """The controller adds up the counts of parallel workers, and only it fails the run."""
    controller, place = SkippedBackends(["numpy", "toylib"]), SimpleNamespace(id="toylib")
    items = [
        SimpleNamespace(nodeid=name, callspec=SimpleNamespace(params={"_xbridge_place": place}))
        for name in ("a", "b")
    ]
    for name in ("a", "b"):  # each worker collects all tests and runs some
        worker = SkippedBackends(["numpy", "toylib"])
        sent: dict[str, Any] = {}
        worker.pytest_collection_finish(SimpleNamespace(items=items))  # type: ignore[arg-type] # in part
        worker.pytest_runtest_logreport(SimpleNamespace(nodeid=name, skipped=True))  # type: ignore[arg-type] # in part
        session = SimpleNamespace(config=config(sent), exitstatus=0)
        worker.pytest_sessionfinish(session)  # type: ignore[arg-type] # in part
        assert session.exitstatus == 0
        controller.pytest_testnodedown(SimpleNamespace(workeroutput=sent))
    controller.pytest_testnodedown(SimpleNamespace())  # it was killed
    session, terminal = SimpleNamespace(config=config(), exitstatus=0), Terminal()
    controller.pytest_sessionfinish(session)  # type: ignore[arg-type] # in part
    assert session.exitstatus == 1
    controller.pytest_terminal_summary(terminal, config())  # type: ignore[arg-type] # in part
    assert terminal.lines == [
        "xbridge: failed: no test ran with numpy, toylib (2 skipped); try -rs, which shows why"
    ]
