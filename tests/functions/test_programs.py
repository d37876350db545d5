"""Programs of torch's compiler and exporter: sizes and numbers that are symbols, constants, and lifetimes."""

from __future__ import annotations

import gc
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from crossed import X, curve, in_library, same, slope, value, wide

import xbridge
from xbridge import GradientError, OptionError
from xbridge.functions.programs import find_formula
from xbridge.functions.rules import Spec
from xbridge.functions.treedef import ARRAY, argument_paths

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
jnp = jax.numpy

aligned: Any = xbridge.aligned

wide64 = pytest.fixture(autouse=True)(wide)


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()


def compiled(fn: Any, **options: Any) -> tuple[Any, Any]:
    """A compiled function, and the counter of its programs."""
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(fn, fullgraph=True, backend=counter, **options), counter


def leaf(*shape: int) -> Any:
    return torch.linspace(0.5, 2, int(np.prod(shape)), dtype=torch.float64).reshape(shape).requires_grad_()


@pytest.mark.slow
@pytest.mark.parametrize("library", ["jax", "numpy"])
def test_compile__dynamic_has_one_program_for_all_shapes(library: str) -> None:
    """Shapes are symbols in the value and in the gradient, so the ninth shape is no failure."""
    f = in_library(library)
    compiled(f)[0](leaf(2)).sum().backward()  # loads the libraries, on which a program depends
    run, counter = compiled(lambda x: f(x * 2)[None] + 1, dynamic=True)
    for n in range(2, 13):
        x = leaf(n, n + 1)
        y = run(x)
        same(y, value(2 * x.detach().numpy())[None] + 1)
        same(torch.autograd.grad(y.sum(), x)[0], 2 * slope(2 * x.detach().numpy()))
    assert counter.frame_count == 1


@pytest.mark.slow
def test_compile__dynamic_has_one_program_for_all_numbers() -> None:
    """Integers and floats are symbols, and keep their exact values."""
    f = aligned(backend="jax")(lambda x, n, k: jnp.tile(x, n) * k)
    run, counter = compiled(lambda x, n, k: f(x, n, k).sum(), dynamic=True)
    for n in range(2, 13):
        x, k = leaf(3), n + 1 / 3
        y = run(x, n, k)
        same(y, x.detach().sum() * n * k, 1e-15)
        same(torch.autograd.grad(y, x)[0], np.full(3, n * k), 1e-15)
    assert counter.frame_count == 1


@pytest.mark.slow
def test_compile__has_one_program_for_each_class_of_sizes_that_a_function_divides() -> None:
    """Sizes that are divided are symbols within a class, and others are constants."""
    half = aligned(backend="jax")(lambda x: x[::2] * 2)
    run, counter = compiled(half, dynamic=True)
    for n in range(4, 16):
        same(run(leaf(n)), 2 * leaf(n).detach()[::2])
    assert counter.frame_count == 2
    least = aligned(backend="jax")(lambda x: x[:5] * 2)
    run, counter = compiled(least, dynamic=True)
    for n in (8, 7, 3):
        same(run(leaf(n)), 2 * leaf(n).detach()[:5])
    assert counter.frame_count == 3


def test_compile__refuses_a_result_of_another_shape_than_planned() -> None:
    """A shape that no plan could foresee is an error of the run, and not a wrong result."""
    f = aligned(backend="jax")(lambda x: x[:3] if x.shape[0] == 7 else x)
    run, _ = compiled(lambda x: f(x) * 1, dynamic=True)
    same(run(leaf(20)), leaf(20))
    with pytest.raises(OptionError, match=r"compiled for.*dynamic=False"):
        run(leaf(7))
    torch._dynamo.reset()
    run, _ = compiled(lambda x: f(x) * 1, dynamic=False)
    same(run(leaf(7)), leaf(7).detach()[:3])


def test_compile__runs_a_function_without_a_derivative() -> None:
    """The value is there; the error comes when the gradient is asked for, as in eager code."""
    floor = aligned(backend="numpy", result=np.empty_like)(np.floor)
    run, _ = compiled(lambda x: floor(x) + x)
    x = leaf(4)
    y = run(x)
    same(y, np.floor(X) + X)
    with pytest.raises(GradientError, match="vjp=f"):
        y.sum().backward()


@pytest.mark.parametrize("library", ["jax", "numpy"])
def test_compile__has_second_derivative_if_its_backend_leaves_autograd_alone(library: str) -> None:
    """A gradient that is computed outside of the compiled program has a derivative of its own."""
    run, x = torch.compile(in_library(library), fullgraph=True, backend="eager"), leaf(4)
    (first,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
    same(first, slope(X))
    same(torch.autograd.grad(first.sum(), x)[0], curve(X))


def test_compile__derives_only_the_inputs_that_need_it() -> None:
    """A vjp that has None for an argument is enough if that argument has no gradient."""
    f = aligned(backend="numpy", result=lambda a, b: a, vjp=lambda g, y, a, b: (g * b, None))(
        lambda a, b: a * b
    )
    run, _ = compiled(f)
    a, b = leaf(3), leaf(3).detach()
    same(torch.autograd.grad(run(a, b).sum(), a)[0], b)


@dataclass(frozen=True)
class Options:
    """Fields of an argument that is a constant or holds an array."""

    k: float = 2.0
    n: int = 3
    name: str = "x"
    x: Any = None


@dataclass(frozen=True)
class Checked:
    """A class whose instances have more than their fields."""

    k: float = 2.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "twice", 2 * self.k)


@dataclass
class Doubled:
    """A class that computes a field from another, and changes that."""

    y: Any
    z: Any = field(init=False)

    def __post_init__(self) -> None:
        self.y = 2 * self.y
        self.z = self.y + 1
        self.more = 3


@dataclass(frozen=True, slots=True)
class Slotted:
    """A class whose instances have no dict."""

    y: Any
    k: int = 2


class Settings:
    """A class of which a compiler knows nothing."""

    k = 3.0

    def __call__(self, x: Any) -> Any:
        return x * self.k


@jax.tree_util.register_pytree_node_class
class Registered:
    """A container of JAX."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def tree_flatten(self) -> Any:
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> Any:
        return cls(*children)


SETTINGS = Settings()
PARTIAL = partial(pow, exp=2.0)


@pytest.mark.slow
def test_compile__follows_fields_of_dataclasses() -> None:
    """A dataclass is an argument of compiled code, and its arrays have gradients."""
    f = aligned(backend="jax")(lambda x, o: x * o.k * o.n if o.x is None else x * o.x * len(o.name))
    given = Options()
    run, _ = compiled(lambda x: f(x, given) + f(x, Options(3.0)) + f(x, o=Options(x=x, name="xyz")))
    x = leaf(4)
    same(run(x), X * 6 + X * 9 + 3 * X * X)
    same(torch.autograd.grad(run(x).sum(), x)[0], 15 + 6 * X)
    product = aligned(backend="numpy", result=lambda o: o.x, vjp=lambda g, y, o: Options(x=g * o.k))(
        lambda o: o.x * o.k
    )
    run, _ = compiled(lambda x: product(Options(x=x)))
    same(torch.autograd.grad(run(x).sum(), x)[0], 2 + 0 * X)
    wrong = aligned(backend="numpy", result=lambda o: o.x, vjp=lambda g, y, o: Checked())(lambda o: o.x * o.k)
    run, _ = compiled(lambda x: wrong(Options(x=x)))
    with pytest.raises(OptionError, match="another form"):
        run(x).sum().backward()


def test_compile__keeps_what_instances_store() -> None:
    """An instance is made again with all that it stores, and without code of its class."""
    f = aligned(backend="jax")(lambda x, o: x * o.twice)
    given, x = Checked(), leaf(4)
    same(compiled(lambda x: f(x, given))[0](x), 4 * X)
    torch._dynamo.reset()
    g = aligned(backend="jax")(lambda o: o.y * o.z * o.more)
    for run in (g, compiled(g)[0]):
        same(run(Doubled(x.detach())), 2 * X * (2 * X + 1) * 3)
    torch._dynamo.reset()
    run, _ = compiled(lambda x: g(Doubled(x)))
    same(torch.autograd.grad(run(x).sum(), x)[0], 24 * X + 6)


MAKERS: dict[str, Any] = {
    "frozen": lambda x: {"a": Slotted(x * 2), "n": x},
    "computed": lambda x: [Doubled(x)],
    "options": lambda x: Options(x=(x, "text")),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
@pytest.mark.parametrize("exports", [False, True])
def test_compile__returns_dataclasses(make: Any, *, exports: bool) -> None:
    """A dataclass in a result is made in compiled code, without code of its class."""
    f, x = aligned(backend="jax")(make), leaf(4)

    def arrays(x: Any) -> Any:
        made = f(x)
        if isinstance(made, dict):
            return made["a"].y * made["a"].k
        return made[0].y * made[0].more + made[0].z if isinstance(made, list) else made.x[0] * made.n

    expected = arrays(x)
    if exports:

        class Model(torch.nn.Module):  # type: ignore[misc, name-defined] # Any, as above
            def forward(self, x: Any) -> Any:
                return arrays(x)

        run = torch.export.export(Model(), (x,), strict=True).module()
    else:
        assert type(compiled(f)[0](x)) is type(f(x))
        run = compiled(arrays)[0]
    same(run(x), expected)


CALLABLES = {
    "function": value,
    "object": SETTINGS,
    "partial": PARTIAL,
    "of jax": jnp.tanh,
    "nested": partial(partial(pow), exp=3.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("fn", CALLABLES.values(), ids=list(CALLABLES))
def test_compile__takes_callables_as_arguments(fn: Any) -> None:
    """A function, a partial and an instance of any class are constants of a program."""
    apply = aligned(backend="jax")(lambda x, fn, by: fn(jnp.sin(x)) * by.k)
    fn = jnp.square if fn is value else fn
    run, _ = compiled(lambda x: apply(x, fn, SETTINGS), dynamic=True)
    x = leaf(4)
    same(run(x), 3 * np.asarray(fn(np.sin(X))))


def test_compile__makes_a_program_for_each_number_in_a_partial() -> None:
    """A partial is read, so another one with other numbers is another constant."""
    apply = aligned(backend="jax")(lambda x, fn: fn(x))
    run, _ = compiled(lambda x, k: apply(x, partial(pow, exp=k)))
    for k in (2.0, 3.0):
        same(run(leaf(4), k), X**k)


def with_closure(k: float) -> Any:
    return lambda x: x**k


def with_default(k: float) -> Any:
    return lambda x, k=k: x**k


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        with_closure,
        with_default,
        lambda k: partial(with_closure(k)),
        lambda k: aligned(backend="jax")(with_closure(k)),
    ],
    ids=["closure", "default", "partial", "aligned"],
)
def test_compile__makes_a_program_for_each_function_of_the_same_code(make: Any) -> None:
    """Functions differ by what they are made with, though a compiler compares their code alone."""
    apply = aligned(backend="jax")(lambda x, fns: fns[0](x))
    run, _ = compiled(lambda x, fn: apply(x, (fn,)))
    fns = {k: make(k) for k in (2.0, 3.0)}
    for k in (2.0, 3.0, 2.0):
        x = leaf(4)
        same(run(x, fns[k]), X**k)
        same(torch.autograd.grad(run(x, fns[k]).sum(), x)[0], k * X ** (k - 1))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: deque([x]),
        lambda x: OrderedDict(a=x),
        lambda x: {x},
        lambda x: {"a": x}.values(),
        lambda x: partial(pow, x),
        lambda x: Registered(x),  # noqa: PLW0108 -- a class is no function
    ],
    ids=["deque", "OrderedDict", "set", "values", "partial", "registered"],
)
def test_compile__refuses_containers_that_a_compiler_cannot_make(make: Any) -> None:
    """An error of ours says what to pass, and to return, instead."""
    first = aligned(backend="jax")(lambda x, c: x)
    with pytest.raises(
        Exception, match=r"arrays in .* in compiled code: .* try a tuple, a dict or a dataclass"
    ):
        compiled(lambda x: first(x, make(x)))[0](leaf(2))
    if isinstance(make(1), Registered) or make(1) in (deque([1]), {"a": 1}):
        torch._dynamo.reset()
        back = aligned(backend="jax")(make)
        with pytest.raises(
            Exception, match=r"arrays in .* in compiled code: .* try a tuple, a dict or a dataclass"
        ):
            compiled(back)[0](leaf(2))


def test_compile__takes_containers_of_constants() -> None:
    """A set, a deque and an ordered dict without arrays are constants."""
    f = aligned(backend="jax")(lambda x, a, b: x * len(a) * len(b))
    kinds = frozenset("ab")
    same(compiled(lambda x: f(x, kinds, x.shape))[0](leaf(4)), X * 2)


def test_call__refuses_a_function_of_another_process() -> None:
    """A saved program holds a name of a function, which only the process that made it has."""
    with pytest.raises(OptionError, match=r"run f in a program.*torch\.export"):
        torch.ops.xbridge.call.default([leaf(2)], [], "f#0", [])


@pytest.mark.slow
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("library", ["jax", "numpy"])
def test_export__keeps_gradient_and_function_for_any_batch(library: str, strict: bool) -> None:
    """An exported program has the gradient, takes another batch, and outlives the function."""

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined] # Any, as above
        def __init__(self) -> None:
            super().__init__()
            self.f = in_library(library)

        def forward(self, x: Any) -> Any:
            return self.f(x * 2)

    shapes = {"x": {0: torch.export.Dim("batch")}}
    program = torch.export.export(Model(), (leaf(3, 2),), dynamic_shapes=shapes, strict=strict).module()
    gc.collect()
    for n in (3, 5):
        x = leaf(n, 2)
        y = program(x)
        same(y, value(2 * x.detach().numpy()))
        same(torch.autograd.grad(y.sum(), x)[0], 2 * slope(2 * x.detach().numpy()))


@pytest.mark.parametrize("strict", [False, True])
def test_export__keeps_numbers_symbols(strict: bool) -> None:
    """A number of an exported program may be another when it runs."""
    f = aligned(backend="jax")(lambda x, n: jnp.tile(x, n) * n)

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined] # Any, as above
        def forward(self, x: Any, n: int) -> Any:
            return f(x, n)

    shapes = {"x": None, "n": torch.export.Dim.DYNAMIC}
    program = torch.export.export(Model(), (leaf(2), 3), dynamic_shapes=shapes, strict=strict).module()
    same(program(leaf(2), 5), leaf(2).detach().tile(5) * 5)


def plan(describe: Any, *hints: int) -> Any:
    """The plan for sizes that are all symbols, and a function of one array of float64."""
    symbols = tuple(f"s{i}" for i in range(len(hints)))
    return find_formula(symbols, list(hints), lambda n: ((Spec(tuple(describe(*n)), "float64"),), "*"))


def test_find_formula__finds_products_and_sums_of_sizes() -> None:
    """A plan tells the shapes for sizes that it was not made from."""
    found = plan(lambda a, b, c: (a, a * b * c, a + 2 * b - 1, 7), 3, 4, 5)
    assert found.shapes([11, 13, 17]) == ((11, 11 * 13 * 17, 36, 7),)
    assert plan(lambda a: (a // 2, a % 2), 6).step == 2
    assert plan(lambda a: (a // 4,), 6).shapes([22]) == ((5,),)


def test_find_formula__has_none_for_other_shapes() -> None:
    """Shapes that are no polynomials, and ranks or dtypes that change with a size, have no plan."""
    assert plan(lambda a: (a * a,), 5) is None
    assert plan(lambda a: (min(a, 5),), 9) is None
    assert plan(lambda a: (a,) * (1 + a % 3), 6) is None
    assert plan(lambda *n: n, *range(2, 9)) is None

    def need(a: int) -> Any:
        if a < 6:
            raise ValueError(a)
        return (a - 5,)

    assert plan(need, 8).shapes([30]) == ((25,),)
    assert plan(lambda a: need(a) if a != 9 else need(1), 8).step == 2


def test_paths__names_fields_of_dataclasses() -> None:
    """An error in compiled code names the field that it is about."""
    form = ("data", Options, ("k", "x"), "float", ARRAY)
    assert argument_paths(("tuple", ("tuple", form), ("dict", (), ()))) == ["argument 0.x"]
