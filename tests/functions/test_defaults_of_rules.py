"""What rules do by default, and what a compiler's view of a call is made of."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest

import xbridge
from xbridge import OptionError, UnsupportedArrayError
from xbridge.functions.flatten import flatten, with_objects, without_objects
from xbridge.functions.treedef import order_like, outline, reorder_leaves, unflatten

X = np.array([0.25, 0.5, 1.0])


@dataclass(frozen=True)
class Scale:
    """An argument that holds an array."""

    factor: Any
    power: int


@dataclass
class Partly:
    """A dataclass that another call than one with all fields makes."""

    factor: Any
    power: int = field(init=False)

    def __init__(self) -> None:
        self.factor, self.more = X, 2


@dataclass(slots=True)
class Slotted:
    """A dataclass whose instances have no dict."""

    factor: Any
    power: int = field(init=False)


def test_flatten__dataclass_in_compiled_code_is_its_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler follows what a dataclass stores, and takes no object as a constant."""
    monkeypatch.setattr("xbridge.functions.flatten.tracing.is_traced", lambda: True)
    arrays: list[Any] = []
    numbers: list[Any] = []
    assert flatten(Scale(X, 2), arrays, numbers) == ("data", Scale, ("factor", "power"), "*", "int")
    assert arrays[0] is X
    assert numbers == [2]
    assert flatten(Partly(), [], []) == ("data", Partly, ("factor", "more"), "*", "int")
    assert flatten(Slotted(X), [], []) == ("data", Slotted, ("factor",), "*")


def test_flatten__objects_in_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partials are read, containers of arrays are refused, and other objects are constants."""
    monkeypatch.setattr("xbridge.functions.flatten.tracing.is_traced", lambda: True)
    numbers: list[Any] = []
    given = partial(pow, 2, "text", exp=3.0)
    form = flatten(given, [], numbers)
    assert form[0] == "partial"
    objects: list[Any] = []
    made = unflatten(with_objects(without_objects(form, objects), iter(objects)), iter(()), iter(numbers))
    assert (made.func, made.args, made.keywords) == (given.func, given.args, given.keywords)
    assert objects == [pow]
    for x in (partial(pow, X), {1: X}.values(), OrderedDict(a=X), iter([X]), deque([X])):
        with pytest.raises(UnsupportedArrayError, match="cannot be made again"):
            flatten(x, [], [])
    assert flatten(deque(), [], [])[0] == "="
    assert flatten(given.func, [], [])[0] == "="


def test_arrange__orders_arrays_by_key_and_compares_constants() -> None:
    """The arrays of a dict are in the order of the declared keys, and its constants are equal or refused."""

    def wrong() -> OptionError:
        return OptionError("wrong")

    def form(result: Any) -> Any:
        return flatten(result, [], None)

    declared = form({"unit": "m", "a": X, "b": X})
    assert reorder_leaves(declared, form({"b": X, "a": X, "unit": "m"}), iter([1, 2]), wrong) == [2, 1]
    with pytest.raises(OptionError):
        reorder_leaves(declared, form({"b": X, "a": X, "unit": "s"}), iter([1, 2]), wrong)


def test_order_like__moves_keys_only() -> None:
    """Constants and the kinds of sequences are those of the run."""
    arrays: list[Any] = []
    first = flatten({"b": X, "name": "first", "a": [X, X]}, [], None)
    form = flatten({"a": (1, 2), "name": "second", "b": 3}, arrays, None)
    assert outline(first) == outline(form) != outline(flatten({"b": X}, [], None))
    form, ordered = order_like(first, form, iter(arrays))
    made = unflatten(form, iter(ordered), iter(()))
    assert made == {"b": 3, "name": "second", "a": (1, 2)}
    assert list(made) == ["b", "name", "a"]


def test_rule__numpy_function_reads_nothing_besides_its_arguments() -> None:
    """Only rules that keep a version ask for one: another function is the same in each run."""
    f = xbridge.aligned(backend="numpy")(np.sin)
    form = ("tuple", ("tuple", "*"), ("dict", (), ()))
    rule = vars(f)["__xbridge__"].rule("numpy", "numpy", form, (), None)
    assert (rule.keeps_version, rule.reads, rule.version(), rule.tangent_cores((True,))) == (
        False,
        False,
        0,
        None,
    )


def test_aligned__batch_of_tangents_without_a_signature_is_one_call_for_each() -> None:
    """`vmap` of `jvp` calls a NumPy function with a jvp, and without a signature, for each example."""
    jax = pytest.importorskip("jax")
    f = xbridge.aligned(backend="numpy", jvp=lambda t, y, x: t[0] * np.cos(x), result=np.empty_like)(np.sin)
    x = jax.numpy.asarray(np.stack([X, 2 * X]), "float32")
    made = jax.vmap(lambda x: jax.jvp(f, (x,), (x,))[1])(x)
    np.testing.assert_allclose(made, x * np.cos(x), rtol=1e-6)


def test_rule__torch_function_has_no_cores_of_tangents() -> None:
    """A function that is traced has no signature, so its tangents have no axes of one example."""
    torch = pytest.importorskip("torch")
    f = xbridge.aligned(backend="torch")(torch.sin)
    rule = vars(f)["__xbridge__"].rule(
        "torch", "numpy", ("tuple", ("tuple", "*"), ("dict", (), ())), (), None
    )
    assert rule.tangent_cores((True,)) is None


def test_plan_state__is_unknown_while_a_compiler_traces() -> None:
    """What a compiler traces is not learned, so there is no state to depend on, and no fast path."""
    torch = pytest.importorskip("torch")
    from xbridge.backends import torch as backend

    def answers(x: Any) -> list[object]:
        return [backend.plan_state(), backend.fast_to_numpy(x)]

    def trace(x: Any) -> Any:
        return x + 1 if answers(x) == [None] * 2 and backend.follows(x) else x

    x = torch.zeros(1)
    assert None not in answers(x)
    assert trace(x) is x
    assert torch.compile(trace, backend="eager", fullgraph=True)(x).item() == 1
