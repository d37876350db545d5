"""Transfers and prefetching beside the program, where all is host memory: what is promised of threads."""

from __future__ import annotations

import gc
import subprocess
import sys
import sysconfig
import threading
import traceback
import weakref
from contextvars import ContextVar
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gate import PATIENCE, Gate

import xbridge
from xbridge._transfer import threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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


def test_transfer__returns_before_reading() -> None:
    """`transfer` returns before the array is read, and `result` waits for it."""
    slow = Gate()
    under_way = xbridge.transfer(slow, "numpy")

    assert slow.reading.wait(PATIENCE)
    assert not under_way.done()
    assert repr(under_way) == "<Transfer: running>"
    with pytest.raises(TimeoutError):
        under_way.result(timeout=0)
    slow.opened.set()
    assert under_way.result(PATIENCE).tolist() == [1, 1]
    assert under_way.done()
    assert repr(under_way) == "<Transfer: done>"
    assert under_way.result() is under_way.result()


def test_result__timeout_must_be_a_number() -> None:
    """`result` accepts any real number of seconds as its timeout and nothing else."""
    under_way = xbridge.transfer(np.ones(2), "numpy")

    wrong: tuple[Any, ...] = ("1", float("nan"), 1j)
    right: tuple[Any, ...] = (1e300, 10**400, np.int64(5), np.float32(5), True)
    for timeout in wrong:
        with pytest.raises(xbridge.OptionError, match="a number of seconds, or None; try"):
            under_way.result(timeout)
    for timeout in right:
        assert under_way.result(timeout).tolist() == [1, 1]


@pytest.mark.slow  # it collects garbage twice
def test_transfer__keeps_sources_alive_until_done() -> None:
    """A source is kept alive until its transfer is done, and no longer."""
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


@pytest.mark.parametrize(
    "options", [{"dtype": "float31"}, {"device": "cuda:0"}, {"copy": 3}, {"grad": "no"}], ids=str
)
def test_transfer__invalid_options_raise_at_the_call(options: dict[str, Any]) -> None:
    """`transfer` and `prefetch` reject invalid options immediately."""
    with pytest.raises(xbridge.XBridgeError) as at_call:
        xbridge.to_backend(np.ones(1), "numpy", **options)

    for call in (xbridge.transfer, xbridge.prefetch):
        with pytest.raises(type(at_call.value)):
            call([np.ones(1)], "numpy", **options)


def test_result__raises_the_error_every_time() -> None:
    """`result` raises the error of the conversion each time it is called."""
    under_way = xbridge.transfer([np.ones(1)], "numpy", copy=False, dtype="float32")

    for _ in range(2):
        with pytest.raises(xbridge.CopyError):
            under_way.result()
    assert under_way.done()
    assert repr(under_way).startswith("<Transfer: failed with CopyError(")


@pytest.mark.parametrize("alone", ["text", b"bytes", 3, 0.5, None, np.array(["a", "b"])])
def test_transfer__returns_text_and_numbers_unchanged(alone: object) -> None:
    """Text and numbers that are passed alone come back as the same objects."""
    assert xbridge.transfer(alone, "torch" if find_spec("torch") else "numpy").result() is alone


def test_prefetch__copy_allows_reused_buffers() -> None:
    """With `copy=True` an iterable may refill the same buffer for each batch."""

    def refilled() -> Iterator[dict[str, Any]]:
        memory = np.empty(1000)
        for i in range(8):
            memory[:] = i
            yield {"x": memory}

    batches = list(xbridge.prefetch(refilled(), "numpy", copy=True, depth=3))
    assert [set(batch["x"]) for batch in batches] == [{i} for i in range(8)]


def test_transfer__runs_in_the_callers_context() -> None:
    """Context variables of the caller are set in the thread of `transfer` and `prefetch`."""
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


def test_transfer__process_can_exit_while_running() -> None:
    """A program can end without output while transfers are running."""
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


def test_transfer__runs_at_once_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can be started, `transfer` converts before it returns."""
    monkeypatch.setattr(threading.Thread, "start", refused)

    under_way = xbridge.transfer([np.ones(2)], "numpy", dtype="float32")
    failed = xbridge.transfer([np.ones(1)], "numpy", copy=False, dtype="float32")

    assert under_way.done()
    assert under_way.result()[0].dtype == np.float32
    with pytest.raises(xbridge.CopyError):
        failed.result()


@pytest.mark.parametrize("copy", [None, True])
def test_prefetch__raises_without_threads(copy: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can be started, `prefetch` raises."""
    monkeypatch.setattr(threading.Thread, "start", refused)

    with pytest.raises(xbridge.XBridgeError, match="no thread"):
        next(iter(xbridge.prefetch([np.ones(2)], "numpy", copy=copy)))


def test_transfer__works_at_interpreter_exit() -> None:
    """In an `atexit` handler `transfer` works and `prefetch` raises."""
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


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("n", [0, 1, 7])
def test_prefetch__yields_all_batches_in_order(n: int, depth: int) -> None:
    """Batches come complete and in the order of the iterable."""
    batches = iter(xbridge.prefetch(counted(n, []), "numpy", dtype="float32", depth=depth))

    assert [batch.tolist() for batch in batches] == [[i, i] for i in range(n)]


@pytest.mark.parametrize("depth", [1, 3])
def test_prefetch__depth_bounds_the_batches_ahead(depth: int) -> None:
    """At most `depth` batches are read ahead."""
    started: list[int] = []
    all_asked = threading.Event()

    def batches() -> Iterator[np.ndarray]:
        for batch in counted(20, started):
            if len(started) == depth + 1:
                all_asked.set()
            yield batch

    ahead = iter(xbridge.prefetch(batches(), "numpy", depth=depth))
    assert started == []
    next(ahead)

    assert all_asked.wait(PATIENCE)  # while the caller has the first one
    ahead.close()
    assert len(started) == depth + 1


def test_prefetch__loads_converts_and_uses_concurrently() -> None:
    """A batch is loaded while another is converted and a third one is used."""
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


def test_prefetch__raises_errors_of_the_iterable_in_turn() -> None:
    """An exception of the iterable is raised in its turn with its traceback."""
    ahead = iter(xbridge.prefetch(failing(), "numpy"))

    assert next(ahead).tolist() == [1]
    with pytest.raises(ZeroDivisionError, match="on fire") as raised:
        next(ahead)
    assert "failing" in [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert not own_threads()
    with pytest.raises(StopIteration):
        next(ahead)


def test_prefetch__raises_errors_of_a_batch_in_turn() -> None:
    """A batch that cannot be converted raises in its turn."""
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


@pytest.mark.slow  # it collects garbage
@pytest.mark.parametrize("leave", [leave_by_break, leave_by_error, leave_by_close, leave_by_cycle])
def test_prefetch__leaving_the_loop_ends_the_threads(leave: Callable[[Any], None]) -> None:
    """No thread remains after a loop is left by break, error, close or garbage collection."""
    started: list[int] = []
    source = counted(100, started)
    ahead = iter(xbridge.prefetch(source, "numpy"))
    leave(ahead)
    del ahead
    gc.collect()

    assert not own_threads()
    assert len(started) < 10
    next(source)  # nobody is in it any more


# A signal that arrives just before the main thread begins to wait for a lock does not end that wait.
INTERRUPT = """
import os, signal, threading
import numpy as np, xbridge

seen = threading.Event()

def end(*_):
    seen.set()
    raise KeyboardInterrupt

def interrupt():
    while not seen.wait(0.1):
        os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, end)
"""

BLOCKED = """
asked = threading.Event()

def batches():
    yield np.ones(1)
    asked.set()
    threading.Event().wait()

def interrupt_later():
    asked.wait()
    interrupt()

loop = iter(xbridge.prefetch(batches(), "numpy", copy={copy}))
next(loop)
{rest}
"""
ENDS = {
    "in the body": "asked.wait(); signal.raise_signal(signal.SIGINT)",
    "while it waits": "threading.Thread(target=interrupt_later).start(); next(loop)",
    "without Ctrl-C": "del loop",
    "with the loop open": "",
}


@pytest.mark.slow  # eight processes, which are interrupted
@pytest.mark.parametrize("copy", [None, True])
@pytest.mark.parametrize("end", ENDS)
def test_prefetch__process_ends_with_a_blocked_iterable(end: str, copy: bool | None) -> None:
    """A program ends after one Ctrl-C, or on its own, if the iterable never yields another batch."""
    shown = alone(INTERRUPT + BLOCKED.format(copy=copy, rest=ENDS[end]))  # which has a time limit
    interrupted = end in ("in the body", "while it waits")
    assert shown.stderr.rstrip().endswith("KeyboardInterrupt") is interrupted
    assert bool(shown.stderr) is interrupted


@pytest.mark.slow  # a process that is interrupted
def test_transfer__process_ends_with_a_blocked_exporter() -> None:
    """A program ends after one Ctrl-C in `result` if the conversion never finishes."""
    shown = alone(
        INTERRUPT
        + """
class Blocked:
    def __array__(self, dtype=None, copy=None):
        interrupt()
        threading.Event().wait()

xbridge.transfer(Blocked(), "numpy").result()
"""
    )
    assert shown.stderr.rstrip().endswith("KeyboardInterrupt")


def test_prefetch__break_waits_briefly_for_a_blocked_iterable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving a loop waits for a limited time only and then abandons the thread."""
    monkeypatch.setattr(threads, "GRACE", 0.0)
    asked, go_on = threading.Event(), threading.Event()

    def batches() -> Iterator[np.ndarray]:
        yield np.ones(1)
        asked.set()
        assert go_on.wait(PATIENCE)

    for _ in xbridge.prefetch(batches(), "numpy"):
        assert asked.wait(PATIENCE)
        break
    assert own_threads()
    go_on.set()


def test_prefetch__iterates_anew_each_time() -> None:
    """Each loop iterates over the iterable from the start."""
    batches = xbridge.prefetch([np.ones(1), np.ones(2), np.ones(3)], "numpy")

    assert [[len(x) for x in batches] for _ in range(2)] == [[1, 2, 3], [1, 2, 3]]
    for _ in batches:
        break
    assert len(list(batches)) == len(batches) == 3


@pytest.mark.parametrize(
    ("batches", "expected"),
    [([1.0], True), ([], False), (iter([1.0]), True)],
    ids=["full", "empty", "unknown"],
)
def test_prefetch__is_false_if_it_is_known_to_be_empty(batches: Any, expected: bool) -> None:
    """The truth of batches needs no length, which many iterables do not have."""
    assert bool(xbridge.prefetch(batches, "numpy")) is expected


@pytest.mark.parametrize("path", ["pandas.DataFrame", "polars.DataFrame", "pyarrow.table"])
def test_prefetch__refuses_a_table_whose_loop_is_over_columns(path: str) -> None:
    """A table is one batch: a loop over it gives its columns, or only their names."""
    library, _, name = path.partition(".")
    x = getattr(pytest.importorskip(library), name)({"a": [1, 2]})
    with pytest.raises(xbridge.OptionError, match="gives no batches") as caught:
        xbridge.prefetch(x, "numpy")
    (batch,) = xbridge.prefetch(eval(caught.value.hint, {"x": x}), "numpy", exporters=True)
    assert batch.tolist() == [[1], [2]]


def test_prefetch__has_a_length_if_the_iterable_has() -> None:
    """`len` is that of the iterable, and an error that `list` ignores if it has none."""
    with pytest.raises(TypeError, match="len"):
        len(xbridge.prefetch(counted(3, []), "numpy"))
    assert len(list(xbridge.prefetch(map(np.ones, [1, 2]), "numpy"))) == 2
    assert len(xbridge.prefetch({1: np.ones(1)}.values(), "numpy")) == 1


@pytest.mark.parametrize("make", [lambda: counted(3, []), lambda: map(np.ones, [1, 2, 3])])
def test_prefetch__refuses_a_second_loop_over_an_iterator(make: Callable[[], Iterator[np.ndarray]]) -> None:
    """A second loop over an exhausted iterator raises."""
    batches = xbridge.prefetch(make(), "numpy")

    assert len(list(batches)) == 3
    with pytest.raises(xbridge.OptionError, match=r"gives its batches once; try xbridge\.prefetch"):
        list(batches)


def test_prefetch__iterator_that_starts_again_is_given_anew_for_each_loop() -> None:
    """An iterator that starts again by itself has its batches for each `prefetch`, as the hint says."""

    class Loader:
        def __iter__(self) -> Iterator[np.ndarray]:
            self.left = iter([np.ones(1), np.ones(1)])
            return self

        def __next__(self) -> np.ndarray:
            return next(self.left)

    loader = Loader()
    assert [len(list(xbridge.prefetch(loader, "numpy"))) for epoch in range(2)] == [2, 2]
    batches = xbridge.prefetch(loader, "numpy")
    list(batches)
    with pytest.raises(xbridge.OptionError, match="for each loop, over a new iterator"):
        list(batches)


def test_prefetch__refuses_to_go_on_with_a_generator() -> None:
    """A generator that was left has batches that nobody saw, which a second loop would pass over."""
    batches = xbridge.prefetch(counted(9, []), "numpy")
    for _ in batches:
        break
    with pytest.raises(xbridge.OptionError, match=r"gives its batches once; try xbridge\.prefetch"):
        list(batches)


@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="without the GIL, an object may live until the thread that made it runs again",
)
def test_prefetch__keeps_no_reference_to_batches() -> None:
    """A batch is freed as soon as its user drops it."""
    ahead = iter(xbridge.prefetch((np.full(2, i) for i in range(9)), "numpy", copy=True))
    batch = next(ahead)
    alive = weakref.ref(batch)
    del batch

    assert alive() is None
    ahead.close()


# -- other libraries -------------------------------------------------------------------------------


def test_transfer__follows_no_grad_of_the_caller() -> None:
    """A thread records gradients exactly if the caller does."""
    torch = pytest.importorskip("torch")
    w = torch.ones(2, requires_grad=True)

    kept = xbridge.transfer(w, "torch", dtype="float64").result()
    with torch.no_grad():
        cut = xbridge.transfer(w, "torch", dtype="float64")
        batches = list(xbridge.prefetch([w], "torch", dtype="float64"))

    assert kept.requires_grad
    assert not cut.result().requires_grad
    assert not batches[0].requires_grad


def test_prefetch__iterable_runs_in_torch_modes_of_the_caller() -> None:
    """The iterable runs under the inference mode and autocast of the caller."""
    torch = pytest.importorskip("torch")

    def batches() -> Iterator[Any]:
        for _ in range(2):
            yield torch.ones(2, 2) @ torch.ones(2, 2)

    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.float16):
        inside = list(xbridge.prefetch(batches(), "torch"))
    outside = list(xbridge.prefetch(batches(), "torch"))

    assert [(x.dtype, x.is_inference()) for x in inside] == [(torch.float16, True)] * 2
    assert [(x.dtype, x.is_inference()) for x in outside] == [(torch.float32, False)] * 2


def test_prefetch__autocast_sees_updated_weights() -> None:
    """Autocast in the thread does not use cached casts of weights that have changed."""
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


def test_transfer__tensor_of_a_transform_converts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor inside `vmap` is converted in the thread of the caller, also behind an ordinary one."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(threads, "Worker", None)

    def convert(x: Any) -> Any:
        there = xbridge.transfer([torch.ones(1), x], "torch", dtype="float64")
        assert there.done()
        return there.result()[1]

    assert torch.vmap(convert)(torch.ones(2)).tolist() == [1, 1]
    assert torch.vmap(convert)(torch.ones(2)).dtype == torch.float64


def test_prefetch__deleted_array_is_refused_with_its_path() -> None:
    """An array without memory and device is refused by its conversion, which names it."""
    x = pytest.importorskip("jax.numpy").ones(2)
    x.delete()
    with pytest.raises(xbridge.UnsupportedArrayError, match=r"at tree\[1\].*deleted"):
        list(xbridge.prefetch([[np.ones(1), x]], "numpy"))


def test_prefetch__waits_for_streams_of_the_iterable(cupy: Any, own_registry: None) -> None:
    """Work that the iterable queues on its own stream finishes before the batch is converted."""

    def batches() -> Iterator[Any]:
        with cupy.cuda.Stream(8):
            yield cupy.asarray(np.arange(3.0))

    (made,) = xbridge.prefetch(batches(), "cupy", device="cuda:0", dtype="float32")

    assert made._memory.tolist() == [0, 1, 2]


def test_transfer__follows_enable_x64_of_the_caller() -> None:
    """64-bit types of JAX are on in the thread exactly if the caller turned them on."""
    jax = pytest.importorskip("jax")
    wide = np.ones(2)

    with jax.enable_x64(True):
        there = xbridge.transfer(wide, "jax")
        (batch,) = xbridge.prefetch([wide], "jax")

    assert there.result().dtype == batch.dtype == "float64"
    with pytest.raises(xbridge.DTypeError):
        xbridge.transfer(wide, "jax").result()


def test_transfer__tracer_converts_at_once() -> None:
    """A tracer inside `jax.jit` is converted while it is traced, also beside other arrays."""
    jax = pytest.importorskip("jax")

    doubled = jax.jit(lambda x: xbridge.transfer([np.ones(1), x * 2], "jax", dtype="int32").result()[1])

    assert doubled(np.float32(3)).item() == 6
