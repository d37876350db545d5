"""Contracts of functions: each broken promise is found without a reference, and right functions pass."""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
import warnings
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import array_api_compat
import numpy as np
import planted_contracts as planted
import pytest
from hypothesis import Phase, seed, settings

import xbridge
from xbridge.testing import _interleavings, _matches, assert_contract, contract
from xbridge.testing._matches import MismatchError
from xbridge.testing._reachable import ReachableState
from xbridge.testing._settings import Settings
from xbridge.testing._source import Recipe, definition_of
from xbridge.testing.strategies import arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kit_projects import Ids, Run

pytest_plugins = ["kit_projects"]

QUICK = settings(max_examples=60, database=None, phases=[Phase.generate])
X = np.array([[0.5, 2.0, 3.0], [1e-4, 5.0, 7.0]])


@pytest.fixture(autouse=True)
def first_use() -> Iterator[None]:
    """Let the planted functions begin without what the programs of other tests left."""
    yield
    for name, kept in vars(planted).items():
        if name.isupper() and isinstance(kept, (dict, list)):
            kept.clear()
    planted.ramp.cache_clear()


def failure(f: Callable[..., Any], *args: Any, **promises: Any) -> MismatchError:
    with pytest.raises(MismatchError) as caught:
        assert_contract(f, *args, **promises)
    return caught.value


BROKEN: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = {
    "mutated input": (planted.sorted_in_place, (X[:, ::-1].copy(),), {}, "changes its input"),
    "broadcast weight and negative stride": (planted.weighted, (X, X[::-1].copy()), {}, "values"),
    "stale cache in threads": (planted.windowed, (X,), {}, "is not safe in threads"),
    "buffer of all threads": (planted.doubled_in_scratch, (X,), {}, "is not safe in threads"),
    "half-filled table in threads": (planted.looked_up, (X,), {}, "is not safe in threads"),
    "cache of the first call": (planted.centred_by_first, (X,), {}, "depends on earlier calls"),
    "first call kept in a class": (planted.ramped_by_new_attribute, (X,), {}, "depends on earlier calls"),
    "cached array that is returned": (planted.ramp_like, (X,), {}, "depends on earlier calls"),
    "cache of the first dtype": (planted.ramped_in_first_dtype, (X,), {}, "depends on earlier calls"),
    "cache of the first length": (planted.windowed_by_axes, (X,), {}, "depends on earlier calls"),
    "wrong after some calls": (planted.warmed_up, (X,), {}, "depends on earlier calls"),
    "alias in one layout": (planted.in_fortran_order, (X,), {"aliases": False}, "aliases an argument"),
    "error handling": (planted.raises_for_all, (X,), {"empty": False}, "changes a setting"),
    "seed": (planted.seeded, (X,), {}, "changes a setting"),
    "empty input": (planted.first_row, (X,), {}, "raises IndexError for empty arrays"),
}
"""The planted fault -> the function, its arguments, its promises, and the problem that is reported."""


@pytest.mark.slow
@pytest.mark.parametrize("fault", BROKEN)
def test_assert_contract__broken_promise(fault: str) -> None:
    """Each fault is found without a reference, and the program of the message fails by itself."""
    f, args, promises, problem = BROKEN[fault]
    before = Settings()
    found = failure(f, *args, **promises).finding
    assert found.problem == problem
    assert "does not fail" not in found.program
    assert not before.changed()
    with pytest.raises((AssertionError, IndexError, KeyError, ValueError)):
        exec(found.program, {})
    before.restore()


@pytest.mark.parametrize(
    "f",
    [
        planted.windowed_under_lock,
        planted.doubled_in_local_scratch,
        planted.windowed_by_length,
        planted.centred_by_drawing,
        np.negative,
    ],
    ids=lambda f: f.__name__,
)
def test_assert_contract__kept_promises(f: Callable[..., Any]) -> None:
    """Locks, buffers of a thread and caches by key are right."""
    assert_contract(f, X, dtype="kept", aliases=False, ulp=1)


def test_assert_contract__argument_of_a_tuple_class() -> None:
    """A `torch.Size`, which takes integers alone, is an argument as any other."""
    torch = pytest.importorskip("torch")
    assert_contract(lambda x, s: x.reshape(s) + 0.0, torch.ones(2, 3), torch.Size([3, 2]), empty=False)


def test_assert_contract__lazy_and_differentiable() -> None:
    """A computed lazy array and a cut graph are found where the library has them."""
    da, torch = pytest.importorskip("dask.array"), pytest.importorskip("torch")
    lazy = da.from_array(X, chunks=2)
    assert failure(planted.computed, lazy, lazy=True).finding.problem == "computes a lazy array"
    assert_contract(planted.computed, lazy)
    x = torch.tensor(X)
    assert failure(planted.detached, x, differentiable=True).finding.problem == "gradient"
    assert_contract(planted.detached, x)
    assert_contract(planted.detached, torch.tensor([np.inf]), differentiable=True)
    assert_contract(planted.detached, torch.tensor([1]), differentiable=True)


def test_assert_contract__numbers_of_any_bits() -> None:
    """Arguments may be infinite or NaN in each part, of any dtype that NumPy can hold, and 0-d."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    ends = (0.0, -0.0, 1.5, np.nan, np.inf, -np.inf)
    parts = np.array([complex(a, b) for a in ends for b in ends])
    assert_contract(lambda x: x * 1, parts, dtype="kept", repeatable=False)
    made = Recipe("numpy", parts).make()
    for one, other in ((parts.real, made.real), (parts.imag, made.imag)):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(np.signbit(one), np.signbit(other))
    for x in (np.ones(2, ml_dtypes.float8_e5m2), np.array(complex(np.nan, 1)), np.array(0.5)):
        assert_contract(lambda x: x + x, x, dtype="kept", aliases=False)


def test_assert_contract__library_and_device_of_the_result() -> None:
    """A result of another library or on another device is called that, and the program shows it."""
    torch, strict = pytest.importorskip("torch"), pytest.importorskip("array_api_strict")
    there = strict.asarray([1.0], device=strict.Device("device1"))
    for f, x, problem in (
        (lambda x: np.sin(np.asarray(x)), torch.ones(2), "backend"),
        (lambda x: array_api_compat.array_namespace(x).zeros(x.shape), there, "device"),
    ):
        found = failure(f, x).finding
        assert found.problem == problem
        assert "does not fail" not in found.program
        with pytest.raises(AssertionError):
            exec(found.program, {})


def looks_outside(x: Any) -> Any:
    """Read the number behind the array, as compiled code with a wrong stride does."""
    return x + np.lib.stride_tricks.as_strided(x, (x.size + 1,))[-1]


def test_assert_contract__reads_outside_of_an_array() -> None:
    """What depends on the memory around an array is found where that has known numbers."""
    found = failure(looks_outside, np.arange(3.0), repeatable=False, empty=False).finding
    assert found.problem == "values"  # what it needs depends on what happened to be around the first array


def test_definition_of__functions_with_and_without_source() -> None:
    """A program defines a function or a lambda by modules and numbers alone, or says what `f` is."""

    def summed(x: Any) -> Any:
        return np.float64(planted.in_order_of_memory(x).sum() + x.strides[0])

    offset, others = 1, [0]

    def shifted(x: Any) -> Any:
        return x.ravel("K") + offset

    def collected(x: Any) -> Any:
        return x.ravel("K") + others[0]

    def counts(x: Any) -> Any:
        nonlocal offset
        offset += 0
        return x

    made = failure(summed, X).finding.program
    assert "import planted_contracts as planted\n" in made
    assert "def summed(x):\n    return np.float64(" in made
    with pytest.raises(AssertionError):
        exec(made, {})
    assert "offset = 1\ndef shifted(x):" in failure(shifted, X).finding.program
    assert failure(collected, X).finding.program.endswith("# f is the function of the test")
    several: list[Any] = [lambda x: x + 1, lambda x: x.ravel("K") + offset, counts]
    assert definition_of(several[1]) == ["offset = 1", "f = lambda x: x.ravel('K') + offset"]
    assert definition_of(counts) == []
    names = {"offset": 1}
    exec("def from_text(x): return x.ravel('K') + 1", names)
    exec("def with_data(x): return x.ravel('K') + offset", names)
    for f in (names["from_text"], names["with_data"]):
        assert definition_of(f) == []  # type: ignore[arg-type] # a function


# -- each promise ------------------------------------------------------------------------------------


def test_assert_contract__dtype() -> None:
    """The dtype of each result is that of the arguments, of its kind, or a named one."""
    small = X.astype("f4")
    assert_contract(np.add, small, X, dtype="kept")
    assert_contract(lambda x: {"a": x.astype("f8"), "b": ["word", x + 1]}, small, dtype="kind")
    assert_contract(np.isnan, X, dtype="bool")
    assert_contract(lambda: np.ones(2), dtype="kept")
    found = failure(lambda x: {"a": x, "b": [x.astype("f8")]}, small, dtype="kept")
    assert "result['b'][0] is float64, of float32 arguments" in str(found)
    assert "str(result['b'][0].dtype)" in found.finding.program
    assert "the contract says int64" in str(failure(np.isnan, X, dtype="int64"))
    assert "assert 'float' in " in failure(np.isnan, X, dtype="kind").finding.program


def test_assert_contract__aliases() -> None:
    """A result shares memory with an argument, or does not, as promised."""
    assert_contract(np.transpose, X, aliases=True)
    assert_contract(lambda x: "word", X, aliases=True)
    assert_contract(lambda x: x, X)
    found = failure(np.negative, X, aliases=True).finding
    assert found.problem == "copies"
    with pytest.raises(AssertionError):
        exec(found.program, {})
    assert "array 1" in str(failure(lambda x, y: y[:1], X, X.copy(), aliases=False))


def test_assert_contract__ulp() -> None:
    """The error is counted in the coarser dtype, and what overflows there is infinite."""
    assert_contract(np.exp, np.array([100.0, -np.inf, np.nan, 0.0, -100.0]), ulp=4)
    assert_contract(np.sqrt, X.astype("f2"), ulp=1)
    assert_contract(lambda x: x * 2, X + 1j, ulp=0.5)
    assert_contract(lambda x: (np.argmax(x), "word", x > 0), X, ulp=0, empty=False)
    assert_contract(lambda x: x * 2, np.arange(3), ulp=0)
    assert_contract(lambda x, n: x * n, X, np.arange(3), ulp=1)
    assert_contract(lambda x: np.arange(2.0) if x.dtype == "f4" else np.arange(3.0), X, ulp=1)
    found = failure(lambda x: {"a": [x * (1 + 1e-6 * (x.dtype == "f4"))]}, np.full(65, 1.5), ulp=4)
    assert "result['a'][0] is wrong by" in str(found)
    assert (
        failure(lambda x: x * np.nan if x.dtype == "f4" else x, X, ulp=4).finding.problem == "is inaccurate"
    )


def test_assert_contract__ulp_of_what_is_rounded_inside() -> None:
    """Rounding to float32 is the same for both calls; it is found by changes that float64 does not lose."""

    def rounded(x: Any) -> Any:
        return np.exp(x.astype("f4")).astype(x.dtype)

    def centred(x: Any) -> Any:
        return {"a": [x - np.float32((x * x).mean()).astype(x.dtype)]}

    found = failure(rounded, X, ulp=4, empty=False).finding
    assert "the result is rounded to fewer digits" in found.message
    assert "does not fail" not in found.program
    assert "result['a'][0] is rounded" in str(failure(centred, X, ulp=64, empty=False))
    failure(lambda x: rounded(x) / rounded(x).sum(), X, ulp=16, empty=False)
    failure(lambda x, n: rounded(x) * n, X, np.arange(3), ulp=16, empty=False)
    for right in (np.floor, np.sign, np.sin, lambda x: (x > 1) * 1.0, lambda x: x / x.max(), np.zeros_like):
        assert_contract(right, X, ulp=4, empty=False)

    def refuses(x: Any) -> Any:
        if x.dtype == "f8" and x[0, 0] != 0.5:
            raise ValueError("no")
        return x * 1

    assert_contract(refuses, X, ulp=1, layouts=False, repeatable=False, empty=False)

    def shortened(x: Any) -> Any:
        return x[: 2 if x[0, 0] == 0.5 else 1] * 1

    assert_contract(shortened, X, ulp=1, layouts=False, repeatable=False, empty=False)


def test_assert_contract__reference() -> None:
    """A reference gives the values, in any dtype."""
    assert_contract(planted.softmax, X, reference=lambda x: np.float32(planted.softmax(x)), empty=False)
    assert failure(np.sin, X, reference=np.cos).finding.problem == "values"


def test_assert_contract__empty() -> None:
    """Arrays of one length are emptied together or the first alone, and a refusal may be promised.

    A ValueError is one in any case: NumPy's reductions without an identity raise it.
    """
    assert_contract(lambda x: x - x.max(), X)
    assert_contract(np.matmul, np.eye(3), np.eye(3))
    assert_contract(np.linalg.inv, np.eye(3))  # it takes no rows of three
    assert_contract(np.negative, np.float64(3) * np.ones(()))
    found = failure(lambda x: x * 1.0 if x.size else x.astype("i8"), X, dtype="kept").finding
    assert (found.problem, "np.empty" in found.program) == ("dtype", True)
    assert_contract(planted.first_row, X, empty=False)
    assert_contract(lambda x: x - x.min(), np.ones((0, 2)), dtype="float32", empty=False)
    failure(lambda x: x - x.min(), np.ones((0, 2)))
    assert_contract(planted.first_row, X, raises=IndexError)


def test_assert_contract__raises() -> None:
    """An exception is a failure, unless it is a promised refusal."""
    singular = np.ones((3, 3))
    assert failure(np.linalg.inv, singular).finding.problem == "raises LinAlgError"
    assert_contract(np.linalg.inv, singular, raises=(TypeError, np.linalg.LinAlgError))


def test_assert_contract__switched_off() -> None:
    """A function of random numbers can be held to the promises that do not compare two calls."""
    rng = np.random.default_rng(0)

    def noisy(x: Any) -> Any:
        return x + rng.normal(size=x.shape)

    assert_contract(noisy, X, dtype="kept", aliases=False, layouts=False, repeatable=False, threads=False)
    assert failure(noisy, X).finding.problem == "depends on earlier calls"


@pytest.mark.parametrize(
    "x", [np.array([0.5, 2.0]), np.array([1, 5]), np.array([True, False, False])], ids=str
)
def test_assert_contract__result_of_other_values_is_kept(x: Any) -> None:
    """A cache that knows shapes alone is found for each kind of numbers, whose order makes no difference."""
    sums: dict[Any, Any] = {}
    problem = failure(lambda x: np.asarray(sums.setdefault((x.shape, x.dtype), x.sum())), x).finding.problem
    assert problem == "depends on earlier calls"


def test_assert_contract__misspelt_promise() -> None:
    """What is nearly a promise, and no parameter of the function, is not passed on to it."""
    for f in (np.negative, lambda x: x + 1):
        with pytest.raises(xbridge.CallError, match=r"hold a function to dtpe: .* try dtype='kept'"):
            assert_contract(f, X, dtpe="kept")
    assert_contract(lambda x, thread: x + thread, X, thread=1)
    assert_contract(lambda x, **options: x + options["layout"], X, layout=1)
    with pytest.raises(MismatchError, match="raises TypeError"):
        assert_contract(lambda x: x + 1, X, unknown=1)


class RunningMean:
    """Subtracts a mean that every call moves, as layers of a network do while they are trained."""

    def __init__(self) -> None:
        self.mean = 0.0

    def __call__(self, x: Any) -> Any:
        self.mean = 0.9 * self.mean + 0.1 * (x.mean() if x.size else 0.0)
        return x - x.dtype.type(self.mean) if hasattr(x.dtype, "type") else x - self.mean


def test_assert_contract__documented_state() -> None:
    """Of a function with state, all promises but those on other calls are held, each from the same state."""
    layer = RunningMean()
    assert failure(layer, X).finding.problem == "depends on earlier calls"
    assert_contract(layer, X, repeatable=False, dtype="kept", aliases=False, reference=RunningMean())
    assert layer.mean == 0.0


def test_assert_contract__state_dict() -> None:
    """What an object says to be its state is put back by its own method."""
    torch = pytest.importorskip("torch")
    layer = torch.nn.BatchNorm1d(3)
    x = torch.tensor(X, dtype=torch.float32)
    assert_contract(layer, x, dtype="kept", aliases=False, empty=False, layouts=False)
    assert int(layer.num_batches_tracked) == 0
    assert not layer.running_mean.any()


def test_assert_contract__warning_about_a_layout() -> None:
    """A warning that a layout is slow makes no other result."""

    def frank(x: Any) -> Any:
        if not x.flags.c_contiguous:
            warnings.warn("it copies this layout", stacklevel=1)
        return x * 2

    assert_contract(frank, np.ones((2, 3)), dtype="kept")


def test_assert_contract__layout_of_an_unstable_point() -> None:
    """Equal rows have no spread: what is divided by it depends on the last bits, and not on the layout."""

    def standardized(x: Any) -> Any:
        wide = x - (x.mean(0) if x.strides[0] else x[0])
        return wide / np.sqrt((wide**2).mean(0) + 1e-30)

    assert_contract(standardized, np.array([[0.1, 0.7], [1.3, 2.9], [0.3, 0.2]]), empty=False)


def test_assert_contract__layout_beside_an_argument_without_last_bits() -> None:
    """What depends on the layout is a fault, whatever the last bits of floats; integers have none."""

    def selected(x: Any, which: Any) -> Any:
        return (x if x.flags.c_contiguous else x + 1)[which]

    found = failure(selected, np.array([[0.5, 0.25], [2.0, 4.0]]), np.array([1, 0])).finding
    assert (found.problem, found.needed) == ("values", ("transposed",))


def test_assert_contract__message_of_large_arrays() -> None:
    """The arrays are shortened while the call fails in the same way; a long program is left out."""

    def in_place(x: Any) -> Any:
        x += 1
        return x

    text = str(failure(in_place, np.ones((100, 300))))
    assert "array 0 was [1.0, 1.0, 1.0, 1.0, ...] (30000 numbers)" in text
    assert "a = np.array([[1.0]])" in text
    assert len(text) < 1000

    def only_long(x: Any) -> Any:
        if x.size > 2000:
            x += 1
        return x

    for f, x in ((only_long, np.ones(3000)), (planted.centred_by_first, np.linspace(0, 1, 3000) ** 2)):
        text = str(failure(f, x))
        assert "# no program: its arrays would be too long to read" in text
        assert len(text) < 1500


# -- threads -----------------------------------------------------------------------------------------


def test_assert_contract__deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that deadlock fail the test instead of hanging it."""
    monkeypatch.setattr(_interleavings, "_LONGEST", 0.2)
    monkeypatch.setattr(_interleavings, "_PATIENCE", 0.05)
    one, other = threading.Lock(), threading.Lock()

    def crossed(x: Any) -> Any:
        with one if x[0] > 1 else other, other if x[0] > 1 else one:
            return x + 1

    assert failure(crossed, np.array([2.0, 0.0]), empty=False).finding.problem == "is not safe in threads"


def test_assert_contract__second_call_in_threads() -> None:
    """A wrong result of the second call is reported with a program that shows it."""
    seen: list[int] = []

    def marks(x: Any) -> Any:
        seen.append(1)
        others = len(seen)
        seen.pop()
        return x + others

    found = failure(marks, X).finding
    assert found.message.startswith("the second call: gives")
    assert "does not fail" not in found.program


def test_assert_contract__many_operations() -> None:
    """A long function is stopped at some of its operations, and a second call that raises is left out."""
    kept: dict[int, Any] = {}
    body = "\n".join(f"    kept[{n}] = kept.get({n}, 0)" for n in range(99))
    names = {"kept": kept, "__name__": "long"}
    exec(f"def long(x):\n{body}\n    return x + kept[3]", names)
    f: Callable[[Any], Any] = names["long"]  # type: ignore[assignment]
    runs = _interleavings.Interleavings(frozenset({"long"}))
    assert 50 < len(runs.switches(functools.partial(f, X))) <= 200

    def short(x: Any) -> Any:
        if x.shape != X.shape or x[0, 0] != X[0, 0]:
            raise ValueError("no")
        kept[0] = x
        return x + 0

    assert_contract(short, X, layouts=False, empty=False)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["stale cache in threads", "half-filled table in threads"])
def test_interleavings__other_threads_may_be_traced(fault: str) -> None:
    """A race is found, and its program runs, while a debugger or coverage traces another thread."""
    traced, done = threading.Event(), threading.Event()

    def wait_traced() -> None:
        sys.settrace(lambda *_: None)
        sys._getframe().f_trace_opcodes = True
        sys.settrace(lambda *_: None)
        traced.set()
        done.wait()

    other = threading.Thread(target=wait_traced)
    other.start()
    traced.wait()
    try:
        f, args, promises, problem = BROKEN[fault]
        found = failure(f, *args, **promises).finding
        assert found.problem == problem
        with pytest.raises((AssertionError, KeyError, ValueError)):
            exec(found.program, {})
    finally:
        done.set()
        other.join()


# -- state -------------------------------------------------------------------------------------------


class Counter:
    """An object with state of every kind."""

    shared: list[int] = []  # noqa: RUF012 -- state of the class

    def __init__(self) -> None:
        self.queue = deque([1])
        self.names = {"a"}
        self.buffer = np.zeros(2)
        self.bytes = bytearray(b"a")

    def change(self) -> Any:
        self.shared.append(1)
        self.queue.append(2)
        self.names.add("b")
        self.buffer += 1
        self.bytes.append(1)
        return self.contents()

    def contents(self) -> Any:
        return [*self.shared], [*self.queue], {*self.names}, self.buffer.tolist(), bytes(self.bytes)

    @staticmethod
    def one() -> int:
        return 1

    @property
    def two(self) -> int:
        return 2


COUNTER = Counter()
PAIR = (COUNTER, {"by name": [1]})
CONSTANT = np.zeros(1 << 18)


def changes_globals() -> None:
    global NEW, PAIR  # noqa: PLW0603 -- state of the module
    NEW = 1  # type: ignore[name-defined]
    PAIR[1]["by name"].append(2)
    PAIR = (COUNTER, {})
    COUNTER.change()
    assert CONSTANT.size


def test_reachable_state__contents() -> None:
    """Containers, arrays, instances and variables are put back in place."""
    before, pair = COUNTER.contents(), PAIR
    for f in (changes_globals, functools.partial(changes_globals), COUNTER.change):
        state = ReachableState(f)
        f()
        assert COUNTER.contents() != before
        state.restore()
        assert COUNTER.contents() == before
        assert pair is PAIR
        assert pair[1] == {"by name": [1]}
        assert "NEW" not in globals()


class Proxy:
    """An object that may be looked at only in its own time, as those of web frameworks."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("outside of a request")


class Frozen(dict[str, int]):
    """A dict that refuses to be changed."""

    def clear(self) -> None:
        raise TypeError("it is frozen")


class Rows(dict[str, int]):
    """A dict with a method of the name that lists have."""

    def extend(self, rows: object) -> None:
        raise TypeError("rows of other things")


def test_reachable_state__unusual_objects() -> None:
    """Objects that raise, deep containers and those that nobody changed are left alone."""
    deep: list[Any] = []
    for _ in range(9999):
        deep = [deep]
    proxy, frozen, kept, rows = Proxy(), Frozen(a=1), Frozen(b=2), Rows(c=1)

    def count() -> object:
        dict.__setitem__(frozen, "a", 2)
        deep.append(3)
        rows["c"] += 1
        return proxy, frozen, kept

    state = ReachableState(count)
    count()
    state.restore()
    assert (frozen, kept, rows, len(deep)) == ({"a": 2}, {"b": 2}, {"c": 1}, 1)


def test_reachable_state__closure_and_cache() -> None:
    """Variables of outer functions, defaults, attributes and memoized results are state too."""
    count = 0

    @functools.cache
    def cached() -> int:
        return count

    def step(kept: list[int] = [], *, more: dict[str, int] = {}) -> Any:  # noqa: B006 -- state
        nonlocal count
        count += 1
        kept.append(1)
        more["a"] = count
        step.calls = count  # type: ignore[attr-defined]
        return count, cached(), len(kept), vars(step)

    step.calls = 0  # type: ignore[attr-defined]
    state = ReachableState(step)
    assert not state.is_empty
    for _ in range(2):
        assert step()[:3] == (1, 1, 1)
        state.restore()
    assert (count, vars(step)) == (0, {"calls": 0})


def test_reachable_state__pure_functions() -> None:
    """A function that reaches no object that changes is not called in threads."""
    assert ReachableState(planted.softmax).is_empty
    assert ReachableState(np.add).is_empty
    assert not ReachableState(planted.windowed).is_empty

    def outer() -> Any:
        def inner() -> Any:
            return later

        assert ReachableState(inner).is_empty
        later = 1
        return inner

    assert outer()() == 1


def test_reachable_state__assertion() -> None:
    """An `assert`, for which pytest calls functions of its own, does not make pytest's session state."""

    def checked(x: Any) -> Any:
        assert x is not None, "no array"
        return x

    assert "@pytest_ar" in checked.__code__.co_names, "pytest does not rewrite this file"
    state = ReachableState(checked)
    assert state.is_empty
    assert not state.roots & {"_pytest", "hypothesis"}


def test_run__interrupted_program_leaves_no_settings() -> None:
    """A program that is interrupted leaves no settings."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    before = np.geterr()
    program = "import numpy as np\nnp.seterr(all='raise')\nf()"
    with pytest.raises(KeyboardInterrupt):
        _matches._run(program, interrupt)
    assert np.geterr() == before


def test_assert_contract__changed_settings() -> None:
    """The message has the items that a call changes, and not the environment with its secrets."""

    def closed(x: Any) -> Any:
        np.seterr(invalid="raise")
        return x + 1

    def announced(x: Any) -> Any:
        os.environ["XBRIDGE_ANNOUNCED"] = "1"
        return x + 1

    text = str(failure(closed, X))
    assert "was {'invalid': 'warn'} and became {'invalid': 'raise'}" in text
    text = str(failure(announced, X))
    assert "was {} and became {'XBRIDGE_ANNOUNCED': '1'}" in text
    assert "XBRIDGE_ANNOUNCED" not in os.environ


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not remove the working directory")
def test_settings__missing_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory that is gone, before or during the call, is no error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").mkdir()
    os.chdir("gone")
    there = Settings()
    Path.cwd().rmdir()
    Settings().restore()
    there.restore()
    assert there.changed() == {"os.getcwd()": (repr(str(tmp_path / "gone")), "None")}


def test_settings__warnings() -> None:
    """A warning that was given once is given again if the filters are put back."""
    registry: dict[Any, Any] = {}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        settings_before, filters = Settings(), warnings.filters[:]
        warnings.filters[:] = [("default", None, UserWarning, None, 0)]  # type: ignore[index] # it is a list
        warnings.warn_explicit("old", UserWarning, "file.py", 1, registry=registry)
        settings_before.restore()
        assert warnings.filters[:] == filters
        warnings.warn_explicit("old", UserWarning, "file.py", 1, registry=registry)
    assert len(found) == 2


# -- the decorator -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_contract__backend_and_parameters(ids: Ids, run: Run) -> None:
    """A test with strategies by backend runs with every library; the first parameters are pytest's."""
    test = """
        from functools import partial
        from hypothesis import Phase, settings
        from xbridge.testing import contract
        from xbridge.testing.strategies import arrays

        small = partial(arrays, dtypes="float32", shapes=(2,), elements=(0, 1))

        @settings(max_examples=3)
        @contract(small, dtype="kept", aliases=False)
        def test_double(x):
            return x * 2

        class TestSum:
            @settings(max_examples=3)
            @pytest.mark.parametrize("n", [1, 2])
            @contract(arrays("numpy", dtypes="float64", elements=(0, 1)), small, dtype="kind")
            def test_scale(self, n, backend, x, y):
                assert backend in ("numpy", "numpy_readonly")
                return n * x

        @settings(max_examples=3, phases=[Phase.generate])
        @contract(arrays("numpy", dtypes="int64", shapes=(2,)), dtype="float32")
        def test_wrong(x):
            return x * 2
    """
    assert len(ids(test, "--xbridge=numpy,numpy_readonly")) == 7
    result = run(test, "--xbridge=numpy,numpy_readonly")
    result.assert_outcomes(passed=6, failed=1)
    result.stdout.fnmatch_lines(["*test_wrong dtype with numpy*", "*the result is int64*"])


def by_layout(x: Any) -> Any:
    return x + (not x.flags.c_contiguous)


def by_size(x: Any) -> Any:
    return x / x[0]  # which an empty array does not have


def by_nan(x: Any) -> Any:
    return np.nan_to_num(x)


RACES = (planted.windowed, planted.doubled_in_scratch, planted.looked_up, planted.centred_by_first)


@pytest.mark.parametrize(
    "f",
    [by_layout, by_size, by_nan, *(pytest.param(f, marks=pytest.mark.slow) for f in RACES)],
    ids=lambda f: f.__name__,
)
def test_contract__sixty_examples_reach_each_kind(f: Callable[..., Any]) -> None:
    """Sixty examples hold each kind of promise, so what one kind alone finds is found with every seed."""
    numbers = arrays("numpy", dtypes="float64", shapes=(3,), elements=(1, 9), layouts="C")
    promised: Any = {} if f in RACES else {"dtype": "kept", "ulp": 4, "nan": "propagates"}
    for number in range(5):  # not shrunk, which takes hundreds of calls
        test = seed(number)(QUICK(contract(numbers, **promised)(f)))
        with pytest.raises(MismatchError):
            test()


@pytest.mark.slow
def test_contract__failure_is_reproduced(run: Run) -> None:
    """A failure repeats the kind that failed, and fails again in another process."""
    test = """
        from hypothesis import reproduce_failure, settings
        from xbridge.testing import contract
        from xbridge.testing.strategies import arrays

        @settings(print_blob=True, derandomize=True, database=None)
        @contract(arrays("numpy", dtypes=["float32"], shapes=(4,), elements=(-9, 9)), threads=False)
        def test_wrong(x):
            return x + (not x.flags.c_contiguous)
    """
    first = run(test)
    first.assert_outcomes(failed=1)
    text = first.stdout.str()
    assert "Draw 2: 'layouts'" in text
    (blob,) = re.findall(r"@(reproduce_failure\(.*?\)) as a decorator", text)
    again = run(test.replace("@settings", f"@{blob}\n        @settings"))
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(["*MismatchError: test_wrong values with numpy*"])
    assert "DidNotReproduce" not in again.stdout.str()


def test_contract__option() -> None:
    """A wrong option, or the decorator without parentheses, is an error where the test is defined."""

    def test_it(x: Any) -> Any:
        return x

    with pytest.raises(xbridge.CallError, match=r"try @contract\(arrays\)"):
        contract(test_it)
    with pytest.raises(xbridge.CallError, match=r"hold a function to rtol: .* try ulp=4"):
        contract(arrays("numpy"), rtol=1e-3)  # type: ignore[call-arg]
    with pytest.raises(xbridge.OptionError, match="; try "):
        contract(arrays("numpy"), dtype="double")
