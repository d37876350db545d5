"""Cached calls give what a plan gives, whatever was converted before and whatever has changed since."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from enum import StrEnum
from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from inside import cached, direct, direct_asarray, forget_calls, get_backend, planned

import xbridge
from xbridge import tree
from xbridge._engine import convert
from xbridge._registry import call_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Call = Callable[[Any], Any]

torch = pytest.importorskip("torch")

from engine.outcomes import Exports, arrays, check_in_any_order, lists, numpys, outcome, torchs  # noqa: E402
from torch_modes import Passes, default_dtype  # noqa: E402


def _second(_: Any, y: Any) -> Any:
    return y


by_torch, by_numpy = xbridge.aligned(backend="torch")(_second), xbridge.aligned(backend="numpy")(_second)


CALLS: dict[str, Call] = {
    "to torch": lambda x: xbridge.to_backend(x, "torch"),
    "device": lambda x: xbridge.to_backend(x, "torch", device=torch.device("cpu")),
    "copy": lambda x: xbridge.to_backend(x, "torch", copy=True),
    "no copy": lambda x: xbridge.to_backend(x, "torch", copy=False),
    "dtype": lambda x: xbridge.to_backend(x, "torch", dtype="float32"),
    "torch casts": lambda x: xbridge.to_backend(x, "torch", dtype=torch.float16),
    "torch casts a copy": lambda x: xbridge.to_backend(x, "torch", dtype="float16", copy=True),
    "integers": lambda x: xbridge.to_backend(x, "torch", dtype="int32"),
    "default": lambda x: xbridge.to_backend(x, "torch", dtype="default"),
    "nearest": lambda x: xbridge.to_backend(x, "torch", dtype="nearest"),
    "cast without a copy": lambda x: xbridge.to_backend(x, "torch", dtype="float64", copy=False),
    "detach": lambda x: xbridge.to_backend(x, "torch", grad="detach"),
    "keep": lambda x: xbridge.to_backend(x, "torch", grad="keep"),
    "keep a copy": lambda x: xbridge.to_backend(x, "torch", grad="keep", copy=True),
    "module": lambda x: xbridge.to_backend(x, torch, dtype="float32"),
    "in its library": lambda x: xbridge.asarray(x, dtype="float32"),
    "copy in its library": lambda x: xbridge.asarray(x, copy=True),
    "like": lambda x: xbridge.asarray(x, like=torch.ones(1)),
    "dtype that equals None": lambda x: xbridge.asarray(x, backend="torch", dtype=np.dtype("float64")),
    "leaf": lambda x: xbridge.asarray(x, backend="torch", requires_grad=True),
    "leaf of a cast": lambda x: xbridge.asarray(x, like=torch.ones(1), dtype="float32", requires_grad=True),
    "leaf of what is detached": lambda x: xbridge.asarray(x, grad="detach", requires_grad=True),
    "no leaf": lambda x: xbridge.asarray(x, backend="torch", requires_grad=False),
    "to numpy": xbridge.to_numpy,
    "to numpy copy": lambda x: xbridge.to_numpy(x, copy=True),
    "to numpy no copy": lambda x: xbridge.to_numpy(x, copy=False),
    "to numpy dtype": lambda x: xbridge.to_numpy(x, dtype="float32"),
    "to numpy keep": lambda x: xbridge.to_numpy(x, grad="keep"),
    "to numpy writable": lambda x: xbridge.to_numpy(x, writable=True),
    "to numpy read-only dtype": lambda x: xbridge.to_numpy(x, dtype="float32", writable=False),
    "C order": lambda x: xbridge.to_backend(x, "torch", order="C"),
    "C order copy": lambda x: xbridge.to_backend(x, "torch", copy=True, order="C"),
    "C order no copy": lambda x: xbridge.to_backend(x, "torch", copy=False, order="C"),
    "C order leaf": lambda x: xbridge.asarray(x, backend="torch", requires_grad=True, order="C"),
    "C order in its library": lambda x: xbridge.asarray(x, dtype="float32", order="C"),
    "to numpy C order": lambda x: xbridge.to_numpy(x, order="C"),
    "to numpy read-only C order": lambda x: xbridge.to_numpy(x, writable=False, order="C"),
    "tree read-only": lambda x: tree.to_numpy([x], writable=False)[0],
    "tree dtype": lambda x: tree.to_backend([x, x], "torch", dtype="float32")[1],
    "tree copy": lambda x: tree.to_numpy([x], copy=True)[0],
    "tree align": lambda x: tree.align([torch.ones(1)], [x])[1][0],
    "align": lambda x: xbridge.align(torch.ones(1), x)[1],
    "align first": lambda x: xbridge.align(x, torch.ones(1), 2.5)[0],
    "align like": lambda x: xbridge.align(x, like=np.ones(1))[0],
    "align to": lambda x: xbridge.align(np.ones(1), x, backend="torch", copy=True)[1],
    "align back": lambda x: xbridge.align_back(np.ones(1), x)[1](np.ones(1), to=1, dtype=True),
    "restore": lambda x: xbridge.align_back(np.ones(1), torch.ones(1))[1](x, to=1),
    "values": lambda x: repr(xbridge.to_list(x)),
    "aligned": xbridge.aligned(backend="torch", dtype="float32", grad="detach")(lambda y: y),
    "aligned with a number": lambda x: by_torch(2.5, y=x),
    "aligned with an array": lambda x: by_numpy(np.ones(1), y=x),
    "list": lambda x: xbridge.asarray([x, x]),
    "list of both": lambda x: xbridge.asarray([x, torch.ones(3).double(), np.ones(3)]),
}


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    for name in ("numpy", "torch"):
        get_backend(name)  # a backend that is loaded during a call empties the tables
    forget_calls()
    yield
    forget_calls()


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")  # a cast was named
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_call_cache__any_array_after_any_other(call: Call) -> None:
    """Every call gives the planned result, whichever arrays the same call converted before."""
    check_in_any_order(call, arrays)


LIST_CALLS: dict[str, Call] = {
    "plain": xbridge.asarray,
    "torch": lambda x: xbridge.asarray(x, backend="torch"),
    "numpy": lambda x: xbridge.asarray(x, backend="numpy"),
    "like": lambda x: xbridge.asarray(x, like=torch.ones(1)),
    "single": lambda x: xbridge.asarray(x, backend="torch", dtype="float32"),
    "narrow": lambda x: xbridge.asarray(x, dtype="int32"),
    "unsigned": lambda x: xbridge.asarray(x, dtype="uint64"),
    "bool": lambda x: xbridge.asarray(x, dtype="bool"),
    "complex": lambda x: xbridge.asarray(x, backend="torch", dtype="complex64"),
    "nearest": lambda x: xbridge.asarray(x, backend="torch", dtype="nearest"),
    "default": lambda x: xbridge.asarray(x, backend="torch", dtype="default"),
    "leaf": lambda x: xbridge.asarray(x, backend="torch", requires_grad=True),
    "detached": lambda x: xbridge.asarray(x, requires_grad=False),
    "no copy": lambda x: xbridge.asarray(x, copy=False),
    "copy": lambda x: xbridge.asarray(x, device="cpu", copy=True),
}


@pytest.mark.parametrize("call", LIST_CALLS.values(), ids=LIST_CALLS)
def test_call_cache__any_list_after_any_other(call: Call) -> None:
    """Every list gives the planned result, whichever lists the same call converted before."""
    check_in_any_order(call, lists)


# -- what is not planned twice --------------------------------------------------------------------

TO_TORCH = CALLS["list"], lambda x: xbridge.asarray(x, backend="torch")
TO_HOST = xbridge.to_numpy, lambda x: xbridge.to_numpy(x, dtype="complex64"), CALLS["values"]
TO_JAX = [
    lambda x, options=options: xbridge.to_backend(x, "jax", **options)
    for options in ({"dtype": "default"}, {"dtype": "int32"}, {"dtype": "float32", "copy": True})
]
ALWAYS_PLANNED = ("cast without a copy", "no copy", "to numpy keep", "leaf of what is detached")
PLANNED_WITHIN = (*ALWAYS_PLANNED, "C order copy", "C order no copy", "C order leaf")
MIXED: list[Any] = [
    *(list(np.ones(2)), [torch.ones(2).double(), np.ones(2)], [[], []], Exports(np.ones(2))),
    *([torch.tensor(1.0), 0.5], [[1.5, np.float32(2)], [torch.tensor(1.0), 2]], [Exports(np.ones(2))] * 2),
]
REPEATED: list[tuple[Call, Any]] = [
    *((call, np.arange(3.0)) for name, call in CALLS.items() if name not in ALWAYS_PLANNED),
    *((call, torch.arange(3.0).double()) for name, call in CALLS.items() if name not in PLANNED_WITHIN),
    *((call, x) for call in TO_TORCH for x in (1.5, [1.0, 2.0], [[1, 2], [3, 4]], True, np.float64(2))),
    *((TO_TORCH[1], x) for x in MIXED),
    *((call, torchs()[name]) for call in TO_HOST for name in ("conjugate", "negative history", "brain")),
    *((call, x) for call in TO_JAX for x in (np.arange(6.0)[::-2], np.arange(3), np.ones((2, 3)).T)),
    *((call, np.arange(3.0).view(np.memmap)) for call in (CALLS["to torch"], CALLS["tree copy"])),
]


@pytest.mark.parametrize(("call", "x"), REPEATED, ids=range(len(REPEATED)))
def test_call_cache__repeated_call_is_not_planned(
    call: Call, x: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second call with the same options and kind of array makes no plan."""
    if call in TO_JAX:
        pytest.importorskip("jax")
        get_backend("jax")
    expected = outcome(call, x)
    monkeypatch.setattr(convert, "plan", None)
    assert outcome(call, x) == expected


# -- state that changes after the first call ------------------------------------------------------


def dispatch_mode() -> Any:
    return Passes()  # type: ignore[no-untyped-call] # torch's


def fake_mode() -> Any:
    return torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)


def x64() -> Any:
    if not xbridge.is_available("jax"):
        return nullcontext()
    import jax

    return jax.enable_x64(True)


STATES: dict[str, Callable[[], Any]] = {
    "default dtype": default_dtype,
    "inference": torch.inference_mode,
    "no grad": torch.no_grad,
    "forward mode": torch.autograd.forward_ad.dual_level,
    "dispatch mode": dispatch_mode,
    "fake mode": fake_mode,
    "policy": lambda: xbridge.policy(copies="raise", casts="raise"),
    "record": xbridge.record,
    "observer": planned,
    "device": lambda: torch.device("meta"),
}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by the fake mode
@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_call_cache__follows_the_state_of_torch(state: Callable[[], Any]) -> None:
    """A cached call gives the planned result after modes and defaults of torch change."""
    kinds = ("plain", "leaf", "history", "transposed", "integers", "large", "locked", "single", "conjugate")
    xs = [make()[kind] for make in (numpys, torchs) for kind in kinds if kind in make()]

    def bare(call: Call, x: Any) -> tuple[object, ...]:
        try:
            y = call(x)
        except (xbridge.XBridgeError, RuntimeError, AssertionError) as error:
            return type(error), str(error)
        if isinstance(y, str):
            return (y,)
        inference = isinstance(y, torch.Tensor) and y.is_inference()
        return type(y), str(y.dtype), tuple(y.shape), y is x, inference, getattr(y, "requires_grad", None)

    for name, call in CALLS.items():
        with state(), planned():
            expected = [bare(call, x) for x in xs]
        for x in xs:
            bare(call, x)
        with state():
            for _ in range(2):
                assert [bare(call, x) for x in xs] == expected, name


def calls_with(options: dict[str, Any], more: dict[str, Any]) -> dict[str, Call]:
    """Every call that takes the options, to every library. Only `asarray` makes leaves."""
    host = {name: value for name, value in options.items() if name != "device"}
    made: dict[str, Call] = {
        "to_numpy": lambda x: xbridge.to_numpy(x, **host),
        "to_numpy, writable": lambda x: xbridge.to_numpy(x, **host, writable=True),
        "tree.to_numpy, writable": lambda x: tree.to_numpy({"x": x, "n": 1}, **host, writable=True)["x"],
        "asarray": lambda x: xbridge.asarray(x, **options, **more),
        "asarray, like": lambda x: xbridge.asarray(x, like=torch.ones(1), **options, **more),
        "align": lambda x: xbridge.align(np.ones(1), x, 1.5, **options)[1],
        "align_back": lambda x: xbridge.align_back(torch.ones(1), x, **options)[0][1],
        "tree.align": lambda x: tree.align([x], like=torch.ones(1), **options)[0][0],
        "aligned": xbridge.aligned(backend="torch", **options)(lambda y: y),
    }

    def to(name: str) -> dict[str, Call]:
        return {
            f"to_backend {name}": lambda x: xbridge.to_backend(x, name, **options),
            f"asarray {name}": lambda x: xbridge.asarray(x, backend=name, **options, **more),
            f"tree {name}": lambda x: tree.to_backend((x,), name, **options)[0],
        }

    return made | to("numpy") | to("torch") | to("jax") | to("dask")


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "device": st.sampled_from(["cpu", torch.device("cpu"), xbridge.Device("cpu")]),
        "dtype": st.sampled_from(
            [*("float32", "float64", "float16", "bfloat16", "int32", "complex64", "default", "nearest")]
        ),
        "copy": st.booleans(),
        "grad": st.sampled_from(["keep", "detach"]),
    },
)
LEAVES = st.fixed_dictionaries({}, optional={"requires_grad": st.booleans()})
CHANGES = {"none": nullcontext, "x64": x64, **{name: STATES[name] for name in list(STATES)[:3]}}


@pytest.mark.slow  # each example converts all arrays in up to three states, three times
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")  # a cast was named
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@example("to_numpy", {"copy": True, "grad": "keep"}, {}, ["none"], 0)
@example("to_numpy", {"dtype": "float32", "grad": "keep"}, {}, ["none"], 0)
@given(
    st.sampled_from(sorted(calls_with({}, {}))),
    OPTIONS,
    LEAVES,
    st.lists(st.sampled_from(list(CHANGES)), min_size=1, max_size=3),
    st.integers(),
)
def test_call_cache__any_sequence_gives_planned_results(
    name: str, options: dict[str, Any], more: dict[str, Any], states: list[str], order: int
) -> None:
    """Any sequence of arrays, options and library states gives what a plan gives."""
    call, xs = calls_with(options, more)[name], arrays()
    Random(order).shuffle(xs)
    expected: dict[str, list[object]] = {}
    for state in states:
        with CHANGES[state](), planned():
            expected[state] = [outcome(call, x) for _, x in xs]
    forget_calls()
    for state in (*states, *states):
        with CHANGES[state]():
            for (kind, x), planned_outcome in zip(xs, expected[state], strict=True):
                assert outcome(call, x) == planned_outcome, (kind, state)


DEFAULTS = [("torch", lambda name=name: default_dtype(name)) for name in ("float16", "bfloat16", "float64")]


@pytest.mark.parametrize(("backend", "state"), [*DEFAULTS, ("jax", x64)])
def test_asarray__cached_list_follows_the_default_dtype(backend: str, state: Callable[[], Any]) -> None:
    """A cached list is exact in the current default dtype, or is refused."""
    pytest.importorskip(backend)
    known: list[Any] = [
        *([1, 2.5], [2**9 + 1, 0.5], [2**12 + 1, 0.5], [2**25 + 1, 0.5], [2**60, 0.5], [3, 1j]),
        *([2**40], [1e300], 2**40, (1.5,), [[]]),
    ]

    def call(x: Any) -> Any:
        return xbridge.asarray(x, backend=backend)

    for change in (nullcontext, state, nullcontext, state):
        with change():
            found = [outcome(call, x) for x in known * 2]
            with planned():
                assert found == [outcome(call, x) for x in known] * 2


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # by torch
def test_call_cache__pending_operation_inside_a_transform() -> None:
    """Inside a transform or a fake mode a cached call raises the error of the plan."""
    x = torch.ones(2, dtype=torch.complex64).conj()
    for _ in range(2):
        xbridge.to_numpy(x)
    errors = []

    def used(y: Any) -> Any:
        with pytest.raises(xbridge.XBridgeError) as caught:
            xbridge.to_numpy(y)
        errors.append(caught.value.reason)
        return y

    torch.func.vmap(used)(torch.ones(2, 2, dtype=torch.complex64).conj())
    torch.func.vmap(lambda y: used(y.conj()))(torch.ones(2, 2, dtype=torch.complex64))
    with torch.autograd.forward_ad.dual_level():
        used(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
    with fake_mode():
        used(x)
    assert errors == [
        "a function transform is running over it",
        "a function transform is running over it",
        "its forward-mode tangent would be lost",
        "a fake mode is running, which computes no values",
    ]


@pytest.mark.parametrize("transform", [torch.func.grad, torch.vmap])
def test_call_cache__refuses_leaves_inside_transforms(transform: Any) -> None:
    """A leaf created outside a transform does not let a cached call create one inside."""
    for plain in (np.ones(2), torch.ones(2)):
        for _ in range(2):
            xbridge.asarray(plain, backend="torch", requires_grad=True)

        def inside(y: Any, x: Any = plain) -> Any:
            with pytest.raises(xbridge.GradientError, match="require_grad failed"):
                xbridge.asarray(x, backend="torch", requires_grad=True)
            return y.sum()

        transform(inside)(torch.ones(1, 2) if transform is torch.vmap else torch.ones(2))


FAILING: dict[str, tuple[Call, Callable[[int], Any]]] = {
    "copy": (CALLS["copy"], lambda n: torch.zeros(1).expand(n)),
    "cast": (lambda x: xbridge.to_backend(x, "torch", dtype="float64"), lambda n: torch.zeros(1).expand(n)),
    "pending": (xbridge.to_numpy, lambda n: torch.zeros(1, dtype=torch.complex64).expand(n).conj()),
}
"""Calls, and arrays of any length whose copies need memory for all of it."""


@pytest.mark.parametrize("name", FAILING)
def test_call_cache__reports_library_errors_like_a_plan(name: str) -> None:
    """An exception of a library in a cached call is replaced by the error of the plan."""
    call, make = FAILING[name]
    with planned():
        expected = outcome(call, make(2**46))
    assert "failed with" in str(expected[1])
    for _ in range(2):
        call(make(3))
    assert outcome(call, make(2**46)) == expected


# -- observers, registrations and threads -----------------------------------------------------------


def during_the_plan(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[], object], *, after: bool = True
) -> None:
    """Make a change while the next conversion is planned."""
    plan = convert.plan

    def changed(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(convert, "plan", plan)
        if not after:
            change()
        found = plan(*args, **options)
        if after:
            change()
        return found

    monkeypatch.setattr(convert, "plan", changed)


def enter_and_leave() -> None:
    with xbridge.policy(casts="warn"):
        pass


WHOLE: dict[str, Call] = {
    "to_backend": CALLS["copy"],
    "scalar": lambda x: xbridge.to_backend(x[0], "torch", dtype="float32"),
    "like": lambda x: xbridge.asarray(x, like=torch.ones(1), copy=True),
    "align": lambda x: xbridge.align(torch.ones(1), x, copy=True)[1],
    "number": lambda x: xbridge.asarray(float(x[0]), backend="torch", dtype="float32"),
    "list": lambda x: xbridge.asarray(x.tolist(), backend="torch", dtype="float32"),
    "arrays": lambda x: xbridge.asarray([x, np.ones(2, "i8")], backend="torch"),
}


@pytest.mark.parametrize("call", WHOLE.values(), ids=WHOLE)
@pytest.mark.parametrize("change", [enter_and_leave, forget_calls])
def test_call_cache__ignores_plans_made_before_a_change(
    change: Callable[[], None], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan is not cached if a policy or a backend changed while it was made."""

    def tables() -> list[set[Any]]:
        return [set(cached), *map(set, (*direct.values(), *direct_asarray.values()))]

    xbridge.to_backend(np.ones(2), "torch")
    before = tables()
    during_the_plan(monkeypatch, change)
    call(np.ones(2))
    assert tables() == before
    call(np.ones(2))
    assert tables() != before


@pytest.mark.parametrize("after", [True, False])
def test_call_cache__ignores_state_changed_during_the_plan(
    after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan is not cached if the state of its library changes while it is made, or just before."""
    with default_dtype("float32"):
        during_the_plan(monkeypatch, lambda: torch.set_default_dtype(torch.float64), after=after)
        single = xbridge.to_backend(np.ones(2), "torch", dtype="default").dtype == torch.float32
        assert single is after
        assert xbridge.to_backend(np.ones(2), "torch", dtype="default").dtype == torch.float64
        torch.set_default_dtype(torch.float32)
        assert xbridge.to_backend(np.ones(2), "torch", dtype="default").dtype == torch.float32


@pytest.mark.parametrize("call", WHOLE.values(), ids=WHOLE)
def test_record__sees_every_cached_call(call: Call) -> None:
    """Entering `record` also shows calls that were cached before, each once."""
    x = np.ones(2)
    for _ in range(2):
        call(x)
    with xbridge.record() as seen:
        call(x)
        one = sum(row.calls for row in seen.rows)
        call(x)
    assert one
    assert sum(row.calls for row in seen.rows) == 2 * one
    assert not cached


def test_call_cache__threads_and_policies() -> None:
    """Threads get planned results while policies are entered and left."""
    x, wrong = np.arange(4.0), []
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            for name in ("copy", "dtype", "default", "to numpy dtype", "tree dtype", "align"):
                y = CALLS[name](x)
                if not np.array_equal(np.asarray(y), x) or (name != "align" and xbridge.shares_memory(x, y)):
                    wrong.append(name)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(50):
            with xbridge.policy(copies="raise"), pytest.raises(xbridge.PolicyError):
                CALLS["copy"](x)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_call_cache__reads_the_device_of_like_each_time() -> None:
    """A cached call follows the device of the array that decides."""
    near, far = torch.ones(1), torch.ones(1, device="meta")
    ask: list[Call] = [
        lambda like: xbridge.asarray(torch.ones(2), like=like),
        lambda like: xbridge.asarray([torch.ones(2), torch.ones(2)], like=like),
        lambda like: xbridge.align(torch.ones(2), like=like)[0],
        lambda like: xbridge.align(like, torch.ones(2), 3)[1],
        lambda like: xbridge.align_back(like, torch.ones(2))[0][1],
    ]
    for call, likes in product(ask, ([near, near, far, near, far], [far, near, far])):
        forget_calls()
        assert [call(like).device for like in likes] == [like.device for like in likes]


# -- options ----------------------------------------------------------------------------------------

FLAGS: dict[str, Callable[[Any], Any]] = {
    "to_backend": lambda flag: xbridge.to_backend(np.ones(2), "torch", copy=flag),
    "to_numpy": lambda flag: xbridge.to_numpy(torch.ones(2), copy=flag),
    "writable": lambda flag: xbridge.to_numpy(torch.ones(2), writable=flag),
    "asarray": lambda flag: xbridge.asarray(np.ones(2), copy=flag),
    "requires_grad": lambda flag: xbridge.asarray(torch.ones(2), requires_grad=flag),
    "align": lambda flag: xbridge.align(torch.ones(2), np.ones(2), copy=flag),
    "tree": lambda flag: tree.to_backend([np.ones(2)], "torch", copy=flag),
}


@pytest.mark.parametrize("flag", [1, 0, 1.0, np.True_, "yes"])
@pytest.mark.parametrize("call", FLAGS.values(), ids=FLAGS)
def test_call_cache__refuses_values_equal_to_a_cached_flag(call: Callable[[Any], Any], flag: Any) -> None:
    """1 and "yes" are refused for a flag even after True and False were cached."""
    for known in (True, False) * 2:
        call(known)
    with pytest.raises(xbridge.OptionError, match="it is None, True or False"):
        call(flag)


def test_call_cache__options_without_a_hash_of_their_own() -> None:
    """An option that has no hash, or is of a subclass of str, is read each time and never in a key."""

    class Odd:
        __hash__ = None  # type: ignore[assignment]

    class Word(str):
        __slots__ = ()
        __hash__ = None  # type: ignore[assignment]

    class Single(StrEnum):
        SINGLE = "float32"

    for _ in range(2):
        with pytest.raises(xbridge.DeviceError):
            xbridge.to_backend(np.ones(2), "torch", device=Odd())
        with pytest.raises(xbridge.DTypeError):
            xbridge.to_numpy(np.ones(2), dtype=[])
        assert tree.to_backend([np.ones(2)], "torch", device=Word("cpu"))[0].dtype == torch.float64
        assert xbridge.to_backend(np.ones(2), "torch", device=Word("cpu")).dtype == torch.float64
        assert xbridge.to_backend(np.ones(2), "torch", dtype=Single.SINGLE).dtype == torch.float32
        assert xbridge.to_backend(np.ones(2), "torch", dtype=Word("float32")).dtype == torch.float32
        xbridge.to_backend(np.ones(2), "torch", dtype="float32")
    assert not any(type(part) in (Word, Single) for key in cached for part in key)


def test_tree__text_array_stays_itself_after_a_copy() -> None:
    """A text array in a tree is not copied even if the same call outside of a tree did."""
    text = np.array(["a", "b"])
    for _ in range(2):
        assert xbridge.to_backend(text, "numpy", copy=True) is not text
        assert tree.to_backend([text], "numpy", copy=True)[0] is text


def test_call_cache__is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache drops its oldest call, and a call its oldest kind of array, when there are too many."""
    monkeypatch.setattr(call_cache, "MOST", 2)
    for dtype in ("float32", "int64", "int32", "float32"):
        for kind in ("f8", "f4", "i2"):
            assert xbridge.dtype_of(xbridge.to_backend(np.ones(2, kind), "torch", dtype=dtype)) == dtype
    assert [key[4] for key in cached] == ["int32", "float32"]
    for numbers in ([1.5], [1], [True]):
        xbridge.asarray(numbers, backend="torch", dtype="float64")
    assert len(cached) == 2
    for kind in ("f8", "f4", "i2", "i4"):
        xbridge.to_backend(np.ones(2, kind), "torch", dtype="float16")
    monkeypatch.setattr(convert, "plan", None)
    for kind in ("i2", "i4"):
        assert xbridge.to_backend(np.ones(2, kind), "torch", dtype="float16").tolist() == [1.0, 1.0]
    with pytest.raises(TypeError):
        xbridge.to_backend(np.ones(2, "f8"), "torch", dtype="float16")
