"""Transfers and prefetching beside the program, where all is host memory: what is promised of threads."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import traceback
import weakref
from array import array
from collections import namedtuple
from concurrent.futures import Future
from contextvars import ContextVar
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gate import PATIENCE, Gate

import xbridge
from xbridge._transfer import api as _transfer
from xbridge._transfer import threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Point = namedtuple("Point", "x y")  # noqa: PYI024 -- as people write them


def own_threads() -> list[threading.Thread]:
    """The threads of transfers that are there now."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("xbridge-")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    for thread in own_threads():
        thread.join(PATIENCE)
        assert not thread.is_alive()


# -- transfer --------------------------------------------------------------------------------------


TREES: dict[str, Any] = {
    "an array": np.arange(3.0),
    "a list": [np.arange(3.0), np.ones((2, 2))],
    "a tuple": (np.arange(3.0),),
    "a dict": {"x": np.arange(3.0), 3: np.ones(2)},
    "a named tuple": Point(np.arange(3.0), [np.ones(1)]),
    "nothing": [],
    "one in the other": {"a": [np.arange(3.0), (np.ones(1), {})], "b": []},
}


def same(tree: Any, other: Any) -> bool:
    """Whether two trees are of one form, and float32 stands in the second where floats stood."""
    if isinstance(tree, np.ndarray):
        return other.dtype == np.float32 and bool((tree == other).all())
    assert type(tree) is type(other)
    if isinstance(tree, dict):
        return list(tree) == list(other) and all(same(tree[key], other[key]) for key in tree)
    return len(tree) == len(other) and all(map(same, tree, other))


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_a_transfer_gives_a_tree_of_the_same_form(tree: Any) -> None:
    assert same(tree, xbridge.transfer(tree, "numpy", dtype="float32").result())


def test_an_array_that_is_there_twice_comes_out_once() -> None:
    a, b = np.ones(3), np.ones(3)

    first, second, third = xbridge.transfer([a, b, a], "numpy", dtype="float32").result()

    assert first is third
    assert first is not second


@pytest.mark.parametrize("leaf", ["text", b"bytes", None, 3, 2.5, np.str_("text"), object()])
def test_other_leaves_stay_as_they_are(leaf: object) -> None:
    assert xbridge.transfer([leaf, np.ones(1)], "numpy").result()[0] is leaf


def test_a_transfer_within_the_host_is_the_conversion_itself() -> None:
    a = np.ones(3)

    assert xbridge.transfer(a, "numpy").result() is a
    assert xbridge.transfer(a, "numpy", copy=True).result() is not a


def test_the_call_returns_before_anything_is_read() -> None:
    slow = Gate()
    under_way = xbridge.transfer(slow, "numpy")

    assert slow.reading.wait(PATIENCE)
    assert not under_way.done()
    with pytest.raises(TimeoutError):
        under_way.result(timeout=0)
    slow.opened.set()
    assert under_way.result(PATIENCE).tolist() == [1, 1]
    assert under_way.done()
    assert under_way.result() is under_way.result()


def test_seconds_to_wait_are_a_number() -> None:
    under_way = xbridge.transfer(np.ones(2), "numpy")

    wrong: tuple[Any, ...] = ("1", float("nan"), 1j)
    right: tuple[Any, ...] = (1e300, 10**400, np.int64(5), np.float32(5), True)
    for timeout in wrong:
        with pytest.raises(xbridge.OptionError, match="a number of seconds, or None; try"):
            under_way.result(timeout)
    for timeout in right:
        assert under_way.result(timeout).tolist() == [1, 1]


def test_sources_live_as_long_as_they_are_needed() -> None:
    slow = Gate()
    alive, opened = weakref.ref(slow), slow.opened
    under_way = xbridge.transfer(slow, "numpy")
    slow.reading.wait(PATIENCE)
    del slow
    gc.collect()
    assert alive() is not None

    opened.set()
    under_way.result(PATIENCE)
    for thread in own_threads():
        thread.join(PATIENCE)
    gc.collect()
    assert alive() is None


def test_a_transfer_shows_its_state_without_a_wait() -> None:
    slow = Gate()
    there, bad = xbridge.transfer(slow, "numpy"), xbridge.transfer(object(), "numpy")
    assert repr(there) == "<Transfer: running>"
    slow.opened.set()
    there.result()
    assert repr(there) == "<Transfer: done>"
    with pytest.raises(xbridge.UnsupportedArrayError):
        bad.result()
    assert repr(bad).startswith("<Transfer: failed with UnsupportedArrayError('cannot convert an object: ")


def test_a_transfer_that_is_dropped_ends_by_itself() -> None:
    slow = Gate()
    xbridge.transfer(slow, "numpy")
    (thread,) = own_threads()
    slow.opened.set()

    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_prefetch_says_what_it_converts_and_where_to() -> None:
    assert repr(xbridge.prefetch([], "numpy", depth=3)) == "<prefetch: batches of a list to numpy, 3 ahead>"


@pytest.mark.parametrize(
    "options",
    [{"dtype": "float31"}, {"device": "cuda:0"}, {"copy": 3}, {"grad": "no"}, {"device": "x:y"}],
    ids=str,
)
def test_options_are_refused_at_the_call(options: dict[str, Any]) -> None:
    with pytest.raises(xbridge.XBridgeError) as at_call:
        xbridge.to_backend(np.ones(1), "numpy", **options)

    for call in (xbridge.transfer, xbridge.prefetch):
        with pytest.raises(type(at_call.value)):
            call([np.ones(1)], "numpy", **options)


def test_an_unknown_backend_is_refused_at_the_call() -> None:
    for call in (xbridge.transfer, xbridge.prefetch):
        with pytest.raises(xbridge.UnknownBackendError):
            call([np.ones(1)], "nolib")


def test_a_time_that_ran_out_elsewhere_is_not_ours() -> None:
    theirs, future = TimeoutError("of the file system"), Future[Any]()
    future.set_exception(theirs)
    with pytest.raises(TimeoutError) as caught:
        xbridge.Transfer(future).result(timeout=0)
    assert caught.value is theirs


def test_what_is_wrong_with_an_array_is_raised_by_result_every_time() -> None:
    under_way = xbridge.transfer([np.ones(1)], "numpy", copy=False, dtype="float32")

    for _ in range(2):
        with pytest.raises(xbridge.CopyError):
            under_way.result()
    assert under_way.done()


@pytest.mark.parametrize("alone", ["text", b"bytes", 3, 0.5, None, np.array(["a", "b"])])
def test_text_and_numbers_stay_as_they_are(alone: object) -> None:
    assert xbridge.transfer(alone, "torch" if find_spec("torch") else "numpy").result() is alone


def test_an_iterable_that_writes_its_memory_again_may_where_batches_are_copied() -> None:
    def refilled() -> Iterator[dict[str, Any]]:
        memory = np.empty(1000)
        for i in range(8):
            memory[:] = i
            yield {"x": memory}

    batches = list(xbridge.prefetch(refilled(), "numpy", copy=True, depth=3))
    assert [set(batch["x"]) for batch in batches] == [{i} for i in range(8)]


def test_any_other_leaf_alone_must_be_an_array() -> None:
    with pytest.raises(xbridge.UnsupportedArrayError):
        xbridge.transfer(object(), "numpy").result()
    assert xbridge.transfer(array("d", [1, 2]), "numpy").result().tolist() == [1, 2]


def test_a_batch_that_holds_itself_is_refused() -> None:
    endless: list[object] = [np.ones(1)]
    endless.append(endless)

    under_way = xbridge.transfer(endless, "numpy")
    with pytest.raises(xbridge.OptionError, match="no end"):
        under_way.result()


def test_a_thread_sees_the_context_of_the_caller() -> None:
    setting: ContextVar[str] = ContextVar("setting", default="outside")

    class Asks(Gate):
        """Whoever reads it says in which context."""

        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            return np.array([setting.get() == "inside"])

    token = setting.set("inside")
    loading: list[str] = []

    def batches() -> Iterator[Asks]:
        for _ in range(2):
            loading.append(setting.get())
            yield Asks()

    seen = [xbridge.transfer(Asks(), "numpy").result(), *xbridge.prefetch(batches(), "numpy")]
    setting.reset(token)

    assert [bool(x[0]) for x in seen] == [True, True, True]
    assert loading == ["inside"] * 2


def alone(program: str) -> subprocess.CompletedProcess[str]:
    """A program in an interpreter of its own, which has to end."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


def test_a_program_may_end_with_transfers_under_way() -> None:
    program = """
import numpy as np, xbridge
def slow():
    for i in range(100):
        yield np.ones(1 << 20).cumsum()
ahead = iter(xbridge.prefetch(slow(), "numpy", copy=True))
next(ahead)
kept = xbridge.transfer(np.ones(1 << 20), "numpy", dtype="float32")
xbridge.transfer(np.ones(1 << 20), "numpy", dtype="float32")
"""
    shown = alone(program)

    assert (shown.returncode, shown.stderr) == (0, "")


def refused(*_: object) -> None:
    """What starting a thread does where there are too many."""
    message = "can't start new thread"
    raise RuntimeError(message)


def test_without_a_thread_a_transfer_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", refused)

    under_way = xbridge.transfer([np.ones(2)], "numpy", dtype="float32")
    failed = xbridge.transfer([np.ones(1)], "numpy", copy=False, dtype="float32")

    assert under_way.done()
    assert under_way.result()[0].dtype == np.float32
    with pytest.raises(xbridge.CopyError):
        failed.result()


@pytest.mark.parametrize("copy", [None, True])
def test_without_a_thread_nothing_is_fetched_ahead(
    copy: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.Thread, "start", refused)

    with pytest.raises(xbridge.XBridgeError, match="no thread"):
        next(iter(xbridge.prefetch([np.ones(2)], "numpy", copy=copy)))


def test_the_interpreter_may_be_at_its_exit() -> None:
    program = """
import atexit, numpy as np, xbridge
def last():
    print(xbridge.transfer(np.ones(2), "numpy").result())
    try:
        next(iter(xbridge.prefetch([np.ones(2)], "numpy")))
    except xbridge.XBridgeError as error:
        print(error)
atexit.register(last)
xbridge.transfer(np.ones(2), "numpy").result()
"""
    shown = alone(program)

    assert shown.stderr == ""
    assert shown.stdout.startswith("[1. 1.]\ncannot convert batches ahead")


# -- prefetch --------------------------------------------------------------------------------------


def counted(n: int, started: list[int]) -> Iterator[np.ndarray]:
    """Batches, and a note of each that was asked for."""
    for i in range(n):
        started.append(i)
        yield np.full(2, float(i))


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_batches_come_in_order_and_all_of_them(n: int, depth: int) -> None:
    batches = iter(xbridge.prefetch(counted(n, []), "numpy", dtype="float32", depth=depth))

    assert [batch.tolist() for batch in batches] == [[i, i] for i in range(n)]


def test_nothing_begins_before_the_first_batch_is_asked_for() -> None:
    started: list[int] = []
    batches = iter(xbridge.prefetch(counted(3, started), "numpy"))

    assert not own_threads()
    del batches
    assert started == []


@pytest.mark.parametrize("depth", [1, 3])
def test_as_many_batches_are_on_their_way_as_the_depth_says(depth: int) -> None:
    started: list[int] = []
    all_asked = threading.Event()

    def batches() -> Iterator[np.ndarray]:
        for batch in counted(20, started):
            if len(started) == depth + 1:
                all_asked.set()
            yield batch

    ahead = iter(xbridge.prefetch(batches(), "numpy", depth=depth))
    next(ahead)

    assert all_asked.wait(PATIENCE)  # while the caller has the first one
    ahead.close()
    assert len(started) == depth + 1


def test_the_next_batch_is_loaded_while_one_is_converted_and_one_is_used() -> None:
    slow, loading = Gate(), threading.Event()

    def batches() -> Iterator[object]:
        yield np.zeros(1)
        yield slow
        loading.set()
        yield np.zeros(2)

    ahead = iter(xbridge.prefetch(batches(), "numpy"))
    assert len(next(ahead)) == 1

    assert slow.reading.wait(PATIENCE)
    assert loading.wait(PATIENCE)
    slow.opened.set()
    assert [len(x) for x in ahead] == [2, 2]


def failing() -> Iterator[np.ndarray]:
    yield np.ones(1)
    raise ZeroDivisionError("the disk is on fire")


def test_what_the_iterable_raises_comes_in_its_turn_with_its_traceback() -> None:
    ahead = iter(xbridge.prefetch(failing(), "numpy"))

    assert next(ahead).tolist() == [1]
    with pytest.raises(ZeroDivisionError, match="on fire") as raised:
        next(ahead)
    assert "failing" in [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert not own_threads()
    with pytest.raises(StopIteration):
        next(ahead)


def test_what_is_wrong_with_a_batch_comes_in_its_turn() -> None:
    ahead = iter(xbridge.prefetch([np.ones(1), object(), np.ones(2)], "numpy"))

    assert next(ahead).tolist() == [1]
    with pytest.raises(xbridge.UnsupportedArrayError):
        next(ahead)
    assert not own_threads()


def leave_by_break(ahead: Any) -> None:
    for _ in ahead:
        break


def leave_by_error(ahead: Any) -> None:
    def use_one() -> None:
        for _ in ahead:
            raise KeyError

    with pytest.raises(KeyError):
        use_one()


def leave_by_close(ahead: Any) -> None:
    next(ahead)
    ahead.close()


def leave_by_cycle(ahead: Any) -> None:
    next(ahead)
    cycle = [ahead]
    cycle.append(cycle)


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_error, leave_by_close, leave_by_cycle])
def test_no_thread_is_left_when_the_loop_was(leave: Callable[[Any], None]) -> None:
    started: list[int] = []
    source = counted(100, started)
    ahead = iter(xbridge.prefetch(source, "numpy"))
    leave(ahead)
    del ahead
    gc.collect()

    assert not own_threads()
    assert len(started) < 10
    next(source)  # nobody is in it any more


def test_a_loop_that_is_deleted_in_another_thread_does_not_wait() -> None:
    slow = Gate()
    ahead = [iter(xbridge.prefetch(iter([np.ones(1), slow]), "numpy", depth=1))]
    next(ahead[0])
    slow.reading.wait(PATIENCE)

    dropper = threading.Thread(target=ahead.clear)
    dropper.start()
    dropper.join(PATIENCE)
    assert not dropper.is_alive()
    assert own_threads()  # the one that reads
    slow.opened.set()


def test_what_was_not_begun_when_the_loop_was_left_never_begins() -> None:
    started: list[int] = []
    second, go_on = threading.Event(), threading.Event()

    def batches() -> Iterator[np.ndarray]:
        for batch in counted(20, started):
            if len(started) == 2:
                second.set()
                assert go_on.wait(PATIENCE)
            yield batch

    ahead = iter(xbridge.prefetch(batches(), "numpy", depth=5))
    next(ahead)
    assert second.wait(PATIENCE)
    closer = threading.Thread(target=ahead.close)  # which does not wait, being another thread
    closer.start()
    closer.join(PATIENCE)
    go_on.set()
    for thread in own_threads():
        thread.join(PATIENCE)

    assert started == [0, 1]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_program_that_is_interrupted_does_not_wait_for_the_iterable(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def batches() -> Iterator[np.ndarray]:
        yield np.ones(1)
        asked.set()
        assert go_on.wait(PATIENCE)

    def interrupted(*_: object) -> None:
        assert asked.wait(PATIENCE)
        raise kind

    ahead = iter(xbridge.prefetch(batches(), "numpy"))
    next(ahead)
    with monkeypatch.context() as patch:
        patch.setattr(_transfer, "_take_first", interrupted)  # as a signal would
        with pytest.raises(kind):
            next(ahead)
    assert own_threads()
    go_on.set()


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Iterator[np.ndarray], threading.Event]]:
    """Batches of which the second one is never there, and an event: the second one is asked for."""
    monkeypatch.setattr(threads, "GRACE", 0.0)
    asked, go_on = threading.Event(), threading.Event()

    def batches() -> Iterator[np.ndarray]:
        yield np.ones(1)
        asked.set()
        assert go_on.wait(PATIENCE)

    yield batches(), asked
    go_on.set()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python's handler of Ctrl-C, which a process in the background does not start with."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


BLOCKED = """
import os, signal, threading
import numpy as np, xbridge

signal.signal(signal.SIGINT, signal.default_int_handler)
asked = threading.Event()

def batches():
    yield np.ones(1)
    asked.set()
    threading.Event().wait()

def interrupt():
    asked.wait()
    os.kill(os.getpid(), signal.SIGINT)

loop = iter(xbridge.prefetch(batches(), "numpy", copy={copy}))
next(loop)
{rest}
"""
ENDS = {
    "in the body": "asked.wait(); signal.raise_signal(signal.SIGINT)",
    "while it waits": "threading.Thread(target=interrupt).start(); next(loop)",
    "without Ctrl-C": "del loop",
    "with the loop open": "",
}


@pytest.mark.parametrize("copy", [None, True])
@pytest.mark.parametrize("end", ENDS)
def test_prefetch__process_ends_though_the_iterable_is_blocked(end: str, copy: bool | None) -> None:
    """A program ends after one Ctrl-C, or by itself, if an iterable never yields another batch."""
    shown = alone(BLOCKED.format(copy=copy, rest=ENDS[end]))  # which has a time limit
    interrupted = end in ("in the body", "while it waits")
    assert shown.stderr.rstrip().endswith("KeyboardInterrupt") is interrupted
    assert bool(shown.stderr) is interrupted


def test_transfer__process_ends_though_an_exporter_is_blocked() -> None:
    """A program ends after one Ctrl-C in `result`, if the conversion never does."""
    shown = alone(
        """
import os, signal, threading
import xbridge

signal.signal(signal.SIGINT, signal.default_int_handler)

class Blocked:
    def __array__(self, dtype=None, copy=None):
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait()

xbridge.transfer(Blocked(), "numpy").result()
"""
    )
    assert shown.stderr.rstrip().endswith("KeyboardInterrupt")


def test_prefetch__break_waits_for_a_blocked_iterable_only_for_a_time(
    blocked: tuple[Iterator[np.ndarray], threading.Event],
) -> None:
    """A loop that is left leaves a thread behind in an iterable that does not come back."""
    batches, asked = blocked
    for _ in xbridge.prefetch(batches, "numpy"):
        assert asked.wait(PATIENCE)
        break
    assert own_threads()


def test_prefetch__error_of_the_threads_context_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that cannot take over the settings of the caller answers each batch with the error."""

    def broken() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(_transfer, "capture_context", lambda: broken)
    with pytest.raises(ZeroDivisionError):
        next(iter(xbridge.prefetch([np.ones(1)], "numpy")))


def test_prefetch__begins_nothing_at_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the exit of the interpreter, when its threads were ended, no other thread begins."""
    loop = iter(xbridge.prefetch([np.ones(1)] * 3, "numpy"))
    next(loop)
    monkeypatch.setattr(threads, "_is_exiting", False)  # and back
    threads._end_all_workers()
    assert not own_threads()
    with pytest.raises(xbridge.XBridgeError, match="no thread"):
        next(iter(xbridge.prefetch([np.ones(1)], "numpy")))


def test_prefetch__thread_that_is_gone_is_not_kept() -> None:
    """Loops that were left keep nothing for the exit, in whatever thread they end."""
    for _ in range(3):
        loop = [iter(xbridge.prefetch(iter([np.ones(1)] * 3), "numpy"))]
        next(loop[0])
        dropper = threading.Thread(target=loop.clear)
        dropper.start()
        dropper.join(PATIENCE)
    for thread in own_threads():
        thread.join(PATIENCE)
    assert not threads._workers


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_in_the_body_of_a_loop_does_not_wait_for_the_iterable(
    blocked: tuple[Iterator[np.ndarray], threading.Event],
) -> None:
    batches, asked = blocked

    def use() -> None:
        for _ in xbridge.prefetch(batches, "numpy"):
            assert asked.wait(PATIENCE)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        use()
    assert own_threads()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_is_noticed_by_a_loop_around_another_one(
    blocked: tuple[Iterator[np.ndarray], threading.Event],
) -> None:
    batches, asked = blocked

    def use() -> None:
        for _ in xbridge.prefetch(batches, "numpy"):
            assert len(list(xbridge.prefetch([np.ones(1)], "numpy"))) == 1
            assert asked.wait(PATIENCE)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        use()
    assert own_threads()


def test_a_handler_of_ctrl_c_that_the_program_has_set_is_left_alone() -> None:
    seen: list[int] = []

    def handle(number: int, _: object) -> None:
        seen.append(number)

    before = signal.signal(signal.SIGINT, handle)
    try:
        for _ in xbridge.prefetch([np.ones(1), np.ones(1)], "numpy"):
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is handle
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT] * 2


@pytest.mark.usefixtures("interruptible")
def test_a_loop_in_another_thread_leaves_the_handler_of_ctrl_c_alone() -> None:
    seen = []

    def use() -> None:
        for _ in xbridge.prefetch([np.ones(1)] * 9, "numpy"):
            seen.append(signal.getsignal(signal.SIGINT))
            break

    thread = threading.Thread(target=use)
    thread.start()
    thread.join(PATIENCE)
    assert seen == [signal.default_int_handler]


def test_each_loop_iterates_over_the_iterable_anew() -> None:
    batches = xbridge.prefetch([np.ones(1), np.ones(2), np.ones(3)], "numpy")

    assert [[len(x) for x in batches] for _ in range(2)] == [[1, 2, 3], [1, 2, 3]]
    for _ in batches:
        break
    assert len(list(batches)) == len(batches) == 3


def test_batches_have_a_length_if_the_iterable_has_one() -> None:
    assert not hasattr(xbridge.prefetch(counted(3, []), "numpy"), "__len__")
    assert not hasattr(xbridge.prefetch(map(np.ones, [1, 2]), "numpy"), "__len__")
    assert len(xbridge.prefetch({1: np.ones(1)}.values(), "numpy")) == 1


ITERATORS: dict[str, Callable[[], Iterator[np.ndarray]]] = {
    "a generator": lambda: counted(3, []),
    "another iterator": lambda: map(np.ones, [1, 2, 3]),
}


@pytest.mark.parametrize("kind", ITERATORS)
def test_a_second_loop_over_an_iterator_is_refused(kind: str) -> None:
    batches = xbridge.prefetch(ITERATORS[kind](), "numpy")

    assert len(list(batches)) == 3
    with pytest.raises(xbridge.OptionError, match="used up"):
        list(batches)


def test_a_generator_that_is_used_up_already_is_refused() -> None:
    used = counted(3, [])
    assert len(list(used)) == 3
    with pytest.raises(xbridge.OptionError, match="used up"):
        list(xbridge.prefetch(used, "numpy"))


class Resetting:
    """An iterable that is its own iterator, and begins again when a loop does."""

    def __iter__(self) -> Resetting:
        self.rest = 3
        return self

    def __next__(self) -> np.ndarray:
        if not self.rest:
            raise StopIteration
        self.rest -= 1
        return np.ones(self.rest)


def test_an_iterator_that_begins_again_may_be_used_again() -> None:
    batches = xbridge.prefetch(Resetting(), "numpy")

    assert [len(list(batches)) for _ in range(3)] == [3, 3, 3]


def test_a_batch_lives_as_long_as_its_user_wants() -> None:
    ahead = iter(xbridge.prefetch((np.full(2, i) for i in range(9)), "numpy", copy=True))
    batch = next(ahead)
    alive = weakref.ref(batch)
    del batch

    assert alive() is None
    ahead.close()


class Late:
    """An array of a library that gives up."""

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        raise TimeoutError("the store did not answer")


def test_a_library_that_gives_up_is_not_a_transfer_that_goes_on() -> None:
    under_way = xbridge.transfer(Late(), "numpy")

    with pytest.raises((TimeoutError, xbridge.XBridgeError), match="did not answer"):
        under_way.result()


@pytest.mark.parametrize("loader", [3, None, object()])
def test_what_is_not_iterable_is_refused_at_the_call(loader: Any) -> None:
    with pytest.raises(xbridge.OptionError, match=r"not iterable.*\[batch\]"):
        xbridge.prefetch(loader, "numpy")


@pytest.mark.parametrize("depth", [0, -1, 1.5, None, "2"])
def test_a_depth_below_one_is_refused(depth: Any) -> None:
    with pytest.raises(xbridge.OptionError, match="depth=2"):
        xbridge.prefetch([], "numpy", depth=depth)


# -- other libraries -------------------------------------------------------------------------------


def test_a_thread_records_history_where_the_caller_does() -> None:
    torch = pytest.importorskip("torch")
    w = torch.ones(2, requires_grad=True)

    kept = xbridge.transfer(w, "torch", dtype="float64").result()
    with torch.no_grad():
        cut = xbridge.transfer(w, "torch", dtype="float64")
        batches = list(xbridge.prefetch([w], "torch", dtype="float64"))

    assert kept.requires_grad
    assert not cut.result().requires_grad
    assert not batches[0].requires_grad


def test_an_iterable_computes_in_the_modes_of_torch_that_the_caller_has() -> None:
    torch = pytest.importorskip("torch")

    def batches() -> Iterator[Any]:
        for _ in range(2):
            yield torch.ones(2, 2) @ torch.ones(2, 2)

    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.float16):
        inside = list(xbridge.prefetch(batches(), "torch"))
    outside = list(xbridge.prefetch(batches(), "torch"))

    assert [(x.dtype, x.is_inference()) for x in inside] == [(torch.float16, True)] * 2
    assert [(x.dtype, x.is_inference()) for x in outside] == [(torch.float32, False)] * 2


def test_autocast_in_a_thread_casts_weights_as_they_are_now() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.ones(2, 2))

    def batches() -> Iterator[Any]:
        for _ in range(2):
            yield (torch.ones(1, 2) @ weight).detach()
            with torch.no_grad():
                weight.add_(1)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = list(xbridge.prefetch(batches(), "torch", copy=True))

    assert [x.tolist() for x in made] == [[[2, 2]], [[4, 4]]]


@pytest.mark.parametrize("device", ["cuda:99", "nowhere"])
def test_a_device_that_is_not_there_is_refused_at_the_call(device: str) -> None:
    pytest.importorskip("torch")

    for call in (xbridge.transfer, xbridge.prefetch):
        with pytest.raises(xbridge.DeviceError, match="device='cpu'"):
            call([np.ones(1)], "torch", device=device)


def test_an_array_without_memory_is_converted_at_once_in_the_callers_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(threads, "Worker", None)

    there = xbridge.transfer(torch.ones(2, device="meta"), "torch", dtype="float64")

    assert there.done()
    assert there.result().dtype == torch.float64


def test_an_iterable_computes_on_the_device_and_the_stream_of_the_caller(
    cupy: Any, own_registry: None
) -> None:
    def batches() -> Iterator[Any]:
        for _ in range(2):
            assert cupy.cuda.get_current_stream().ptr == 7
            yield cupy.asarray(np.arange(3.0))

    with cupy.cuda.Device(1), cupy.cuda.Stream(7):
        made = list(xbridge.prefetch(batches(), "cupy", dtype="float32"))

    assert [x.device.id for x in made] == [1, 1]
    assert [x._memory.tolist() for x in made] == [[0, 1, 2]] * 2


def test_what_an_iterable_asks_of_a_stream_of_its_own_is_done_before_it_is_converted(
    cupy: Any, own_registry: None
) -> None:
    def batches() -> Iterator[Any]:
        with cupy.cuda.Stream(8):
            yield cupy.asarray(np.arange(3.0))

    (made,) = xbridge.prefetch(batches(), "cupy", device="cuda:0", dtype="float32")

    assert made._memory.tolist() == [0, 1, 2]


def test_a_thread_has_64_bits_where_the_caller_has() -> None:
    jax = pytest.importorskip("jax")
    wide = np.ones(2)

    with jax.enable_x64(True):
        there = xbridge.transfer(wide, "jax")
        (batch,) = xbridge.prefetch([wide], "jax")

    assert there.result().dtype == batch.dtype == "float64"
    with pytest.raises(xbridge.DTypeError):
        xbridge.transfer(wide, "jax").result()


def test_an_iterable_sees_the_options_of_jax_that_the_caller_sees() -> None:
    jax = pytest.importorskip("jax")

    def batches() -> Iterator[Any]:
        for _ in range(2):
            yield jax.numpy.ones(2)

    with jax.enable_x64(True):
        wide = list(xbridge.prefetch(batches(), "jax"))
    narrow = list(xbridge.prefetch(batches(), "jax"))

    assert [x.dtype for x in wide + narrow] == ["float64"] * 2 + ["float32"] * 2


def test_a_tracer_is_converted_in_its_own_program() -> None:
    jax = pytest.importorskip("jax")

    doubled = jax.jit(lambda x: xbridge.transfer([x * 2], "jax", dtype="int32").result()[0])

    assert doubled(np.float32(3)).item() == 6
