"""What is told to those who watch the plans that run."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from inside import add_observer, remove_observer
from strategies import Conversion, conversions

import xbridge
from xbridge import Plan, explain
from xbridge._engine import execute


@given(conversions())
def test_observer__is_told_the_plan_of_explain(call: Conversion) -> None:
    """The plan that `explain` returns equals the plan that the conversion runs."""
    ran = []
    told = explain(call.array, call.target, **call.options)

    class Seen(execute.Observer):
        def after(self, plan: Plan, *_: object) -> None:
            ran.append(plan)

    seen = Seen()
    add_observer(seen)
    try:
        with suppress(xbridge.XBridgeError):
            xbridge.to_backend(call.array, call.target, **call.options)
            assert [replace(plan, layout=told.layout) for plan in ran] == [told]
    finally:
        remove_observer(seen)


def test_observer__time_is_split_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays converted together share the measured time in proportion to their size."""
    times = []

    class Timer(execute.Observer):
        def after(self, plan: Plan, caller: object, seconds: float, *_: object) -> None:
            times.append(seconds)

    timer = Timer()
    monkeypatch.setattr(execute, "perf_counter", iter([100.0, 134.0]).__next__)
    add_observer(timer)
    try:
        xbridge.tree.to_backend([np.ones(1), np.ones(3)], "numpy", copy=True)
    finally:
        remove_observer(timer)
    assert times == [9.0, 25.0]
