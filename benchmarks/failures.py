"""Measure how long Hypothesis and the kit take to shrink and explain a failing test.

Each test draws arrays and calls `assert_matches_numpy` with a function that has a planted fault. Processor
time is measured, so that other processes count little. It needs NumPy, torch and Hypothesis:

    python benchmarks/failures.py
"""

import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from xbridge.testing import assert_matches_numpy
from xbridge.testing.strategies import arrays_together

sys.path.append(str(Path(__file__).parents[1] / "tests" / "helpers"))
import planted

CASES: dict[str, tuple[Callable[..., Any], str, int]] = {
    "transposed assumed contiguous": (planted.assumes_contiguous, "torch", 1),
    "order of memory": (planted.reads_memory_order, "numpy", 1),
    "NaN dropped by a comparison": (planted.maximum, "numpy", 2),
    "write in place, NumPy": (planted.in_place, "numpy", 1),
    "write in place, torch": (planted.in_place, "torch", 1),
    "dtype promoted by torch": (planted.promoted, "torch", 1),
    "equal values": (planted.not_equal, "torch", 1),
    "no axis": (planted.last, "torch", 1),
}


def seconds_of(f: Callable[..., Any], backend: str, count: int) -> tuple[float, str]:
    """Return the processor time of a failing test, and the first line of its message."""

    @settings(database=None, deadline=None, max_examples=200)
    @given(st.data())
    def test(data: st.DataObject) -> None:
        xs = data.draw(arrays_together(backend, count, kinds="float"))
        assert_matches_numpy(f, *xs, reference=np.maximum if f is planted.maximum else None)

    start = time.process_time()
    try:
        test()
    except AssertionError as error:
        return time.process_time() - start, str(error).partition("\n")[0]
    raise SystemExit(f"{f.__name__} did not fail")


def main() -> None:
    """Print the time of each case, and the mean."""
    warnings.simplefilter("ignore", RuntimeWarning)  # of NumPy, about NaN
    found = []
    for name, case in CASES.items():
        seconds, message = seconds_of(*case)
        found.append(seconds)
        print(f"{seconds:5.2f} s  {name:30} {message}")
    print(f"{sum(found) / len(found):5.2f} s on average, {max(found):.2f} s at most")


if __name__ == "__main__":
    main()
