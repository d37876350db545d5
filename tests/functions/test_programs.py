"""Programs of torch's compiler and exporter: sizes and numbers that are symbols, constants, and lifetimes."""

from __future__ import annotations

import gc
from collections import OrderedDict, deque
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from crossed import X, aligned, curve, in_library, same, slope, value

from xbridge import OptionError
from xbridge.functions import programs
from xbridge.functions.inputs import PLAIN
from xbridge.functions.rules import Definition
from xbridge.functions.run import Function
from xbridge.functions.treedef import flatten

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
jnp = jax.numpy


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


@pytest.mark.slow  # it compiles several programs
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


def test_compile__runs_a_function_that_does_not_take_the_assumed_size() -> None:
    """A size that only a run tells is assumed; a function that refuses it runs outside of the graph."""
    f = aligned(backend="jax")(lambda x: x.reshape(3, -1).sum(0))
    run = torch.compile(lambda x: f(x[x > 0]) + 1, backend="eager")
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        same(run(torch.tensor([1.0, 2, -1, 3, 4, 5, 6])), [10, 13])


@pytest.mark.parametrize("library", ["jax", "numpy"])
def test_compile__has_second_derivative_if_its_backend_leaves_autograd_alone(library: str) -> None:
    """A gradient that is computed outside of the compiled program has a derivative of its own."""
    run, x = torch.compile(in_library(library), fullgraph=True, backend="eager"), leaf(4)
    y = run(x)
    same(y, value(X))
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    same(first, slope(X))
    same(torch.autograd.grad(first.sum(), x)[0], curve(X))


def test_call__refuses_a_function_of_another_process() -> None:
    """A saved program holds a name of a function, which only the process that made it has."""
    with pytest.raises(OptionError, match=r"run f in a program.*torch\.export"):
        torch.ops.xbridge.call.default([leaf(2)], [], "f#0", [])


@pytest.mark.slow
def test_compile__dynamic_has_one_program_for_all_numbers() -> None:
    """Integers and floats are symbols, and keep their exact values."""
    f = aligned(backend="jax")(lambda x, n, k: {"y": x * n * k, "tag": "text"})
    run, counter = compiled(lambda x, n, k: f(x, n, k)["y"].sum(), dynamic=True)
    for n in range(2, 13):
        x, k = leaf(3), n + 1 / 3
        y = run(x, n, k)
        same(y, x.detach().sum() * n * k, 1e-15)
        same(torch.autograd.grad(y, x)[0], np.full(3, n * k), 1e-15)
    assert counter.frame_count == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fn", "sizes", "programs"),
    [
        (lambda x: jnp.outer(x, x) * 2, range(4, 9), 1),
        (lambda x: x[:5] * 2, (8, 7, 3), 3),
        (lambda x: jnp.concatenate([x, x[1:]]) * 2, range(4, 7), 3),
    ],
    ids=["the same", "no rule", "sum"],
)
def test_compile__has_one_program_for_axes_of_the_arguments(fn: Any, sizes: Any, programs: int) -> None:
    """Axes as long as one of the arguments are symbols, and others are constants."""
    run, counter = compiled(aligned(backend="jax")(fn), dynamic=True)
    for n in sizes:
        same(run(leaf(n)), fn(leaf(n).detach().numpy()))
    assert counter.frame_count == programs


@dataclass(frozen=True)
class Scaled:
    """A number with a factor."""

    x: Any
    k: float = 2.0  # which a compiler shows in place of the value that an object was made with

    def __call__(self, x: Any) -> Any:
        return x**self.k


class Slotted:
    """An object without a dict."""

    __slots__ = ("k",)

    def __init__(self, k: float) -> None:
        self.k = k


class Plain:
    """An object with a default in its class."""

    k = 1.0

    def __init__(self, k: float) -> None:
        self.k = k


def test_key_of__is_one_key_if_two_threads_ask_for_the_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program of the thread that comes second is dropped, and its key with it."""
    function = Function(np.sin, "sin", "numpy", PLAIN, Definition())
    rule = function.rule("numpy", "torch", flatten(((np.ones(2),), {}), [], []))
    make, others = programs.Program, []

    def make_later(*args: Any) -> Any:
        monkeypatch.setattr(programs, "Program", make)
        others.append(programs.key_of(rule))
        return make(*args)

    monkeypatch.setattr(programs, "Program", make_later)
    assert [programs.key_of(rule)] == others
    assert others[0] in programs.programs


@pytest.mark.slow  # it compiles several programs
@pytest.mark.parametrize("make", [partial(Scaled, None), Slotted, Plain], ids=["frozen", "slots", "dict"])
def test_compile__refuses_an_object_that_the_program_makes_or_changes(make: Any) -> None:
    """A compiler makes and changes objects after the program, so a function would see other attributes."""
    f = aligned(backend="jax")(lambda x, o: x * o.k)
    outside = make(5.0)

    def change(x: Any, o: Any) -> Any:
        o.k = 3.0
        return f(x, o)

    for program in [lambda x, _: f(x, make(3.0))] + [change] * (make in (Slotted, Plain)):
        torch._dynamo.reset()
        with pytest.raises(Exception, match="the same program makes or changes it"):
            compiled(program)[0](leaf(4), outside)
    torch._dynamo.reset()
    for run in (compiled(f)[0], compiled(lambda x, _: f(x, outside))[0]):
        same(run(leaf(4), outside), X * 5)


@pytest.mark.slow  # it compiles several programs
def test_compile__refuses_a_partial_with_an_array_where_a_program_may_be_interrupted() -> None:
    """The function would get an array of its caller's library."""
    f = aligned(backend="jax")(lambda x, fn: fn(x))
    for make in (lambda x: partial(pow, x), lambda x: partial(lambda y, k: y, k={"x": [x]})):
        torch._dynamo.reset()
        with pytest.raises(Exception, match="cannot convert the arrays in a partial"):
            torch.compile(lambda x, make=make: f(x, make(x)), backend="eager")(leaf(2))


def closure(k: float) -> Any:
    return lambda x: x**k


MAKERS: dict[str, Any] = {
    "closure": closure,
    "default": lambda k: lambda x, k=k: x**k,
    "aligned": lambda k: aligned(backend="jax")(closure(k)),
    "dataclass": partial(Scaled, None),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
def test_compile__makes_a_program_for_each_function_of_the_same_code(make: Any) -> None:
    """Functions differ by what they are made with, though a compiler compares their code alone."""
    apply = aligned(backend="jax")(lambda x, fns: fns[0](x))
    run, _ = compiled(lambda x, fn: apply(x, (fn,)))
    fns = {k: make(k) for k in (2.0, 3.0)}
    for k in (2.0, 3.0, 2.0):
        x = leaf(4)
        same(run(x, fns[k]), X**k)
        same(torch.autograd.grad(run(x, fns[k]).sum(), x)[0], k * X ** (k - 1))


@pytest.mark.slow  # it compiles several programs
@pytest.mark.parametrize(
    "make",
    [
        lambda x: deque([x]),
        lambda x: OrderedDict(a=x),
        lambda x: {x},
        lambda x: partial(pow, x),
        lambda x: Scaled(x, 3.0),
    ],
    ids=["deque", "OrderedDict", "set", "partial", "dataclass"],
)
def test_compile__refuses_containers_that_a_compiler_cannot_make(make: Any) -> None:
    """An error says what to pass, and to return, instead; or torch says that it cannot follow it."""
    reason = r"arrays in .* in compiled code: .* try a tuple or a dict|assume_constant_result"
    first = aligned(backend="jax")(lambda x, c: x)
    with pytest.raises(Exception, match=reason):
        compiled(lambda x: first(x, make(x)))[0](leaf(2))
    if type(make(1)) in (deque, OrderedDict, Scaled):
        torch._dynamo.reset()
        with pytest.raises(Exception, match=reason):
            compiled(aligned(backend="jax")(lambda x: [make(x)]))[0](leaf(2))


@pytest.mark.slow
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("library", ["jax", "numpy"])
def test_export__keeps_gradient_and_function_for_any_batch(library: str, strict: bool) -> None:
    """An exported program has the gradient, takes another batch and number, and outlives the function."""

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined] # Any, as above
        def __init__(self) -> None:
            super().__init__()
            self.f = in_library(library)

        def forward(self, x: Any, n: int) -> Any:
            return self.f(x * n)

    shapes = {"x": {0: torch.export.Dim("batch")}, "n": torch.export.Dim.DYNAMIC}
    program = torch.export.export(Model(), (leaf(3, 2), 3), dynamic_shapes=shapes, strict=strict).module()
    gc.collect()
    for n in (3, 5):
        x = leaf(n, 2)
        y = program(x, n)
        same(y, value(n * x.detach().numpy()))
        same(torch.autograd.grad(y.sum(), x)[0], n * slope(n * x.detach().numpy()))


def test_compile__keeps_tangents_of_forward_mode() -> None:
    """Forward mode interrupts a compiled program, which would drop the tangent: pytorch#192985."""
    forward_ad: Any = torch.autograd.forward_ad
    run, x = torch.compile(in_library("jax"), backend="eager"), torch.from_numpy(X)
    same(run(x), value(X))
    with forward_ad.dual_level():
        made = forward_ad.unpack_dual(run(forward_ad.make_dual(x, x.clone())))
    same(made.primal, value(X))
    same(made.tangent, X * slope(X))
