"""Whole batches, and the way there and back, under a policy and on record: at the line of the caller."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import xbridge
from xbridge import policy, record

pytest.importorskip("array_api_strict")

import array_api_strict as xp

from xbridge import tree

if TYPE_CHECKING:
    from collections.abc import Callable

ARRAY = np.ones(3)
THERE = xp.ones(3, device=xp.Device("device1"))


def give_back(x: Any, **options: Any) -> Any:
    _, restore = xbridge.align_back(x, **options)
    return restore


RESTORE = give_back(THERE)
COPYING: list[Callable[[], Any]] = [
    lambda: tree.to_backend({"a": [ARRAY]}, "numpy", copy=True),
    lambda: tree.to_numpy([ARRAY], copy=True),
    lambda: tree.align([ARRAY], copy=True),
    lambda: tree.map(partial(xbridge.to_numpy, copy=True), [ARRAY]),
    lambda: xbridge.align_back(ARRAY, copy=True),
    lambda: xbridge.align_back(ARRAY, [ARRAY]),
]
MOVING: list[Callable[[], Any]] = [
    lambda: tree.to_backend({"a": [THERE]}, "array_api_strict", device="cpu"),
    lambda: tree.align([THERE], device="cpu"),
    lambda: xbridge.align_back(ARRAY, THERE),
    lambda: RESTORE(ARRAY),
    lambda: RESTORE([ARRAY]),
]


@pytest.mark.parametrize("call", [*COPYING, *MOVING])
def test_policy__warning_points_at_the_caller(call: Callable[[], Any]) -> None:
    """A copy and a transfer are reported, as a warning and on record, at the line of the caller."""
    line = call.__code__.co_filename, call.__code__.co_firstlineno
    warning = xbridge.CopyWarning if call in COPYING else xbridge.TransferWarning
    with policy(copies="warn", transfers="warn"), record() as seen, pytest.warns(warning) as caught:
        call()
    assert {(one.filename, one.lineno) for one in caught} == {line}
    assert {(row.file, row.line) for row in seen.rows} == {line}
    assert sum(row.copied if call in COPYING else row.moved for row in seen.rows) >= ARRAY.nbytes


def test_policy__warning_about_an_aligned_function_points_at_the_caller() -> None:
    """The transfers of a call are reported at its line."""

    @xbridge.aligned(backend="numpy")
    def doubled(x: Any) -> Any:
        return {"twice": x + x}

    test_policy__warning_points_at_the_caller(lambda: doubled(THERE))


def test_policy__names_the_array_that_would_move() -> None:
    """The error names the array that would move; arrays that stay where they are pass."""
    with policy(transfers="raise"):
        xbridge.align_back(ARRAY, ARRAY)
        with pytest.raises(xbridge.PolicyError, match="on device1 to numpy"):
            xbridge.align_back(ARRAY, THERE)
        with pytest.raises(xbridge.PolicyError, match=r"^at tree\['b'\]: .* on device1 to numpy"):
            tree.to_numpy({"a": ARRAY, "b": THERE})
        aligned, restore = xbridge.align_back(THERE, THERE)
        assert restore(aligned[1]) is THERE
