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


@xbridge.aligned(backend="numpy")
def doubled(x: Any) -> Any:
    return {"twice": x + x}


def give_back(x: Any, **options: Any) -> Any:
    _, restore = xbridge.align_back(x, **options)
    return restore


RESTORE = give_back(THERE)
COPYING: dict[str, Callable[[], Any]] = {
    "tree.to_backend": lambda: tree.to_backend({"a": [ARRAY]}, "numpy", copy=True),
    "tree.to_numpy": lambda: tree.to_numpy([ARRAY], copy=True),
    "tree.align": lambda: tree.align([ARRAY], copy=True),
    "tree.map": lambda: tree.map(partial(xbridge.to_numpy, copy=True), [ARRAY]),
    "align_back": lambda: xbridge.align_back(ARRAY, copy=True),
    "align_back of a list": lambda: xbridge.align_back(ARRAY, [ARRAY]),
}
MOVING: dict[str, Callable[[], Any]] = {
    "tree.to_backend": lambda: tree.to_backend({"a": [THERE]}, "array_api_strict", device="cpu"),
    "tree.align": lambda: tree.align([THERE], device="cpu"),
    "align_back": lambda: xbridge.align_back(ARRAY, THERE),
    "restore": lambda: RESTORE(ARRAY),
    "restore a tree": lambda: RESTORE([ARRAY]),
    "aligned": lambda: doubled(THERE),
}


def line_of(call: Callable[[], Any]) -> tuple[str, int]:
    return call.__code__.co_filename, call.__code__.co_firstlineno


@pytest.mark.parametrize("call", COPYING.values(), ids=COPYING)
def test_policy__copy_warning_points_at_the_caller(call: Callable[[], Any]) -> None:
    """A copy is reported, as a warning and on record, at the line of the caller."""
    with policy(copies="warn"), record() as seen, pytest.warns(xbridge.CopyWarning) as caught:
        call()
    assert {(one.filename, one.lineno) for one in caught} == {line_of(call)}
    assert {(row.file, row.line) for row in seen.rows} == {line_of(call)}
    assert sum(row.copied for row in seen.rows) == ARRAY.nbytes


@pytest.mark.parametrize("call", MOVING.values(), ids=MOVING)
def test_policy__transfer_warning_points_at_the_caller(call: Callable[[], Any]) -> None:
    """A transfer is reported, as a warning and on record, at the line of the caller."""
    with policy(transfers="warn"), record() as seen, pytest.warns(xbridge.TransferWarning) as caught:
        call()
    assert {(one.filename, one.lineno) for one in caught} == {line_of(call)}
    assert {(row.file, row.line) for row in seen.rows} == {line_of(call)}
    assert sum(row.moved for row in seen.rows) >= ARRAY.nbytes


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
