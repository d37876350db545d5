"""The pytest plugin, from outside: a run that is recorded, and one that is held to a policy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from inside import is_observed

import _xbridge_pytest
import xbridge
from xbridge import record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit_projects import Run

pytest_plugins = ["kit_projects"]

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
