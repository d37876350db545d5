"""What goes on beside the program is seen too: by the line that began it, under the policy of its block."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gate import PATIENCE, Gate
from inside import get_backend

import xbridge
from xbridge import policy, record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH = {"x": np.ones(10), "more": [np.ones((2, 5)), "text", 3]}


def begin() -> Any:
    return xbridge.transfer(BATCH, "numpy", dtype="float32")


def ahead() -> Iterator[Any]:
    return iter(xbridge.prefetch([BATCH, BATCH], "numpy", dtype="float32"))


def line_of(fn: Callable[[], object]) -> int:
    """Of the call in a function above."""
    return fn.__code__.co_firstlineno + 1


def test_record__transfer_has_the_callers_line() -> None:
    """A recorded transfer has the line that started it."""
    with record() as seen:
        begin().result()
    (row,) = seen.rows
    assert (row.file, row.line, row.function) == (__file__, line_of(begin), "begin")
    assert (row.calls, row.cast, row.avoid) == (2, 80, "cast it once (if it stays the same)")
    assert row.seconds > 0


def test_record__prefetch_has_the_callers_line() -> None:
    """Recorded batches have the line that called `prefetch`."""
    batches = ahead()  # before anybody watches
    with record() as seen:
        assert len(list(batches)) == 2
    (row,) = seen.rows
    assert (row.line, row.function, row.calls, row.cast) == (line_of(ahead), "ahead", 4, 160)


def test_record__iterable_has_its_own_line() -> None:
    """Conversions inside the iterable are recorded under their own line."""

    def batches() -> Iterator[np.ndarray]:
        yield xbridge.to_numpy(np.ones(4), copy=True)

    with record() as seen:
        assert len(list(xbridge.prefetch(batches(), "numpy"))) == 1
    functions = {row.function.rpartition(".")[2] for row in seen.rows}
    assert functions == {"batches", "test_record__iterable_has_its_own_line"}


def test_policy__refuses_a_transfer_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forbidden transfer raises before any array of it is converted."""
    host = get_backend("numpy")
    casts: list[object] = []
    cast = host.astype

    def counting(x: np.ndarray, dtype: str) -> np.ndarray:
        casts.append(dtype)
        made: np.ndarray = cast(x, dtype)
        return made

    monkeypatch.setattr(host, "astype", counting)

    with policy(copies="raise"):
        under_way = xbridge.transfer([np.ones(2), np.ones(2)[::-1]], "numpy", dtype="float32", copy=True)
        with policy(casts="raise"), pytest.raises(xbridge.PolicyError, match="casts"):
            begin().result()
        assert under_way.result()[0].dtype == "float32"
    assert len(casts) == 2  # those of the first


def test_policy__holds_after_its_block_was_left() -> None:
    """A transfer started in a policy block obeys it even if it runs later."""
    slow = Gate()
    with policy(casts="raise"):
        under_way = xbridge.transfer(slow, "numpy", dtype="float32")
        assert slow.reading.wait(PATIENCE)
    slow.opened.set()

    with pytest.raises(xbridge.PolicyError, match="casts"):
        under_way.result(PATIENCE)


def test_policy__applies_to_each_batch() -> None:
    """A policy applies to every batch of `prefetch`."""
    batches = iter([np.ones(2, "float32"), np.ones(2)])
    with policy(casts="raise"):
        ahead = iter(xbridge.prefetch(batches, "numpy", dtype="float32"))
        assert next(ahead).tolist() == [1, 1]
        with pytest.raises(xbridge.PolicyError, match="casts"):
            next(ahead)


def test_policy__warning_names_the_callers_line() -> None:
    """A warning points to the line that started the transfer."""
    with policy(casts="warn"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", xbridge.CastWarning)
        begin().result()
        list(ahead())
    assert {each.filename for each in caught} == {__file__}
    assert {each.lineno for each in caught} == {line_of(begin), line_of(ahead)}
