"""A record knows every conversion of its block: which line, which route, how many bytes, how long."""

from __future__ import annotations

import json
import re
import threading
from contextlib import suppress
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from inside import is_observed
from strategies import Conversion, conversions

import xbridge
from xbridge import explain, record
from xbridge._observe import record as record_module

if TYPE_CHECKING:
    from collections.abc import Callable


HOST = np.ones(1000)
ASKED = "nothing: copy=True asks for new memory"
SAME = " (if it stays the same)"


def copy_one() -> Any:
    return xbridge.to_numpy(HOST, copy=True)


COPIES_AT = copy_one.__code__.co_firstlineno + 1


def test_record__calls_of_one_line_are_one_row() -> None:
    """Calls of one line are one row."""
    with record() as seen:
        for _ in range(5):
            copy_one()
    (row,) = seen.rows
    assert (row.file, row.line, row.function) == (__file__, COPIES_AT, "copy_one")
    assert (row.source, row.target) == ("numpy float64 on cpu", "numpy float64 on cpu")
    assert (row.calls, row.copied, row.moved, row.avoid) == (5, 40_000, 0, ASKED)
    assert row.seconds > 0


def test_record__what_shares_is_counted_and_costs_no_bytes() -> None:
    """What shares is counted and costs no bytes."""
    pytest.importorskip("torch")
    with record() as seen:
        xbridge.to_backend(HOST, "torch")
        xbridge.asarray(HOST)
    assert sorted((row.target, row.calls, row.copied, row.avoid) for row in seen.rows) == [
        ("numpy float64 on cpu", 1, 0, ""),
        ("torch float64 on cpu", 1, 0, ""),
    ]


@pytest.mark.parametrize("x", [2, [1, 2], [[1.0], [2.0]]])
def test_record__numbers_and_lists_are_counted(x: Any) -> None:
    """A number or a list that becomes an array is a conversion, also if none was converted before."""
    with record() as seen:
        xbridge.asarray(x)
    assert [row.calls for row in seen.rows] == [1]


def test_record__bytes_between_devices_are_distinguished_from_copies() -> None:
    """Bytes between devices are distinguished from copies."""
    strict = pytest.importorskip("array_api_strict")
    far = strict.asarray(HOST, device=strict.Device("device1"))
    with record() as seen:
        xbridge.to_numpy(far, dtype="float32")
    (row,) = seen.rows
    assert row.source == "array_api_strict float64 on device1"
    assert (row.copied, row.cast, row.moved) == (0, 4000, 4000)
    assert row.avoid == "cast it once; keep it where it is, or move it once (if it stays the same)"


def test_record_summary__nothing_is_recorded_before_after_or_without() -> None:
    """Nothing is recorded before, after or without a record."""
    seen = record()
    copy_one()
    with seen:
        pass
    copy_one()
    assert seen.rows == ()
    assert seen.summary() == "nothing was converted"
    assert not is_observed()


def test_record__records_inside_of_each_other_see_each_what_is_theirs() -> None:
    """Records inside of each other each see their own conversions."""
    with record() as outer:
        copy_one()
        with record() as inner:
            copy_one()
        with outer:
            copy_one()
        copy_one()
    assert [row.calls for row in inner.rows] == [1]
    assert [row.calls for row in outer.rows] == [5], "one of them was in its block twice"


def test_record__may_end_during_a_conversion() -> None:
    """A conversion that has begun under a record ends as any other if the record ends meanwhile."""
    record_of_another_thread = record()

    class Ends:
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
            record_of_another_thread.__exit__(None, None, None)
            return np.ones(2)

    record_of_another_thread.__enter__()
    assert xbridge.to_numpy(Ends()).tolist() == [1.0, 1.0]
    assert not is_observed()


def test_record__conversions_of_all_threads_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversions of all threads are counted and none is lost."""
    begin, between = threading.Barrier(4), threading.Barrier(2)
    replace = record_module.RecordRow._replace

    def together(row: record_module.RecordRow, **changes: Any) -> record_module.RecordRow:
        """Two threads that get here at once have both looked at the row, and one change would be lost."""
        with suppress(threading.BrokenBarrierError):  # nobody else came, nor will again
            between.wait(0.2)
        return replace(row, **changes)

    def work() -> None:
        begin.wait()
        for _ in range(100):
            copy_one()

    monkeypatch.setattr(record_module.RecordRow, "_replace", together)
    with record() as seen:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [(row.calls, row.copied) for row in seen.rows] == [(400, 3_200_000)]


def test_record_summary__program_of_endless_lines_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of endless lines does not fill the memory."""
    monkeypatch.setattr(record_module, "_MOST_ROWS", 3)
    with record() as seen:
        for n in range(10):
            copy_from_line(n)
    assert len(seen.rows) == 4
    assert sum(row.calls for row in seen.rows) == 10
    (rest,) = [row for row in seen.rows if row.file == "elsewhere"]
    assert (rest.calls, rest.copied) == (7, 7 * 8000)
    assert "elsewhere:0" in seen.summary()


def copy_from_line(n: int) -> None:
    names = {"to_numpy": xbridge.to_numpy, "x": HOST}
    exec(compile("\n" * n + "to_numpy(x, copy=True)", "<made>", "exec"), names)


@given(conversions())
def test_record__bytes_are_those_of_the_plan_and_have_a_way_to_avoid_them(call: Conversion) -> None:
    """Bytes are those of the plan and have a way to avoid them."""
    plan = explain(call.array, call.target, **call.options)
    with record() as seen:
        try:
            xbridge.to_backend(call.array, call.target, **call.options)
        except xbridge.XBridgeError:
            assert seen.rows == ()
            return
    (row,) = seen.rows
    assert row.copied + row.cast + row.moved == sum(step.nbytes or 0 for step in plan.steps)
    assert bool(row.avoid) is bool(row.copied + row.cast + row.moved)
    reasons = {step.copy_reason.message for step in plan.steps if step.copy_reason}
    assert not reasons & set(row.avoid.split("; "))
    assert not [word for word in ("leave", "unsafe_share", "copy=None", "copy=False") if word in row.avoid]
    if call.options.get("copy"):
        assert row.avoid in ("", ASKED)


# -- what would spare it ---------------------------------------------------------------------------


def test_record__snapshot_of_weights_is_not_advised_away() -> None:
    """A snapshot of weights is not advised away."""
    torch = pytest.importorskip("torch")
    tree = xbridge.tree
    model = torch.nn.Linear(2, 2)
    with record() as seen:
        snapshot = tree.to_numpy(model.state_dict(), copy=True)
        tree.to_numpy(model.state_dict(), copy=True, dtype="float64")
        xbridge.transfer(model.state_dict(), "numpy", copy=True).result()
        list(xbridge.prefetch([model.state_dict()], "numpy", copy=True))
    before = {name: weight.tolist() for name, weight in snapshot.items()}
    with torch.no_grad():
        model.weight += 1
    assert {name: weight.tolist() for name, weight in snapshot.items()} == before
    assert sum(row.calls for row in seen.rows) == 8
    assert {row.avoid for row in seen.rows} == {ASKED}


def same(x: Any) -> Any:
    return x


def tracked(a: Any) -> Any:
    return xbridge.to_backend(a.copy(), "torch").requires_grad_()


GIVEN_ELSE: dict[str, tuple[dict[str, Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "native byte order from the start": ({}, lambda a: a.astype(">f8"), same),
    "a dense array, row by row": ({}, lambda a: a[::-1], lambda a: a[::-1].copy()),
    "an array that repeats nothing": (
        {},
        lambda a: np.lib.stride_tricks.as_strided(a, (2, 3), (0, 8)),
        lambda a: np.stack([a, a]),
    ),
    "aligned memory": (
        {},
        lambda a: np.frombuffer(bytearray(b"." + a.tobytes()), np.uint8)[1:].view(a.dtype),
        same,
    ),
    f"cast it once{SAME}": ({"dtype": "float32"}, same, lambda a: xbridge.to_numpy(a, dtype="float32")),
    "compute it without gradients, if none are needed": ({"grad": "detach"}, tracked, same),
}
"""The advice: options, what makes the array of three numbers that needs it, and what makes the other one."""


@pytest.mark.parametrize("advice", GIVEN_ELSE)
def test_record__advice_on_what_is_given_spares_the_bytes_and_changes_nothing_else(advice: str) -> None:
    """Advice on what is given spares the bytes and changes nothing else."""
    pytest.importorskip("torch")
    options, make, instead = GIVEN_ELSE[advice]
    a = np.arange(3.0)
    given, followed = make(a), instead(a)
    with record() as seen:
        before = xbridge.to_backend(given, "torch", **options)
    with record() as spared:
        after = xbridge.to_backend(followed, "torch", **options)
    assert [row.avoid for row in seen.rows] == [advice]
    assert [(row.copied, row.moved, row.avoid) for row in spared.rows] == [(0, 0, "")]
    assert (before.dtype, before.requires_grad) == (after.dtype, after.requires_grad)
    assert before.tolist() == after.tolist()


# -- how it is shown -----------------------------------------------------------------------------


def test_record_summary__summary_is_a_table_with_a_last_line_for_all() -> None:
    """The summary is a table with a last line for all."""
    with record() as seen:
        for _ in range(2):
            copy_one()
        xbridge.to_numpy(HOST, dtype="float32")
    head, *lines, last = seen.summary().splitlines()
    assert head.split("  ")[0].strip() == "where"
    assert all(word in head for word in ("calls", "copied", "cast", "moved", "time", "to avoid it"))
    assert len(lines) == 2
    copies = next(line for line in lines if f"test_record.py:{COPIES_AT}" in line)
    assert "16 kB" in copies
    assert copies.endswith(ASKED)
    assert last.startswith("all 2")
    assert last.split()[2:7] == ["3", "16", "kB", "4", "kB"]
    assert len(seen.summary(most=1).splitlines()) == 3
    assert seen.summary(most=1).splitlines()[-1].split()[2] == "3"


def test_record_to_json__all_of_it_is_there_as_json() -> None:
    """All rows are there as JSON."""
    with record() as seen:
        copy_one()
    (row,) = json.loads(seen.to_json())
    assert row == seen.rows[0]._asdict()


def converted_on(lines: int) -> record:
    """A record of a conversion by each of so many lines."""
    code = "\n".join(["convert(x, copy=True)"] * lines)
    with record() as seen:
        exec(compile(code, "/a/long/path/to/the/place/of/a/program/train.py", "exec"), NAMES)
    return seen


NAMES = {"convert": xbridge.to_numpy, "x": HOST}


def test_record__shows_its_sums_in_a_line() -> None:
    """A record shows its sums in a line."""
    shown = repr(converted_on(3))
    assert re.fullmatch(r"<record: calls 3, lines 3, copied 24 kB, cast 0 B, moved 0 B, time .* m?s>", shown)
    assert repr(record()) == "<record: nothing was converted>"


def test_record_summary__record_prints_its_summary() -> None:
    """A record prints its summary."""
    seen = converted_on(2)
    assert str(seen) == seen.summary()
    assert str(record()) == "nothing was converted"


def test_record__is_shown_in_a_notebook() -> None:
    """A notebook shows the summary."""
    seen = converted_on(2)
    assert seen._repr_html_() == f"<pre>{escape(str(seen))}</pre>"


def test_record__result_whose_tensor_was_written_to_since_is_counted() -> None:
    """A result in use that shares memory with a tensor is stale once the program writes to that."""
    torch = pytest.importorskip("torch")
    buffer, fixed = torch.zeros(3), torch.ones(3)
    with record() as seen:
        kept = [xbridge.to_numpy(buffer.fill_(i)) for i in range(5)]
        assert seen.rows[0].stale == 4
    buffer.fill_(9)  # after the block
    kept.clear()
    (row,) = seen.rows
    assert (row.stale, json.loads(seen.to_json())[0]["stale"]) == (4, 4)
    assert "copy=True: 4 may have changed with their source" in seen.summary()
    with record() as seen:
        for i in range(5):
            last = xbridge.to_numpy(buffer.fill_(i))
        copies = [xbridge.to_numpy(buffer.fill_(i), copy=True) for i in range(5)]
        same = [xbridge.to_backend(buffer.fill_(i), "torch") for i in range(5)]
        buffer.fill_(0)  # of which each of `same` is no copy
        shared = xbridge.to_numpy(fixed)
        with torch.inference_mode():
            uncounted = xbridge.to_numpy(torch.ones(2))
    assert len((last, copies, same, shared, uncounted)) == 5
    assert sum(row.stale for row in seen.rows) == 1  # `last`, to whose buffer the next lines wrote
