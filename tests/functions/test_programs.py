"""Programs of torch's compiler and exporter: sizes and numbers that are symbols, constants, and lifetimes."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from crossed import X, curve, in_library, same, slope, value, wide

import xbridge
from xbridge import GradientError, OptionError
from xbridge._derive.functions import Spec
from xbridge._derive.programs import find_plan
from xbridge._derive.treedef import ARRAY, argument_paths

torch = pytest.importorskip("torch")
jnp = pytest.importorskip("jax.numpy")

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


@dataclass(frozen=True)
class Hidden:
    """A class whose instances are not made from their fields."""

    k: float = field(default=2.0, init=False)


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


def test_compile__makes_dataclasses_as_their_class_does() -> None:
    """What a class adds to its fields is there; one that is not made from them is left to the compiler."""
    f = aligned(backend="jax")(lambda x, o: x * o.twice)
    given, hidden, x = Checked(), Hidden(), leaf(4)
    same(compiled(lambda x: f(x, given))[0](x), 4 * X)
    torch._dynamo.reset()
    g = aligned(backend="jax")(lambda x, o: x * o.k)
    same(g(x, hidden), 2 * X)
    with pytest.raises(torch._dynamo.exc.InternalTorchDynamoError):
        compiled(lambda x: g(x, hidden))[0](x)


def test_call__refuses_a_function_of_another_process() -> None:
    """A saved program holds a name of a function, which only the process that made it has."""
    with pytest.raises(OptionError, match=r"run f in a program.*torch\.export"):
        torch.ops.xbridge.call.default([leaf(2)], [], "f#0", [])


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
    return find_plan(symbols, list(hints), lambda n: ((Spec(tuple(describe(*n)), "float64"),), "*"))


def test_find_plan__finds_products_and_sums_of_sizes() -> None:
    """A plan tells the shapes for sizes that it was not made from."""
    found = plan(lambda a, b, c: (a, a * b * c, a + 2 * b - 1, 7), 3, 4, 5)
    assert found.shapes([11, 13, 17]) == ((11, 11 * 13 * 17, 36, 7),)
    assert plan(lambda a: (a // 2, a % 2), 6).step == 2
    assert plan(lambda a: (a // 4,), 6).shapes([22]) == ((5,),)


def test_find_plan__has_none_for_other_shapes() -> None:
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
