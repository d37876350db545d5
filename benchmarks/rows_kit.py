"""What is measured of the test kit: drawing arrays, beside what comes with Hypothesis, and its plugin.

A statement draws a number of examples in one run of Hypothesis. Whatever a run costs without any array is
part of both figures, so that the strategies themselves differ by more than the figures say.
"""

from importlib import import_module
from typing import Any

from harness import TIME
from rows import No, RecordRow, Section

__all__ = ["DRAWS", "PLUGIN", "names_of_kit", "section_of_kit"]

_PEERS = (No("is not a test kit"),) * 3


def _draw(ours: str, theirs: str) -> RecordRow:
    return RecordRow("", f"draw(kit.arrays({ours}), n)", (f"draw(hnp.arrays({theirs}), n)",), 1.0, _PEERS)


DRAWS = (
    _draw("'numpy', dtypes='float32', shapes=(10, 10)", "'float32', (10, 10)"),
    _draw("'numpy', dtypes='float32', shapes=(3, 4)", "'float32', (3, 4)"),
    _draw("'numpy', dtypes='float32'", "'float32', hnp.array_shapes(min_dims=0, max_dims=4, max_side=4)"),
    _draw("'numpy'", "hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, max_dims=4, max_side=4)"),
    _draw(
        "'numpy', dtypes='float32', shapes=(10, 10), elements=(-1, 1)",
        "'float32', (10, 10), elements={'min_value': -1, 'max_value': 1}",
    ),
)

_RUN = "import pytest; pytest.main(['-q', '-p', 'no:cacheprovider', {}pytest.__file__])"

PLUGIN = RecordRow("", _RUN.format(""), (_RUN.format("'-p', 'no:xbridge', "),), 20, _PEERS)


def names_of_kit() -> dict[str, Any]:
    """Return what the statements see."""
    return {
        "kit": import_module("xbridge.testing.strategies"),
        "hnp": import_module("hypothesis.extra.numpy"),
        "draw": _run,
    }


def section_of_kit(*, quick: bool) -> Section:
    """Return what is timed in this process; if quick, just enough to see that it works."""
    n, rounds = (20, 5) if quick else (200, 15)
    reading = f"Time, as a multiple of the reference's; {n} examples drawn by Hypothesis."
    return Section("Drawing arrays", reading, TIME, DRAWS, n, 1, rounds, 0)


def _run(strategy: Any, count: int) -> None:
    """Draw so many examples, and nothing else."""
    hypothesis = import_module("hypothesis")

    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategy)
    def use(_: Any) -> None:
        pass

    use()
