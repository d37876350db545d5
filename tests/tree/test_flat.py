"""The call is cached: trees are converted as similar ones were before, and give what the first call gives."""

from __future__ import annotations

from collections import OrderedDict
from enum import IntEnum
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from inside import forget_calls, get_backend, planned
from torch_modes import default_dtype

import xbridge
from xbridge import tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Call = Callable[[Any], Any]

torch = pytest.importorskip("torch")


class Level(IntEnum):
    """Integers that are not plain."""

    LOW = 1


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    for name in ("numpy", "torch"):
        get_backend(name)  # a backend that is loaded during a call empties the tables
    forget_calls()
    yield
    forget_calls()


def trees() -> dict[str, Any]:
    a, t, leaf = np.arange(3.0), torch.ones(2).double(), torch.ones(2, requires_grad=True)
    locked, text, rows = np.broadcast_to(1.5, 2), np.array(["a"]), [np.ones(2)]
    endless: list[Any] = [a]
    endless.append(endless)
    return {
        "arrays": {"a": a, "b": np.ones((1, 2))},
        "tensors": [t, t * 2],
        "both": (a, t),
        "numbers": {"a": a, "n": 3, "x": 2.5, "flag": True, "z": 1j},
        "small and large numbers": [a, 2**40, 2**70, 1e300],
        "other leaves": [a, "text", b"text", None, "text", None],
        "scalars": {"a": a, "s": np.float64(2.5), "i": np.int64(3)},
        "scalars of text": [a, np.str_("a"), np.datetime64("2020")],
        "nested": {"a": {"b": (a, [t])}, "info": {}, "empty": (), "none": None},
        "twice": [a, a],
        "twice inside": {"x": [a], "y": (t, [a], t)},
        "one list twice": [rows, rows],
        "leaf": [leaf, leaf * 2],
        "locked": {"a": locked, "b": locked[:1]},
        "text": [a, text],
        "integers": [np.arange(3), np.arange(3, dtype="u1")],
        "other byte order": [a.astype(">f8"), a],
        "conjugate": [torch.ones(2, dtype=torch.complex64).conj()],
        "no arrays": [1, "a", None],
        "empty": {},
        "an array": a,
        "a number": 2.5,
        "ordered": OrderedDict(a=a, n=1),
        "named": np.linalg.slogdet(np.eye(2)),
        "odd leaves": [a, Level.LOW, object, len],
        "many": [np.full(1, float(i)) for i in range(20)],
        "many inside": [[np.full(1, float(i))] for i in range(12)],
        "endless": endless,
    }


CALLS: dict[str, Call] = {
    "torch": lambda x: tree.to_backend(x, "torch"),
    "to_torch scalars": lambda x: tree.to_torch(x, dtype="default", scalars=True),
    "dtype object": lambda x: tree.to_backend(x, "torch", dtype=torch.float32, device=torch.device("cpu")),
    "copy": lambda x: tree.to_backend(x, "torch", copy=True),
    "no copy": lambda x: tree.to_backend(x, "torch", copy=False),
    "scalars": lambda x: tree.to_backend(x, "torch", scalars=True),
    "scalars of a dtype": lambda x: tree.to_backend(x, "torch", scalars=True, dtype="default"),
    "numpy": tree.to_numpy,
    "writable": lambda x: tree.to_numpy(x, writable=True),
    "read-only": lambda x: tree.to_numpy(x, writable=False),
    "read-only scalars": lambda x: tree.to_numpy(x, scalars=True, writable=False),
    "exporters": lambda x: tree.to_backend(x, "torch", exporters=True),
    "restore": lambda x: xbridge.align_back(np.ones(1), torch.ones(1))[1](x, to=1),
}


def facts(given: Any, made: Any) -> Any:
    """All that the contract says about a tree of results."""
    if isinstance(made, dict):
        return type(made), [(key, facts(given[key], y)) for key, y in made.items()]
    if isinstance(made, (list, tuple)):
        return type(made), [facts(x, y) for x, y in zip(given, made, strict=True)]
    if not isinstance(made, (np.ndarray, torch.Tensor)):
        return type(made), made
    values = made.tolist() if isinstance(made, np.ndarray) else made.detach().tolist()
    shares = isinstance(given, (np.ndarray, torch.Tensor)) and xbridge.shares_memory(given, made)
    mutable = made.flags.writeable if isinstance(made, np.ndarray) else made.requires_grad
    return type(made), made.dtype, tuple(made.shape), values, shares, made is given, mutable


def arrays_of(made: Any) -> list[Any]:
    """All results of a tree that are arrays, in order."""
    if isinstance(made, (dict, list, tuple)):
        return [y for inner in (made.values() if isinstance(made, dict) else made) for y in arrays_of(inner)]
    return [made] if isinstance(made, (np.ndarray, torch.Tensor)) else []


def outcome(call: Call, x: Any) -> Any:
    """Return the facts about a result, and which of its arrays are one object; or the error."""
    try:
        made = call(x)
        found = facts(x, made)
        arrays = arrays_of(made)
        return found, [next(i for i, z in enumerate(arrays) if z is y) for y in arrays]
    except xbridge.XBridgeError as error:
        return type(error), str(error)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_to_backend__any_tree_after_any_other(call: Call) -> None:
    """Whatever trees were converted before, a tree becomes what a walk makes of it."""
    with planned():
        expected = {name: outcome(call, x) for name, x in trees().items()}
    names = list(expected)
    for order in (names, names[::-1], *(Random(seed).sample(names, len(names)) for seed in range(3))):
        forget_calls()
        for name in order:
            assert outcome(call, trees()[name]) == expected[name], (name, order)


SMALL = [
    "numbers",
    "twice",
    "twice inside",
    "other leaves",
    "scalars",
    "nested",
    "locked",
    "no arrays",
    "empty",
    "an array",
]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_to_backend__repeats_the_call_for_a_tree(
    name: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree is converted by the cached call, once each of its arrays was planned."""
    outcome(call, trees()[name])
    expected = outcome(call, trees()[name])
    if isinstance(expected[0], type):  # the class of an error
        pytest.skip("it is refused")
    monkeypatch.setattr("xbridge.tree.verbs.tree_converter", None)
    assert outcome(call, trees()[name]) == expected


@pytest.mark.parametrize("is_large_first", [False, True])
def test_to_backend__converts_an_array_in_small_and_large_containers_once(is_large_first: bool) -> None:
    """An array has one copy, whether its containers are converted at once or together."""
    x = np.ones(3)
    pair = {"small": x, "large": [x] * 30}
    given = dict(sorted(pair.items(), reverse=not is_large_first))
    for _ in range(3):
        y = tree.to_backend(given, "torch", copy=True)
        assert all(one is y["small"] for one in y["large"])
        assert list(y) == list(given)


def test_to_backend__reads_the_default_dtype_in_each_call() -> None:
    """A number becomes the default dtype of the moment."""
    x = [np.ones(1), 1.5, 3, 1j]

    def dtypes() -> list[Any]:
        return [y.dtype for y in tree.to_backend(x, "torch", scalars=True)]

    narrow = [torch.float64, torch.float32, torch.int64, torch.complex64]
    wide = [torch.float64, torch.float64, torch.int64, torch.complex128]
    for default, expected in (("float32", narrow), ("float64", wide)) * 2:
        with default_dtype(default):
            assert [dtypes(), dtypes()] == [expected, expected]
