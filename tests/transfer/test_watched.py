"""What goes on beside the program is seen too: by the line that began it, under the policy of its block."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gate import PATIENCE, Gate

import xbridge
from xbridge import policy, record
from xbridge._observe import record as _record
from xbridge._registry.registry import get

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


def test_a_record_has_the_line_that_began_a_transfer() -> None:
    with record() as seen:
        begin().result()
    (row,) = seen.rows
    assert (row.file, row.line, row.function) == (__file__, line_of(begin), "begin")
    assert (row.calls, row.cast, row.avoid) == (2, 80, "cast it once (if it stays the same)")
    assert row.seconds > 0


def test_a_record_has_the_line_where_prefetching_was_asked_for() -> None:
    batches = ahead()  # before anybody watches
    with record() as seen:
        assert len(list(batches)) == 2
    (row,) = seen.rows
    assert (row.line, row.function, row.calls, row.cast) == (line_of(ahead), "ahead", 4, 160)


def test_what_is_converted_at_once_is_seen_too() -> None:
    torch = pytest.importorskip("torch")
    with record() as seen:
        xbridge.transfer(torch.ones(2, device="meta"), "torch", dtype="float64").result()
    (row,) = seen.rows
    assert (row.file, row.function) == (__file__, "test_what_is_converted_at_once_is_seen_too")


def test_an_iterable_that_converts_is_seen_under_its_own_line() -> None:
    def batches() -> Iterator[np.ndarray]:
        yield xbridge.to_numpy(np.ones(4), copy=True)

    with record() as seen:
        assert len(list(xbridge.prefetch(batches(), "numpy"))) == 1
    assert {row.function.rpartition(".")[2] for row in seen.rows} == {
        "batches",
        "test_an_iterable_that_converts_is_seen_under_its_own_line",
    }


def test_the_time_of_a_batch_is_shared_out_by_bytes() -> None:
    with record() as seen:
        xbridge.transfer([np.ones(1), np.ones(10**6, "int64")], "numpy", dtype="float32").result()
    small, large = sorted(seen.rows, key=lambda row: row.cast)
    assert small.cast * 10**6 == large.cast
    assert 0 < small.seconds * 1000 < large.seconds


def test_a_policy_forbids_a_transfer_before_any_of_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    host = get("numpy")
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


def test_a_policy_holds_for_what_was_begun_in_its_block_when_the_block_was_left() -> None:
    slow = Gate()
    with policy(casts="raise"):
        under_way = xbridge.transfer(slow, "numpy", dtype="float32")
        assert slow.reading.wait(PATIENCE)
    slow.opened.set()

    with pytest.raises(xbridge.PolicyError, match="casts"):
        under_way.result(PATIENCE)


def test_a_policy_of_a_block_that_was_entered_later_does_not_hold() -> None:
    slow = Gate()
    under_way = xbridge.transfer(slow, "numpy", dtype="float32")
    with policy(casts="raise"):
        slow.opened.set()
        assert under_way.result(PATIENCE).dtype == "float32"


def test_a_policy_holds_for_every_batch_of_a_loop() -> None:
    batches = iter([np.ones(2, "float32"), np.ones(2)])
    with policy(casts="raise"):
        ahead = iter(xbridge.prefetch(batches, "numpy", dtype="float32"))
        assert next(ahead).tolist() == [1, 1]
        with pytest.raises(xbridge.PolicyError, match="casts"):
            next(ahead)


def test_a_policy_leaves_nothing_behind_in_the_tables_of_the_hot_path() -> None:
    from xbridge._registry import call_cache, registry

    with policy(casts="warn"), warnings.catch_warnings():
        warnings.simplefilter("ignore", xbridge.CastWarning)
        begin().result()
        list(ahead())
    assert registry.observers == 0
    assert call_cache.direct["numpy"]


def test_a_warning_names_the_line_that_began_it() -> None:
    with policy(casts="warn"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", xbridge.CastWarning)
        begin().result()
        list(ahead())
    assert {(each.filename, each.lineno) for each in caught} == {
        (__file__, line_of(begin)),
        (__file__, line_of(ahead)),
    }


# -- the queue -------------------------------------------------------------------------------------


def test_a_record_shows_how_full_the_queue_was() -> None:
    slow = Gate()

    def batches() -> Iterator[object]:
        yield np.zeros(1)
        yield slow
        yield np.zeros(3)

    with record() as seen:
        loop = iter(xbridge.prefetch(batches(), "numpy"))
        next(loop)
        assert slow.reading.wait(PATIENCE)
        slow.opened.set()
        assert len(next(loop)) == 2
        assert len(list(loop)) == 1
    (queue,) = seen.queues
    assert (queue.file, queue.function) == (__file__, "test_a_record_shows_how_full_the_queue_was")
    assert (queue.depth, queue.batches) == (2, 3)
    assert queue.waited > 0


def test_batches_that_are_ready_are_counted_when_one_is_asked_for() -> None:
    loaded = threading.Event()

    class Last(Gate):
        """Whoever converts it has converted all before it."""

        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            loaded.set()
            return super().__array__()

    last = Last()
    with record() as seen:
        loop = iter(xbridge.prefetch([np.zeros(1), np.zeros(1), np.zeros(1), last], "numpy", depth=3))
        next(loop)
        before = seen.queues[0].ready
        assert loaded.wait(PATIENCE)
        next(loop)
        assert seen.queues[0].ready - before == 2  # and the last one is under way
        last.opened.set()
        list(loop)


def test_the_summary_ends_with_the_queues() -> None:
    with record() as seen:
        list(ahead())
    last = seen.summary().splitlines()[-1]
    assert f"tests/transfer/test_watched.py:{line_of(ahead)}  prefetch  2 batches" in last
    assert "of 2 ready  waited" in last


def test_the_queue_of_batches_without_arrays_is_shown_too() -> None:
    with record() as seen:
        list(xbridge.prefetch([{"i": 1}, {"i": 2}], "numpy"))
    said, queue = seen.summary().splitlines()
    assert said == "nothing was converted"
    assert "2 batches" in queue


def test_without_prefetching_there_is_no_queue() -> None:
    with record() as seen:
        begin().result()
    assert seen.queues == ()


def test_queues_of_endless_lines_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_record, "_MOST_ROWS", 1)
    with record() as seen:
        for _ in range(2):
            list(ahead())
        list(xbridge.prefetch([BATCH], "numpy"))
    (queue,) = seen.queues
    assert (queue.line, queue.batches) == (line_of(ahead), 4)
