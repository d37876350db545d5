"""Arguments and results are trees: what is converted, and what is a constant of the call."""

from __future__ import annotations

import decimal
import math
from collections import namedtuple
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from crossed import Model, X, aligned, leaf, same

import xbridge
from xbridge import OptionError, tree

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

if TYPE_CHECKING:
    from collections.abc import Callable

Pair = namedtuple("Pair", "w b")  # noqa: PYI024 -- with the types of a tree


def test_aligned__tree_of_parameters_is_differentiated() -> None:
    """A tree of parameters is differentiated."""
    w, b = torch.rand(3, 4, dtype=torch.float64, requires_grad=True), leaf()[:3].detach().requires_grad_()
    tree = {"layers": [Pair(w, b)], "act": "tanh", "none": None}

    def net(tree: Any, v: Any, *, scale: float) -> Any:
        act = jax.numpy.tanh if tree["act"] == "tanh" else jax.numpy.sin
        (layer,) = tree["layers"]
        return {"out": act(layer.w @ v + layer.b) * scale, "tag": tree["act"], "none": tree["none"]}

    v = torch.from_numpy(X)
    out = aligned(backend="jax")(net)(tree, v, scale=3.0)
    assert (out["tag"], out["none"]) == ("tanh", None)
    right = torch.tanh(w @ v + b) * 3
    same(out["out"], right)
    for found, expected in zip(
        torch.autograd.grad(out["out"].sum(), (w, b)), torch.autograd.grad(right.sum(), (w, b)), strict=True
    ):
        same(found, expected)


class Registered:
    """A class that torch knows, with a context that is not an array."""

    def __init__(self, w: Any, name: Any) -> None:
        self.w = w
        self.name = name


torch.utils._pytree.register_pytree_node(
    Registered,
    lambda r: ([r.w], r.name),
    lambda children, name: Registered(next(iter(children)), name),
)


@pytest.mark.parametrize("cls", [Model, Registered])
def test_aligned__other_parts_of_a_container_are_part_of_the_call(cls: Any) -> None:
    """A dataclass, or a class that a library registers, is a tree; what is no array in it is a constant."""
    call = aligned(backend="jax")(lambda model, x: cls(len(model.name) * model.w * x, model.name))
    for name in ("a", "ab", ["a"], ["a", "b"], ["a"]):
        w = leaf()
        made = call(cls(w, name), torch.from_numpy(X))
        assert (type(made), made.name) == (cls, name)
        same(torch.autograd.grad(made.w.sum(), w)[0], len(name) * X)


def test_aligned__argument_without_a_hash_is_refused_only_if_something_is_followed() -> None:
    """An argument without a hash is refused only if something is followed."""
    f = aligned(backend="jax")(lambda x, names: x * len(names))
    same(f(leaf().detach(), {"a", "b"}), 2 * X)
    same(f(leaf(), frozenset("ab")), 2 * X)
    with pytest.raises(OptionError, match=r"has no hash: .*set.*; try a tuple or a frozenset"):
        f(leaf(), {"a", "b"})


def test_aligned__arguments_and_results_without_arrays_stay_the_same_objects() -> None:
    """Arguments and results without arrays stay the same objects."""
    thing: Any = object()
    seen: Any = []
    f = aligned(backend="jax")(lambda x, thing, names: (seen.append((thing, names)), thing)[1])
    names = [["a"], {"b": 1}]
    assert f(torch.ones(2), thing, names) is thing
    assert seen[0][0] is thing
    assert seen[0][1] is names
    assert f(torch.ones(2, requires_grad=True), thing, [1]) is thing
    result: Any
    for result in (None, "text", 3, 2.5, True, (), [], {}):
        g = aligned(backend="numpy", result=lambda x, r=result: r)(lambda x, r=result: r)
        for x in (leaf(), jax.numpy.asarray(X)):
            assert g(x) == result
        assert jax.jit(lambda v, g=g: (v, g(v))[0])(jax.numpy.asarray(X)).shape == X.shape


def test_aligned__each_call_has_its_own_numbers_in_its_result() -> None:
    """Each call has its own numbers in its result."""
    seen: Any = []
    runs: list[None] = []

    def solve(x: Any) -> Any:
        runs.append(None)
        return {"x": np.sin(x), "iterations": len(runs)}

    f = aligned(backend="numpy", vjp=lambda g, y, x: (seen.append(y["iterations"]), g["x"] * np.cos(x))[1])(
        solve
    )
    a, b = leaf(), leaf()
    one, two = f(a), f(b)
    assert (one["iterations"], two["iterations"]) == (1, 2)
    one["x"].sum().backward()
    two["x"].sum().backward()
    assert seen == [1, 2]
    same(a.grad, np.cos(X))


def test_aligned__first_array_that_is_followed_decides() -> None:
    """The first array that is followed decides."""
    product = aligned(backend="numpy", signature="(),()->()", vjp=lambda g, y, a, b: (g * b, g * a))(
        lambda a, b: a * b
    )
    v = jax.numpy.asarray(X)
    for other in (X, v, torch.from_numpy(X)):
        x = leaf()
        y = product(other, x)
        assert xbridge.backend_of(y) == "torch"
        same(torch.autograd.grad(y.sum(), x)[0], X)
    for constant in (X, torch.from_numpy(X)):
        same(jax.jit(jax.grad(lambda t, c=constant: product(c, t).sum()))(v), X)
    assert xbridge.backend_of(product(X, v)) == "numpy"
    assert xbridge.backend_of(product(v, X)) == "jax"
    assert xbridge.backend_of(product(np.float64(2), v)) == "jax"
    with pytest.raises(xbridge.UnsupportedArrayError, match=r"at argument 1 of .*a tracer has no values"):
        jax.grad(lambda t: product(leaf(), t).sum())(v)


def test_aligned__within_one_library_a_function_runs_as_it_is() -> None:
    """Within one library a function runs as it is."""
    seen: Any = []
    f = aligned(lambda x, y: (seen.extend((x, y)), x * y)[1])
    x = leaf()
    y = f(X, x)
    assert seen[1] is x
    same(torch.autograd.grad(y.sum(), x)[0], X)
    v = jax.numpy.asarray(X)
    same(jax.jit(jax.grad(lambda t: f(X, t).sum()))(v), X)
    like = aligned(like=torch.ones(1))(lambda x: x + 1)
    same(jax.grad(lambda t: like(t).sum())(v), 1 + 0 * X)


def test_aligned__nested_arrays_are_named_in_errors() -> None:
    """Nested arrays are named in errors."""
    f = aligned(backend="jax")(lambda tree, *, model=None: tree)
    bad = np.array([None])
    named: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        (({"a": [1, bad]},), {}, "argument 0['a'][1]"),
        ((Pair(bad, 1),), {}, "argument 0.w"),
        ((torch.ones(1),), {"model": Model(bad)}, "argument 'model'.w"),
        (((bad,),), {}, "argument 0[0]"),
        ((leaf(),), {"model": Model(bad)}, "argument 'model'.w"),
    ]
    for args, kwargs, place in named:
        with pytest.raises(xbridge.DTypeError) as caught:
            f(*args, **kwargs)
        assert str(caught.value).startswith(f"at {place} of ")


@pytest.mark.parametrize("program", [lambda f: f, jax.jit, jax.vmap], ids=["eager", "jit", "vmap"])
def test_aligned__named_results_of_torch_are_named_tuples(program: Callable[[Any], Any]) -> None:
    """JAX knows named tuples as trees, and not `torch.return_types`."""
    f = aligned(backend="torch")(lambda x: {"sorted": torch.sort(x, 0), "norm": x.norm()})
    x = jax.numpy.asarray(np.stack([X[::-1], X]))
    made = program(f)(x)["sorted"]
    assert made._fields == ("values", "indices")
    same(program(lambda x: jax.numpy.sort(x, 0))(x), made.values)
    own = aligned(backend="torch")(lambda x: torch.sort(x, 0))(torch.ones(2))
    assert type(own) is torch.return_types.sort


def test_aligned__cotangent_and_gradient_have_the_form_of_the_result_and_the_argument() -> None:
    """A vjp gets trees like the result, and returns trees like the arguments, in any order of the keys."""
    seen: list[Any] = []

    def vjp(g: Any, y: Any, tree: Any) -> Any:
        seen.append((g, y))
        return {"b": Model(g["a"] + 2 * g["b"][0]), "w": 2 * g["a"]}

    def f(tree: Any) -> Any:
        return {"a": 2 * tree["w"] + tree["b"].w, "b": (2 * tree["b"].w, "tag", np.array([1, 2])), "n": 3}

    w, b = leaf(), leaf()
    y = aligned(backend="numpy", vjp=vjp)(f)({"w": w, "b": Model(b)})
    one, two = torch.autograd.grad(y["a"].sum() + y["b"][0].sum(), (w, b))
    same(one, 2 + 0 * X)
    same(two, 3 + 0 * X)
    ((g, whole),) = seen
    assert (g["b"][1:], g["n"], whole["b"][1], whole["n"]) == ((None, None), None, "tag", 3)
    for wrong in ({"w": 1}, {"w": 1, "b": Pair(1, 1)}):
        other = aligned(backend="numpy", vjp=lambda g, y, tree, wrong=wrong: wrong)(f)
        with pytest.raises(OptionError, match="another form"):
            torch.autograd.grad(other({"w": w, "b": Model(b)})["a"].sum(), w)


def test_aligned__packed_sequence_has_one_array() -> None:
    """The data alone is converted and differentiated; lengths and indices are constants of the call."""
    padded, layer = torch.randn(3, 4, 2), torch.nn.LSTM(2, 3)
    f = aligned(backend="torch", dtype="float32")(lambda p: layer(p)[0])
    for lengths in ([2, 4, 1], [3, 3, 1]):  # as much data, of other lengths
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            padded[:, : max(lengths)], torch.tensor(lengths), batch_first=True, enforce_sorted=False
        )
        there, want = tree.to_jax(packed), layer(packed)[0]
        for _ in range(2):
            found = f(there)
            same(found.data, want.data.detach())
            assert [x.tolist() for x in found[1:]] == [x.tolist() for x in packed[1:]]
            assert {x.dtype for x in found[1:]} == {torch.int64}
        x = packed.data.clone().requires_grad_()
        expected = torch.autograd.grad(layer(packed._replace(data=x))[0].data.sum(), x)[0]
        slope = jax.grad(lambda x, there=there: f(there._replace(data=x)).data.sum())
        for derive in (slope, jax.jit(slope)):
            same(derive(there.data), expected)


def test_aligned__packed_sequence_in_compiled_code() -> None:
    """A function of torch takes one; for another library its lengths, which have no values, are refused."""
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])

    def run(library: str) -> Any:
        torch._dynamo.reset()  # what other tests compile counts in its limit of recompilations
        f = aligned(backend=library)(lambda p: p.data * 2)
        return torch.compile(f, fullgraph=True, backend="eager")(packed)

    same(run("torch"), 2 * packed.data)
    with pytest.raises(Exception, match="a PackedSequence in compiled code"):  # torch wraps the error
        run("jax")


def test_aligned__gradients_by_keyword_are_in_the_order_of_the_signature() -> None:
    def vjp(g: Any, y: Any, a: Any, b: Any, *, c: int = 1) -> Any:
        return g * b * c, g * a * a.dtype.type(c), None

    f = aligned(backend="numpy", vjp=vjp)(lambda a, b, *, c=1: a * b * c)
    for call in (lambda a, b: f(b=b, a=a, c=3), lambda a, b: f(a, c=3, b=b), lambda a, b: f(a, b, c=3)):
        a, b = leaf(), (2 * leaf()).detach().requires_grad_()
        one, two = torch.autograd.grad(call(a, b).sum(), (a, b))  # type: ignore[no-untyped-call]
        same(one, 6 * X)
        same(two, 3 * X)


@pytest.mark.parametrize("way", ["direct", "tracked", "compiled"])
def test_aligned__result_has_its_own_order_of_keys(way: str) -> None:
    """A dict in a result has the order in which the function made it, and each key its own array."""
    f = aligned(backend="jax")(lambda x: {"b": x * 2, "a": {"d": x * 3, "c": x * 4}})
    run = torch.compile(f, fullgraph=True, backend="eager") if way == "compiled" else f
    made = run(leaf() if way == "tracked" else torch.from_numpy(X))
    assert (list(made), list(made["a"])) == (["b", "a"], ["d", "c"])
    for y, factor in ((made["b"], 2), (made["a"]["d"], 3), (made["a"]["c"], 4)):
        same(y, X * factor)


def alternating() -> Any:
    """A function of torch whose result has its keys in another order in each run."""
    runs = [0]

    def f(x: Any) -> Any:
        runs[0] += 1
        items = {"a": 2 * x, "more": [{"c": 5 * x, "b": 3 * x}]}
        return items if runs[0] % 2 else {key: items[key] for key in reversed(items)}

    return aligned(backend="torch")(f)


def total(f: Any) -> Any:
    return lambda x: (f(x)["a"] + 7 * f(x)["more"][0]["b"]).sum()


WAYS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "grad": lambda f: jax.grad(total(f)),
    "jit(grad)": lambda f: jax.jit(jax.grad(total(f))),
    "jit(vmap(grad))": lambda f: lambda x: jax.jit(jax.vmap(jax.grad(total(f))))(x[None])[0],
    "grad(vmap)": lambda f: jax.grad(lambda x: total(jax.vmap(f))(x[None])),
    "jacfwd": lambda f: jax.jacfwd(total(f)),
}


@pytest.mark.parametrize("way", WAYS)
def test_aligned__derivatives_have_the_keys_of_the_value(way: str) -> None:
    """A dict may have its keys in another order in each run."""
    run = WAYS[way](alternating())
    for _ in range(3):
        same(run(jax.numpy.asarray(X)), np.full(4, 23.0))


# -- constants that differ in anything are other calls -------------------------------------------------------
@dataclass(frozen=True)
class Config:
    name: str
    scale: float = field(compare=False)


class Equal:
    """Objects that are equal whatever they hold, and cannot be pickled."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.own = lambda: scale

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)

    def __hash__(self) -> int:
        return 0


def of_config(c: Any) -> float:
    return float(c.scale)


def of_sign(c: Any) -> float:
    return 2.0 if "-" in repr(c) else 1.0


def of_type(c: Any) -> float:
    return 2.0 if "." in repr(c) else 1.0


CONSTANTS: dict[str, tuple[Any, tuple[Any, Any]]] = {
    "numbers": (of_type, (1, 1.0)),
    "booleans": (lambda c: 2.0 if c is True else 1.0, (1, True)),
    "keys of numbers": (of_type, ({1: 0}, {1.0: 0})),
    "sets": (of_type, (frozenset({1}), frozenset({1.0}))),
    "dataclasses": (of_config, (Config("a", 1.0), Config("a", 2.0))),
    "objects": (of_config, (Equal(1.0), Equal(2.0))),
    "zeros": (of_sign, (0.0, -0.0)),
    "complex zeros": (of_sign, (0j, complex(0, -0.0))),
    "zeros in tuples": (of_sign, ((0, (0.0,)), (0, (-0.0,)))),
    "decimals": (of_sign, (decimal.Decimal(0), decimal.Decimal("-0"))),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CONSTANTS)
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside an array"])
def test_aligned__constants_that_compare_equal(case: str, beside: bool) -> None:
    """Constants that compare equal and are not the same are two calls, each with its own result."""
    scale, pair = CONSTANTS[case]
    assert pair[0] == pair[1]
    f = aligned(backend="jax")(lambda x, c: x * scale(c["c"]))
    x = torch.ones(2, requires_grad=True)
    for c in (*pair, *pair):
        given: Any = {"c": c, "x": x} if beside else {"c": c}
        (slope,) = torch.autograd.grad(f(x, given).sum(), x)
        same(slope, np.full(2, scale(c), "f4"))


@pytest.mark.parametrize(
    "make",
    [lambda: float("nan"), lambda: ("a", 1.0, None), lambda: frozenset({(1, 2)}), lambda: Config("a", 1)],
)
def test_aligned__constants_that_are_the_same(make: Any) -> None:
    """Constants that nothing tells apart are one call, which JAX compiles once."""
    traced = []

    def trace(x: Any, c: Any) -> Any:
        traced.append(c)
        return x

    f = aligned(backend="jax")(trace)
    for _ in range(3):
        f(torch.ones(2, requires_grad=True), make())
    assert len(traced) == 1


@pytest.mark.parametrize("c", [complex(1, math.nan), complex(math.nan, 1)])
def test_aligned__complex_constant_with_a_nan_keeps_its_other_part(c: complex) -> None:
    f = aligned(backend="jax")(lambda x, c: (x * c.real, x * c.imag))
    for found, part in zip(f(torch.ones(1, requires_grad=True), c), (c.real, c.imag), strict=True):
        same(found.detach(), np.full(1, part, "f4"))


@pytest.mark.slow
def test_aligned__constants_in_compiled_code() -> None:
    """A compiled program has constants of each kind that torch's compiler can follow."""
    f = aligned(backend="numpy", result=lambda x, c: x)(lambda x, c: x * of_sign(c))
    x = torch.ones(2)
    for c in (0.0, -0.0, frozenset({1.0}), frozenset({-1.0}), {1: 2}, {(-1,): 2}, (1, (2.0,)), len):
        torch._dynamo.reset()
        run = torch.compile(lambda x: f(x, c), fullgraph=True, backend="eager")  # noqa: B023 -- called here
        same(run(x), np.full(2, of_sign(c), "f4"))
