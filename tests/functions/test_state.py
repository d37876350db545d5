"""A function of torch in JAX is one of its arguments: what it reads, writes and draws besides is noticed."""

# ruff: noqa: B023 -- functions are called within their loop

from __future__ import annotations

import subprocess
import sys
from functools import partial
from itertools import product
from textwrap import dedent
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from crossed import X, host, refused, same, slope, value, wide
from versions import needs_newer_jax

import xbridge
from xbridge import GradientError

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402 -- where torch is installed

if TYPE_CHECKING:
    from collections.abc import Callable

aligned: Any = xbridge.aligned
wide64 = pytest.fixture(autouse=True)(wide)
in_torch: Callable[[Callable[..., Any]], Callable[..., Any]] = aligned(backend="torch")
ONES = np.ones(64)

WAYS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "grad": lambda f: jax.grad(lambda x: f(x).sum()),
    "jit(grad)": lambda f: jax.jit(jax.grad(lambda x: f(x).sum())),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,))[1],
    "jit": jax.jit,
    "vmap": lambda f: lambda x: jax.vmap(f)(x[None]),
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
derivatives = pytest.mark.parametrize("way", [WAYS["grad"], WAYS["jit(grad)"], WAYS["jvp"]])


def array(x: Any = X) -> Any:
    return jax.numpy.asarray(x)


def double(module: Any) -> Any:
    return module.double()


def attention(x: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.0)


def first_of(fn: Any) -> Any:
    return lambda x: fn(x)[0]


CALM: dict[str, Callable[[], Any]] = {
    "attention": lambda: attention,
    "transformer": lambda: double(torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)).eval(),
    "lstm": lambda: first_of(double(torch.nn.LSTM(4, 4, 2, batch_first=True))),
    "rrelu": lambda: torch.nn.RReLU().eval(),
}


@needs_newer_jax
@pytest.mark.parametrize("make", CALM.values(), ids=list(CALM))
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_aligned__accepts_operations_that_draw_only_in_training(
    transform: Callable[[Any], Any], make: Callable[[], Any]
) -> None:
    """Attention, recurrent networks and others draw nothing without dropout, and so run once."""
    fn, runs = make(), []

    @in_torch
    def f(x: Any) -> Any:
        runs.append(1)
        return fn(x)

    x = np.stack([np.stack([X, 2 * X, -X])] * 2)
    expected = torch.func.grad(lambda x: torch.sin(fn(x)).sum())(torch.from_numpy(x))
    run = transform(jax.grad(lambda x: jax.numpy.sin(f(x)).sum()))
    same(run(array(x)), expected)
    runs.clear()
    same(run(array(x)), expected)
    assert len(runs) == 1


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
        lambda x: torch.nn.functional.rrelu(-x, training=True),
    ],
    ids=["attention", "rrelu"],
)
def test_aligned__refuses_operations_that_draw_in_training(fn: Callable[[Any], Any]) -> None:
    """The same operations are refused where they draw."""
    f, x = in_torch(fn), array(np.ones((1, 1, 8, 4)))
    for way in (WAYS["grad"], WAYS["jit(grad)"]):
        refused(GradientError, lambda: way(f)(x), "draws")


@ways
def test_aligned__refuses_random_numbers_after_a_mode_changed(way: Callable[[Any], Any]) -> None:
    """Dropout is refused in each followed call in training, and in none in evaluation."""
    drop = torch.nn.Dropout(0.5)
    f, x = in_torch(drop), array(ONES)
    refused(GradientError, lambda: way(f)(x), "random", "module.eval()")
    drop.eval()
    made = way(f)
    assert set(host(made(x)).ravel().tolist()) == {1.0}
    drop.train()
    refused(GradientError, lambda: made(x), "random", "module.eval()")


def test_aligned__refuses_random_numbers_of_a_generator_outside() -> None:
    generator = torch.Generator()
    f = in_torch(lambda x: x * torch.rand(4, generator=generator))
    refused(GradientError, lambda: jax.grad(lambda x: f(x).sum())(array()), "random")


@pytest.mark.parametrize("late", [True, False])
def test_aligned__refuses_random_numbers_of_an_operator_of_the_user(*, late: bool) -> None:
    """Torch does not tell a mode what such an operator does inside, nor has it to have a tag."""
    state = [not late]

    def draw(x: Any) -> Any:
        return x * torch.rand_like(x) if state[0] else x * 2

    noise = torch.library.custom_op(
        f"xbridge_tests::noise_{late}", draw, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    noise.register_fake(torch.empty_like)
    run = jax.jit(in_torch(lambda x: noise(x) * 1))
    for _ in range(3 * late):
        same(run(array()), 2 * X)
    state[0] = True
    for _ in range(2):
        with pytest.raises(Exception, match="random"):
            jax.block_until_ready(run(array()))


def test_aligned__accepts_random_numbers_of_a_seed() -> None:
    """A function that sets its seed draws the same numbers again: in the gradient, and for each example."""

    def by_generator(x: Any, seed: Any) -> Any:
        return x * torch.rand(64, generator=torch.Generator().manual_seed(int(seed)), dtype=x.dtype)

    def by_global_state(x: Any, seed: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(seed))
            return torch.nn.functional.dropout(x, 0.5)

    x = array(ONES)
    for fn in (by_generator, by_global_state):
        f = aligned(backend="torch", result=lambda x, seed: x)(fn)
        for way in (lambda g: g, jax.jit):
            both = way(jax.value_and_grad(lambda x, seed: f(x, seed).sum()))
            for seed in (3, 4, 3):
                total, gradient = both(x, jax.numpy.int32(seed))
                same(gradient, fn(torch.ones(64, dtype=torch.float64), seed))
                assert float(total) == pytest.approx(float(gradient.sum()))
        batch = np.stack([ONES, 2 * ONES])
        each = torch.stack([fn(torch.from_numpy(row), 3) for row in batch])
        same(jax.vmap(f, (0, None))(array(batch), 3), each)


def test_aligned__counts_a_write_to_an_argument_once() -> None:
    """A first run is repeated to compare its random numbers, and the result is that of one run."""

    def count(steps: Any, seed: Any) -> Any:
        noise = torch.rand(4, generator=torch.Generator().manual_seed(int(seed)))
        return steps.add_(1), noise

    f = aligned(backend="torch", result=lambda steps, seed: (steps, np.empty(4, "f4")))(count)
    for _ in range(2):
        assert host(jax.jit(f)(array(np.zeros(4)), jax.numpy.int32(0))[0]).tolist() == [1] * 4


def test_aligned__ignores_random_numbers_of_other_threads() -> None:
    def f(x: Any) -> Any:
        thread = Thread(target=torch.rand, args=(3,))
        thread.start()
        thread.join()
        return x * torch.sin(x)

    g = in_torch(f)
    for _ in range(2):
        same(jax.grad(lambda x: g(x).sum())(array()), slope(X))


@pytest.mark.parametrize("evaluated", [False, True])
def test_aligned__refuses_to_update_statistics(*, evaluated: bool) -> None:
    """Batch norm in training is refused, and its statistics are not updated by a trace or by two runs."""
    module = double(torch.nn.BatchNorm1d(4))
    f, x = in_torch(module), array(np.arange(12.0).reshape(3, 4) ** 2)
    if evaluated:
        module.eval()
        same(jax.grad(lambda x: f(x).sum())(x), np.full((3, 4), 1 / np.sqrt(1 + 1e-5)))
        module.train()
    else:
        refused(GradientError, lambda: jax.jit(f)(x), "writes", "functional_call")
        assert module.num_batches_tracked == 0
        assert module.running_mean.tolist() == [0] * 4
    refused(GradientError, lambda: jax.grad(lambda x: f(x).sum())(x), "writes", "module.eval()")
    assert module.num_batches_tracked == 1


def test_aligned__refuses_a_write_that_no_schema_declares() -> None:
    mean, variance = torch.zeros(4).double(), torch.ones(4).double()
    f = in_torch(lambda x: torch.nn.functional.batch_norm(x, mean, variance, training=True))
    refused(GradientError, lambda: jax.jit(f)(array(np.ones((2, 4)))), "writes")
    assert mean.tolist() == [0] * 4


@ways
@pytest.mark.parametrize("view", [lambda x: x[1:], lambda x: x.data, lambda x: x.data[0]])
def test_aligned__refuses_a_write_through_a_view(
    way: Callable[[Any], Any], view: Callable[[Any], Any]
) -> None:
    """A view that only the function has is the memory of a tensor that outlives the call."""
    total = torch.zeros(4, dtype=torch.float64)

    def f(x: Any) -> Any:
        y = x + total
        view(total).add_(1)
        return y

    refused(GradientError, lambda: way(in_torch(f))(array(np.ones(4))), "writes")


def test_aligned__refuses_a_write_to_what_it_only_read_before() -> None:
    total, learns = torch.zeros(4, dtype=torch.float64), [False]

    def f(x: Any) -> Any:
        if learns[0]:
            torch.add(total, 1, out=total)
        return x + total

    g = in_torch(f)
    same(jax.grad(lambda x: g(x).sum())(array()), np.ones(4))
    learns[0] = True
    refused(GradientError, lambda: jax.grad(lambda x: g(x).sum())(array()), "writes")
    refused(GradientError, lambda: jax.grad(lambda x: in_torch(f)(x).sum())(array()), "writes")


def test_aligned__refuses_a_write_to_a_tensor_in_the_place_of_one_of_its_own() -> None:
    """Memory of a tensor that the function made and dropped may become that of a tensor outside."""
    from torch.utils._python_dispatch import _disable_current_modes

    outside: list[Any] = []

    def f(x: Any) -> Any:
        for _ in range(100):
            dropped = x * 2
            place = dropped.untyped_storage()._cdata
            del dropped
            with _disable_current_modes():  # as another thread makes it
                outside.append(torch.zeros(4, dtype=torch.float64))
            if outside[-1].untyped_storage()._cdata == place:
                break
        outside[-1].add_(1)
        return x * 2

    refused(GradientError, lambda: jax.grad(lambda x: in_torch(f)(x).sum())(array()), "writes")


@pytest.mark.parametrize("held", [lambda m: m, lambda m: m.forward, lambda m: lambda x: m(1 * x)],
                         ids=["module", "method", "closure"])  # fmt: skip
def test_aligned__refuses_a_write_after_a_mode_changed(held: Callable[[Any], Any]) -> None:
    """A module that writes only in training is watched again, though a run without writes was seen."""

    class Counted(torch.nn.Module):  # type: ignore[misc,name-defined] # a checker knows no module that is optional
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Any) -> Any:
            if self.training:
                self.count += 1
            return x * 2

    module = Counted().eval()
    f = jax.jit(in_torch(held(module)))
    same(f(array()), 2 * X)
    module.train()
    with pytest.raises(Exception, match="writes to a tensor"):
        jax.block_until_ready(f(array()))


def test_aligned__writes_to_its_own_tensors() -> None:
    """What the function made itself is no state, nor is its copy of an argument."""

    def f(x: Any) -> Any:
        made = torch.from_numpy(np.zeros(4))
        made += 1
        return (torch.zeros(4, dtype=torch.float64).add_(made)) * x.mul_(2).sin()

    g, x = in_torch(f), array()
    total = lambda x: g(x).sum()  # noqa: E731
    same(jax.grad(total)(x), 2 * np.cos(2 * X))
    same(jax.jit(jax.grad(total))(x), 2 * np.cos(2 * X))
    same(jax.vmap(jax.grad(total))(x[None])[0], 2 * np.cos(2 * X))
    same(jax.jit(jax.hessian(total))(x).diagonal(), -4 * np.sin(2 * X))
    same(jax.jvp(g, (x,), (x,))[1], 2 * X * np.cos(2 * X))
    same(x, X)


@needs_newer_jax
@pytest.mark.parametrize("change", ["update", "replace"])
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_aligned__refuses_a_pullback_of_other_weights(transform: Callable[[Any], Any], change: str) -> None:
    """The derivative is that of the value, or an error: never one of weights that changed since."""
    layer = double(torch.nn.Linear(4, 4))
    f, x = in_torch(layer), array()
    back = jax.vjp(transform(f), x)[1]
    same(back(array(np.ones(4)))[0], layer.weight.detach().numpy().sum(0))
    if change == "update":
        with torch.no_grad():
            layer.weight.mul_(2)
    else:
        layer.weight = torch.nn.Parameter(2 * layer.weight.detach())
    if transform is not jax.jit and change == "replace":  # the graph of the value has its weights
        same(back(array(np.ones(4)))[0], layer.weight.detach().numpy().sum(0) / 2)
    else:
        refused(GradientError, lambda: back(array(np.ones(4))), "changed", "functional_call")
    same(jax.vjp(transform(f), x)[1](array(np.ones(4)))[0], layer.weight.detach().numpy().sum(0))


@pytest.mark.parametrize("run", [lambda f, x: jax.jit(f)(x), lambda f, x: jax.grad(lambda x: f(x).sum())(x)])
@pytest.mark.parametrize("transform", [jax.jit, jax.checkpoint])
def test_aligned__refuses_a_pullback_of_other_weights_that_a_run_has_read(
    transform: Callable[[Any], Any], run: Callable[[Any, Any], Any]
) -> None:
    """A value that was computed with the new weights does not make the pullback of the old ones valid."""
    weight = torch.full((4,), 3.0, dtype=torch.float64)
    f, x = in_torch(lambda x: weight * x * x), array()
    back = jax.vjp(transform(f), x)[1]
    weight.fill_(5.0)
    run(f, x)
    refused(GradientError, lambda: back(array(np.ones(4))), "changed", "functional_call")


def test_aligned__knows_what_each_branch_reads() -> None:
    """What a function reads may depend on shapes, so the first run for each is watched."""
    one, other = torch.tensor(2.0).double(), torch.tensor(3.0).double()

    @in_torch
    def f(x: Any) -> Any:
        return x * (other if x.shape[0] == 1 else one)

    jax.vjp(f, array(X[:1]))[1](array(X[:1]))
    y, pull = jax.vjp(f, array())
    same(pull(y), (4 * X,))
    one.mul_(5)
    refused(GradientError, lambda: pull(y), "changed since its value was computed")


def test_aligned__watches_subclasses_of_parameters() -> None:
    """A weight of a class that changes nothing but the name is a weight."""

    class Named(torch.nn.Parameter):  # type: ignore[misc,name-defined] # torch is Any
        pass

    weight, counts = Named(torch.ones(4).double()), [False]

    @in_torch
    def f(x: Any) -> Any:
        if counts[0]:
            weight.detach().add_(1)
        return x * weight

    for _ in range(2):
        slopes = jax.linearize(f, array())[1]
        same(slopes(array(ONES[:4])), weight.detach())
        with torch.no_grad():
            weight.mul_(2)
        refused(GradientError, lambda: slopes(array(ONES[:4])), "changed")
    counts[0] = True
    refused(GradientError, lambda: jax.vjp(f, array()), "writes")


def test_aligned__refuses_a_write_in_a_branch_that_runs_later() -> None:
    """A write is refused whichever run comes to it."""
    count = torch.zeros(())

    @in_torch
    def f(x: Any) -> Any:
        if x.shape[0] > 1:
            count.add_(1)
        return x * 2

    jax.vjp(f, array(X[:1]))
    refused(GradientError, lambda: jax.vjp(f, array()), "not its own")


@needs_newer_jax
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_aligned__has_the_pullback_of_the_value_while_weights_are_replaced(
    transform: Callable[[Any], Any],
) -> None:
    """The end of an older pullback, and of the weights that it had, does not concern the newest one."""
    layer = double(torch.nn.Linear(4, 4))
    f, x = in_torch(layer), array()
    back = None
    for _ in range(4):
        weight = np.random.default_rng(0).normal(size=(4, 4))
        layer.weight = torch.nn.Parameter(torch.from_numpy(weight))
        back = jax.vjp(transform(f), x)[1]
        same(back(array(np.ones(4)))[0], weight.sum(0))


def test_aligned__keeps_what_a_function_caches() -> None:
    """A tensor that a function made and kept is the same in the run for its derivative."""
    cache: dict[int, Any] = {}

    @in_torch
    def f(x: Any) -> Any:
        n = x.shape[0]
        if n not in cache:
            cache[n] = torch.arange(n).double() + 1
        return x * cache[n]

    for n in (3, 2):
        same(jax.grad(lambda x: f(x).sum())(array(np.ones(n))), np.arange(n) + 1.0)


def test_aligned__refuses_a_mode_without_values() -> None:
    """A repeated call in torch's fake mode says, as the first one does, that there are no values."""
    f, x = in_torch(lambda x: x * x), array()
    run = jax.grad(lambda x: f(x).sum())
    for _ in range(2):
        with FakeTensorMode():
            refused(xbridge.UnsupportedArrayError, lambda: run(x), "FakeTensor", "real tensor")
        same(run(x), 2 * X)


@pytest.mark.parametrize("moved", ["the argument", "another array"])
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_aligned__has_one_value_in_a_checkpoint_of_jax(transform: Callable[[Any], Any], moved: str) -> None:
    """The backward pass of a checkpoint does not run a call again, whose weights may have changed."""
    weight = torch.nn.Parameter(torch.full((4,), 3.0, dtype=torch.float64))
    f, x, h = in_torch(lambda x: weight * x), array(), array(np.ones(4))
    if moved == "the argument":
        back = jax.vjp(transform(jax.checkpoint(lambda x: jax.numpy.sin(f(x)))), x)[1]
    else:
        back = jax.vjp(transform(jax.checkpoint(lambda h: jax.numpy.sin(h) * f(x))), h)[1]
    with torch.no_grad():
        weight.mul_(10)
    if moved == "the argument":
        refused(GradientError, lambda: back(array(np.ones(4))), "changed")
    else:
        same(back(array(np.ones(4)))[0], np.cos(1) * 3 * X)


def total(f: Any) -> Any:
    return jax.jit(jax.value_and_grad(lambda x: f(x).sum()))


def test_aligned__watches_scripts_of_torch() -> None:
    """A script runs operations without a call that Python sees: each of its runs is watched."""
    norm = torch.jit.script(double(torch.nn.BatchNorm1d(4))).eval()
    run, x = jax.jit(in_torch(norm)), array(np.arange(12.0).reshape(3, 4))
    for _ in range(2):
        same(run(x), x / np.sqrt(1 + 1e-5))
    norm.train()
    with pytest.raises(Exception, match="writes to a tensor"):
        jax.block_until_ready(run(x))
    assert norm.running_mean.tolist() != [0] * 4  # only the first run with values writes
    norm.eval()
    statistics = norm.running_mean.clone()
    jax.block_until_ready(run(x))
    assert norm.running_mean.tolist() == statistics.tolist()


def test_aligned__follows_a_run_that_starts_to_call_a_script() -> None:
    """The result of a script is a tensor that no call of torch made, so its run is repeated and watched."""
    scripted, state = torch.jit.script(torch.nn.Dropout(0.5)), [False]
    run = jax.jit(in_torch(lambda x: scripted(x) * 2 if state[0] else x * 2))
    for _ in range(2):
        same(run(array()), 2 * X)
    state[0] = True
    with pytest.raises(Exception, match="random"):
        jax.block_until_ready(run(array()))


def test_aligned__refuses_random_numbers_of_a_script_that_a_branch_calls() -> None:
    """A script may draw into a tensor of the function, and return nothing."""
    fill = torch.jit.CompilationUnit(dedent("""
    def fill(y):
        y.bernoulli_(0.5)
    """)).fill  # fmt: skip

    def f(x: Any) -> Any:
        noise = torch.ones_like(x)
        if len(x) > 4:
            fill(noise)
        return x * noise

    run = jax.jit(aligned(backend="torch", result=lambda x: x)(f))
    for _ in range(2):
        same(run(array()), X)
    with pytest.raises(Exception, match="random"):
        jax.block_until_ready(run(array(ONES)))


@pytest.mark.parametrize("caught", [True, False])
def test_aligned__watches_what_follows_an_error(*, caught: bool) -> None:
    """An error in a call that is known to be harmless leaves nothing unseen, while it is handled or kept."""

    def noisy(x: Any, matrix: Any) -> Any:
        try:
            torch.linalg.cholesky(matrix)
        except RuntimeError:
            if not caught:
                raise
            return torch.nn.functional.dropout(x, 0.375, training=True)
        return x * 1

    f = aligned(backend="torch", result=lambda x, matrix: x)(noisy)
    x, matrix = array(ONES), array(np.eye(2))
    for _ in range(3):
        jax.vjp(f, x, matrix)
    if caught:
        for _ in range(2):
            refused(GradientError, lambda: jax.vjp(f, x, -matrix), "random")
    else:
        with pytest.raises(Exception, match="cholesky") as error:
            jax.vjp(f, x, -matrix)
        with FakeTensorMode():
            assert type(torch.ones(2) + 1) is not torch.Tensor
        assert error.tb is not None  # the error, with its frames, was still there


@pytest.mark.parametrize(("pack", "harm"), [
    (lambda x, seen: x + torch.rand_like(x), "draws"),
    (lambda x, seen: x + 0 * seen.add_(1), "writes"),
], ids=["draws", "writes"])  # fmt: skip
def test_aligned__watches_hooks_for_saved_tensors(pack: Callable[[Any, Any], Any], harm: str) -> None:
    """They run within calls that are harmless without them."""
    seen = torch.zeros(4, dtype=torch.float64)

    def f(x: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(lambda y: pack(y, seen), lambda y: y):
            return x * x

    for _ in range(2):
        jax.vjp(in_torch(lambda x: x * x), array())
    refused(GradientError, lambda: WAYS["grad"](in_torch(f))(array()), harm)


@pytest.mark.parametrize("change", ["reads", "writes"])
def test_aligned__watches_scripts_in_a_backward_pass(change: str) -> None:
    """The backward pass of an autograd function may run code whose calls Python does not see."""
    weight = torch.full((4,), 2.0, dtype=torch.float64)
    script = torch.jit.CompilationUnit(dedent("""
    def reads(g, weight):
        return g * weight

    def writes(g, weight):
        weight.mul_(2)
        return g * weight
    """))  # fmt: skip

    class Scaled(torch.autograd.Function):  # type: ignore[name-defined,misc] # torch is untyped here
        @staticmethod
        def forward(_: Any, x: Any) -> Any:
            return x * weight

        @staticmethod
        def backward(_: Any, g: Any) -> Any:
            return getattr(script, change)(g, weight)

    f = in_torch(Scaled.apply)
    for _ in range(2):
        back = jax.vjp(f, array())[1]
        if change == "reads":
            same(back(array(ONES[:4]))[0], weight)
            weight.mul_(2)
        refused(GradientError, lambda: back(array(ONES[:4])), "a tensor")


def test_aligned__learns_nothing_from_calls_on_empty_tensors() -> None:
    """Dropout draws nothing if there are no elements."""
    training = [False]
    f = in_torch(lambda x: torch.nn.functional.dropout(x, 0.5, training[0]))
    x = array(np.arange(12.0).reshape(3, 4))
    jax.vjp(f, x)
    training[0] = True
    for _ in range(3):
        assert jax.vjp(f, x[:0])[0].shape == (0, 4)
    refused(GradientError, lambda: jax.vjp(f, x), "module.eval()")


@pytest.mark.parametrize("transform", [total, lambda f: lambda x: (jax.jit(f)(x).sum(), 0)])
def test_aligned__repeats_a_run_on_the_same_arguments(transform: Callable[[Any], Any]) -> None:
    """A run that comes to write to its argument, or to read another tensor, starts again with its input."""
    other, ways = torch.full((4,), 3.0, dtype=torch.float64), ["plain"]

    @in_torch
    def f(x: Any) -> Any:
        y = x * 2
        if ways[-1] == "writes":
            y = y + y.clone().mul_(0) + x.mul_(5) * 0
            return y + x
        return y * other if ways[-1] == "reads" else y

    run = transform(f)
    for way, factor in (("plain", 2), ("plain", 2), ("reads", 6), ("reads", 6), ("writes", 7), ("writes", 7)):
        ways.append(way)
        assert float(run(array())[0]) == pytest.approx(factor * X.sum())


def test_aligned__follows_a_function_that_catches_every_error() -> None:
    """The error that ends a run, to repeat it under a watch, may not reach us."""
    ways = [False]
    noise = torch.nn.Dropout(0.5)

    @in_torch
    def f(x: Any) -> Any:
        try:
            return noise(x) * 2 if ways[-1] else x * 2
        except BaseException:  # noqa: BLE001 -- that is what is tested
            return x

    run = jax.jit(f)
    for _ in range(2):
        same(run(array()), 2 * X)
    ways.append(True)
    with pytest.raises(Exception, match="random"):
        jax.block_until_ready(run(array()))


def test_aligned__refuses_random_numbers_of_a_probability_in_a_tensor() -> None:
    """A call that drew nothing for one value of a tensor may draw for another."""
    chance = torch.tensor(0.0)
    drop = aligned(backend="torch", result=lambda x: x)(lambda x: torch.dropout(x, chance, True) * 2)
    run = jax.jit(drop)
    for _ in range(3):
        same(run(array()), 2 * X)
    chance.fill_(0.5)
    with pytest.raises(Exception, match="random"):
        jax.block_until_ready(run(array()))


def test_aligned__watches_what_a_backward_pass_calls() -> None:
    """A hook that has done nothing may draw the next time."""
    state = [False]

    def hook(g: Any) -> Any:
        return g * 2 + torch.rand(4, dtype=g.dtype) * 0 if state[0] else g * 2

    def f(x: Any) -> Any:
        y = torch.sin(x)
        if y.requires_grad:
            y.register_hook(hook)
        return y

    run = total(in_torch(f))
    for _ in range(3):
        same(run(array())[1], 2 * np.cos(X))
    state[0] = True
    for _ in range(2):
        with pytest.raises(Exception, match="random"):
            jax.block_until_ready(run(array()))


def test_aligned__calls_compiled_functions_of_torch() -> None:
    """Within a followed run, a compiled function runs as it is written, and so its calls are seen."""
    weight, drop = torch.full((4,), 3.0, dtype=torch.float64), torch.nn.Dropout(0.5).eval()
    run, x = total(in_torch(torch.compile(lambda x: drop(x * weight), backend="eager"))), array()
    for _ in range(3):
        same(run(x)[1], weight)
    drop.train()
    with pytest.raises(Exception, match="random"):
        jax.block_until_ready(run(x))


@pytest.mark.parametrize("fn", [
    lambda x: torch.cat([x[1:], x[:1]]) * torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=x.dtype),
    lambda x: torch.nn.functional.softmax(x @ x + x, dim=0) * x,
    lambda x: torch.stack(list(x.unbind())[::-1]) * np.float64(2),
    lambda x: torch.zeros_like(x).add_(x).mul_(x.max(dim=0).values),
], ids=["lists", "functions", "numbers", "own tensors"])  # fmt: skip
def test_aligned__has_the_same_values_in_every_run(fn: Callable[[Any], Any]) -> None:
    x = torch.from_numpy(X.copy()).requires_grad_()
    value, run = fn(x).sum(), total(in_torch(fn))
    (slope,) = torch.autograd.grad(value, x)
    value = value.detach()
    for _ in range(6):
        made, gradient = run(array())
        same(gradient, slope)
        assert float(made) == pytest.approx(float(value))


DERIVED: dict[str, Callable[[Any, Any], Any]] = {
    "backward": lambda y, x: torch.autograd.grad(y.sum(), x)[0],
    "batch of gradients": lambda y, x: torch.autograd.grad(
        y, x, torch.ones(1, *y.shape, dtype=y.dtype), is_grads_batched=True
    )[0][0],
    "second derivative": lambda y, x: torch.autograd.grad(
        torch.autograd.grad(y.sum(), x, create_graph=True)[0].sum(), x
    )[0],
}


@pytest.mark.parametrize("way", DERIVED)
def test_aligned__derives_the_function_of_jax_that_computed_the_value(way: str) -> None:
    """What a function of JAX reads besides its arguments is the same in a value and its derivatives."""
    factor = [1.0]
    f = aligned(backend="jax")(lambda x: factor[0] * x**2)
    x = torch.from_numpy(X.copy()).requires_grad_()
    y = f(x)
    factor[0] = 5.0
    same(DERIVED[way](y, x), np.full(4, 2.0) if way == "second derivative" else 2 * X)
    same(torch.func.jvp(f, (x.detach(),), (torch.ones_like(x),))[1], 2 * X)
    same(torch.vmap(f)(x.detach()[None])[0], X**2)


@pytest.mark.slow
def test_aligned__derives_functions_with_weights_in_every_transform() -> None:
    layer = double(torch.nn.Linear(4, 4))
    w, b = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    f, pure = in_torch(layer), lambda x: w @ x + b
    x = array()
    for way in (
        lambda g: jax.hessian(lambda x: jax.numpy.sin(g(x)).sum()),
        lambda g: jax.jit(jax.hessian(lambda x: jax.numpy.sin(g(x)).sum())),
        lambda g: jax.jit(jax.grad(lambda x: jax.lax.scan(lambda c, _: (g(c), None), x, None, 3)[0].sum())),
        lambda g: jax.grad(jax.checkpoint(lambda x: jax.numpy.sin(g(x)).sum())),
        lambda g: lambda x: jax.vmap(jax.grad(lambda x: jax.numpy.sin(g(x)).sum()))(x[None]),
        lambda g: lambda x: jax.jit(jax.vmap(lambda x: jax.jvp(g, (x,), (x,))[1]))(x[None]),
    ):
        same(way(f)(x), way(pure)(x))


LEAVING: dict[str, Callable[[Any], Any]] = {
    "detach": lambda x: 2 * x.detach(),
    "numpy": lambda x: torch.from_numpy(np.sin(x.detach().numpy())),
    "item": lambda x: torch.tensor([x.sum().item()], dtype=x.dtype),
    "no_grad": torch.no_grad()(torch.sin),
    "inference_mode": torch.inference_mode()(torch.sin),
    "a part": lambda x: torch.stack([x.detach()]),
}


@derivatives
@pytest.mark.parametrize("fn", LEAVING.values(), ids=list(LEAVING))
def test_aligned__has_no_derivative_of_what_leaves_torch(
    fn: Callable[[Any], Any], way: Callable[[Any], Any]
) -> None:
    """A result that torch does not follow has an error where JAX would see zeros."""
    f = in_torch(fn)
    with pytest.raises(Exception, match=r"detaches|data pointer|numpy\(\) is not supported|control flow"):
        jax.block_until_ready(way(f)(array()))


@pytest.mark.parametrize("derive", [WAYS["grad"], WAYS["jvp"], jax.hessian], ids=["grad", "jvp", "hessian"])
def test_aligned__has_one_derivative_of_a_part_without_gradients(derive: Callable[[Any], Any]) -> None:
    """In torch, tangents flow under `no_grad` and gradients do not, so that a hessian would mix the two."""

    @in_torch
    def scaled(x: Any) -> Any:
        with torch.no_grad():
            size = x.square().sum()
        return (x / size).sin().sum()

    def pure(x: Any) -> Any:
        return jax.numpy.sin(x / jax.lax.stop_gradient((x**2).sum())).sum()

    same(derive(scaled)(array()), derive(pure)(array()))


@pytest.mark.parametrize("derive", [WAYS["grad"], WAYS["jvp"], jax.hessian], ids=["grad", "jvp", "hessian"])
@pytest.mark.parametrize(
    "view", [lambda x: x[0], lambda x: x.unbind()[0], lambda x: x.T[0, 0]], ids=["item", "unbind", "T"]
)
def test_aligned__has_no_tangents_of_a_view_without_gradients(
    derive: Callable[[Any], Any], view: Callable[[Any], Any]
) -> None:
    """In torch, a view made under `no_grad` has the tangent of what it is a view of, and no gradient."""

    @in_torch
    def scaled(x: Any) -> Any:
        y = x.sin()
        with torch.no_grad():
            first = view(x.reshape(-1, 1))
            y.mul_(1)  # a tensor written to keeps its derivative
        return (y * first).sum()

    def pure(x: Any) -> Any:
        return (jax.numpy.sin(x) * jax.lax.stop_gradient(x[0])).sum()

    same(derive(scaled)(array()), derive(pure)(array()))


SMOOTH: dict[str, Callable[[Any], Any]] = {
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, x.shape),
    "batch_norm": lambda x: torch.nn.functional.batch_norm(
        torch.stack([x, x**2], 1), None, None, training=True
    ),
    "solve": lambda x: torch.linalg.solve(torch.outer(x, x) + torch.diag(x.exp()), x.sin()),
    "slogdet": lambda x: torch.linalg.slogdet(torch.outer(x, x) + torch.diag(x.exp()))[1],
    "cumprod": lambda x: torch.cumprod(x * (x > 1), 0),
    "eigh": lambda x: torch.linalg.eigh(torch.outer(x, x) + torch.diag(x.exp()))[1] ** 2,
    "relu": lambda x: torch.relu(x - 1),
}


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("fn", SMOOTH.values(), ids=list(SMOOTH))
def test_tangents__are_differentiated_like_gradients(
    fn: Callable[[Any], Any], transform: Callable[[Any], Any]
) -> None:
    """Torch's own derivatives of tangents are wrong for most of these."""
    f, weights = in_torch(lambda x: (fn(x) * w.reshape(-1, *[1] * (fn(x).ndim - 1))).sum()), np.cos(X)
    w = torch.from_numpy(weights)[: fn(torch.from_numpy(X.copy())).numel()]
    expected = jax.jacrev(jax.grad(f))(array())
    for outer in (jax.jacfwd, jax.jacrev):
        same(transform(outer(jax.jacfwd(f)))(array()), expected)
    same(transform(jax.hessian(f))(array()), expected)


def sample(x: Any) -> Any:
    """A function for which torch has no forward mode."""
    image = torch.arange(16, dtype=x.dtype).sin().reshape(1, 1, 4, 4)
    where = x.reshape(1, 2, 1, 2).sin() / 2
    return torch.nn.functional.grid_sample(image * x.sum(), where, mode="bicubic", align_corners=False)[
        0, 0, 0
    ]


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch runs each example by itself
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("fn", [sample, lambda x: sample(x.mul_(2))], ids=["pure", "written"])
def test_tangents__are_gradients_where_torch_has_no_forward_mode(
    fn: Callable[[Any], Any], transform: Callable[[Any], Any]
) -> None:
    f, x = in_torch(fn), array()
    with pytest.raises(NotImplementedError, match="forward AD"):
        torch.func.jvp(sample, (torch.from_numpy(X.copy()),), (torch.ones(4, dtype=torch.float64),))
    same(transform(jax.jacfwd(f))(x), jax.jacrev(f)(x))
    second = jax.jacrev(jax.jacrev(f))(x)
    for derive in (jax.hessian, lambda f: jax.jacrev(jax.jacfwd(f)), lambda f: jax.jacfwd(jax.jacfwd(f))):
        same(transform(derive(f))(x), second)


SCRIPT = """
def cut(x):
    return x.detach().sin()

def numbers(x):
    return torch.full([4], float(x[0]), dtype=x.dtype)

def lacking(x):
    return torch.special.bessel_j0(x)

def steps(x):
    return torch.ones_like(x) * (x > 1).to(x.dtype)

def part(x):
    with torch.no_grad():
        y = x.cos()
    return x.sin() * y
"""


@pytest.mark.parametrize("derive", [WAYS["grad"], WAYS["jvp"], jax.jacfwd, jax.jacrev, jax.hessian])
def test_aligned__has_no_derivative_of_what_leaves_torch_in_a_script(derive: Callable[[Any], Any]) -> None:
    """Torch calls no mode for what a script does, and such a result would have derivatives of zero."""
    scripts = torch.jit.CompilationUnit(dedent(SCRIPT))
    for name in ("cut", "numbers", "lacking"):
        refused(GradientError, lambda: derive(in_torch(getattr(scripts, name)))(array()), "detaches")
    assert not host(derive(in_torch(scripts.steps))(array())).any()
    right = derive(lambda x: jax.numpy.sin(x) * jax.lax.stop_gradient(jax.numpy.cos(x)))(array())
    same(derive(in_torch(scripts.part))(array()), right)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "derive",
    [
        jax.hessian,
        lambda f: jax.jacrev(jax.grad(f)),
        lambda f: jax.jacfwd(jax.jacfwd(f)),
        lambda f: lambda x: jax.vmap(jax.hessian(f))(x[None]),
    ],
    ids=["hessian", "reverse", "forward", "batch"],
)
def test_aligned__has_second_derivatives_of_a_script(
    derive: Callable[[Any], Any], transform: Callable[[Any], Any]
) -> None:
    """Those of nested transforms of torch are zeros for a script."""
    module = double(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)))
    scripted = torch.jit.script(module)
    made = transform(derive(in_torch(lambda x: scripted(x).sum())))(array())
    same(made, derive(in_torch(lambda x: module(x).sum()))(array()))
    assert host(made).any()


def matrix(x: Any) -> Any:
    return torch.outer(x, x.cos()) / 8 + torch.diag(x.exp())


DIFFERENT: dict[str, Callable[[Any], Any]] = {
    "cholesky": lambda x: torch.linalg.cholesky(matrix(x)),
    "eigh": lambda x: torch.linalg.eigh(matrix(x))[1] ** 2,
    "cholesky_inverse": lambda x: torch.cholesky_inverse(matrix(x).tril()),
    "triangular_solve": lambda x: torch.triangular_solve(matrix(x), matrix(x.sin()))[0],
    "scatter_reduce": lambda x: x + x.scatter_reduce(0, torch.tensor([0, 1, 0, 1]), x.sin(), "prod"),
    "index_reduce": lambda x: x + x.index_reduce(0, torch.tensor([0, 1, 0, 1]), x.sin(), "mean"),
    "huber_loss": lambda x: torch.nn.functional.huber_loss(x, torch.full_like(x, 0.3)),
}


@pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated", "ignore:index_reduce")
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch runs each example by itself
@pytest.mark.parametrize("fn", DIFFERENT.values(), ids=list(DIFFERENT))
def test_tangents__are_those_of_gradients_where_torch_has_others(fn: Callable[[Any], Any]) -> None:
    """Where forward mode of torch is wrong or cut for an operation, it is not used."""
    f, x = in_torch(lambda x: fn(x).sin().sum()), array()
    same(jax.jacfwd(f)(x), jax.grad(f)(x))
    second = jax.jacrev(jax.grad(f))(x)
    if fn not in (DIFFERENT["cholesky"], DIFFERENT["eigh"]):  # of a matrix that is not symmetric
        found = [(host(jax.grad(f)(x + e)) - host(jax.grad(f)(x - e))) / 2e-5 for e in 1e-5 * np.eye(4)]
        np.testing.assert_allclose(host(second), found, rtol=1e-4, atol=1e-6)
    for derive in (jax.hessian, lambda f: jax.jacrev(jax.jacfwd(f)), lambda f: jax.jacfwd(jax.jacfwd(f))):
        same(derive(f)(x), second)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch runs each example by itself
def test_aligned__names_a_derivative_that_torch_lacks() -> None:
    """Torch has gradients of these, but no derivative of them, and so no tangents."""
    fns: list[Callable[[Any], Any]] = [
        lambda x: torch.cdist(x[:, None], x[:, None] ** 2),
        lambda x: attention(x.reshape(1, 1, 1, 4)),
    ]
    for fn in fns:
        f = in_torch(lambda x: fn(x).sum())
        assert host(jax.grad(f)(array())).shape == (4,)
        for derive in (jax.jacfwd, jax.hessian):
            refused(GradientError, lambda: derive(f)(array()), "torch has no such derivative")


INSIDE: dict[str, Callable[[Any], Any]] = {
    "jacfwd of jacrev": torch.func.hessian(lambda x: (x.exp() * 3.0).sum()),
    "jacrev of jacfwd": torch.func.jacrev(torch.func.jacfwd(lambda x: x.exp().sum())),
    "steps": torch.func.jacfwd(lambda x: torch.where(x > 1, x, 2 * x)),
}


@pytest.mark.parametrize("name", INSIDE)
@pytest.mark.parametrize(
    "derive",
    [lambda f: jax.jit(jax.vmap(f)), lambda f: jax.jit(jax.vmap(jax.hessian(lambda x: f(x).sum())))],
    ids=["values", "hessian"],
)
def test_aligned__batches_a_function_that_differentiates_inside(
    derive: Callable[[Any], Any], name: str
) -> None:
    """The shapes of a batch follow from those of an example: torch cannot run such a batch without values."""

    def pure(x: Any) -> Any:
        if name == "steps":
            return jax.numpy.diag(jax.numpy.where(x > 1, 1.0, 2.0))
        return jax.numpy.diag(jax.numpy.exp(x) * (3 if name == "jacfwd of jacrev" else 1))

    x = array(X.reshape(2, 2))
    same(derive(in_torch(INSIDE[name]))(x), derive(pure)(x))


@pytest.mark.slow
def test_tangents__of_several_inputs_and_outputs_are_differentiated() -> None:
    """Inputs that move, inputs that do not, and integers are in their places, in each example of a batch."""

    def both(a: Any, n: Any, b: Any, lib: Any) -> Any:
        return lib.sin(a * b) * n, (a + b) ** 3, n

    def total(f: Callable[..., Any], a: Any, n: Any, b: Any) -> Any:
        y, z, _ = f(a, n, b)
        return y, z

    ours = partial(total, in_torch(partial(both, lib=torch)))
    pure = partial(total, partial(both, lib=jax.numpy))
    a, n, b = array(), jax.numpy.arange(1, 5), array(X[::-1])
    for outer, inner in product((jax.jacfwd, jax.jacrev), repeat=2):
        ways: list[Callable[[Any], Any]] = [
            lambda f: outer(inner(f, (0, 2)), (0, 2)),
            lambda f: jax.vmap(outer(inner(f, 0), 2), (0, 0, None)),
        ]
        for derive in ways:
            found, expected = (jax.tree.leaves(derive(f)(a, n, b)) for f in (ours, pure))
            for x, y in zip(found, expected, strict=True):
                same(x, y)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"result": lambda x, y: x}], ids=["traced", "declared"])
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_aligned__derives_a_function_that_writes_to_its_arguments(
    transform: Callable[[Any], Any], options: dict[str, Any]
) -> None:
    """A derivative reads its inputs again, and the function may write to one that has no tangent."""

    def fn(x: Any, y: Any) -> Any:
        x[0] = y[1]
        x *= y
        return x.sin()

    def pure(x: Any, y: Any) -> Any:
        return jax.numpy.sin(x.at[0].set(y[1]) * y)

    x, y = array(), array(X[::-1])
    ways: list[Callable[[Any], Any]] = [
        lambda f: jax.jacfwd(jax.jacfwd(f, (0, 1)), (0, 1)),
        lambda f: jax.jacfwd(jax.jacrev(f, 0), 1),
        lambda f: jax.jacrev(jax.jacfwd(f, 1), 0),
        lambda f: lambda x, y: jax.vmap(jax.jacrev(f, 1))(x[None], y[None]),
    ]
    for derive in ways:
        f = aligned(backend="torch", **options)(fn)
        expected = jax.tree.leaves(derive(pure)(x, y))
        for _ in range(2):
            for made, right in zip(jax.tree.leaves(transform(derive(f))(x, y)), expected, strict=True):
                same(made, right)


@pytest.mark.parametrize("derive", [jax.jacfwd, lambda f: jax.grad(lambda x, y: f(x, y).sum())])
@pytest.mark.parametrize("fn", [lambda x: x.sin(), sample], ids=["sin", "sample"])
def test_aligned__derives_a_function_that_starts_to_write_to_an_argument(
    fn: Callable[[Any], Any], derive: Callable[[Any], Any]
) -> None:
    """The first run that writes may be that of a derivative, because compiled code drops a value."""

    def written(x: Any, y: Any) -> Any:
        if y.sum() > 0:
            x.mul_(2)
        return fn(x)

    def declared(x: Any, y: Any) -> Any:
        return fn(torch.from_numpy(x.copy())).numpy()

    early, late = (aligned(backend="torch", result=declared)(written) for _ in range(2))
    x, calm, harsh = array(), array(-X), array(X)
    jax.block_until_ready(jax.jit(late)(x, calm))
    same(jax.jit(derive(late))(x, harsh), derive(early)(x, harsh))


def test_aligned__does_not_run_again_on_what_a_recorded_run_has_written_to() -> None:
    """Torch lets a function write to what it differentiates where gradients are off."""

    def scaled(x: Any) -> Any:
        if x.requires_grad:
            with torch.no_grad():
                x.mul_(2)
        return x.sin()

    x = array()
    run = jax.jit(jax.grad(lambda x: in_torch(scaled)(x).sum()))
    try:
        same(run(x), np.cos(2 * X))
    except RuntimeError as error:  # not if the backward pass of the recorded run is already known
        assert "writes to its arguments" in str(error)  # noqa: PT017 -- it may also be right
    same(run(x), np.cos(2 * X))


@pytest.mark.parametrize("inner", [jax.jacfwd, jax.jacrev])
@pytest.mark.parametrize("outer", [jax.jacfwd, jax.jacrev])
def test_tangents__are_zero_for_a_result_of_other_inputs(
    outer: Callable[[Any], Any], inner: Callable[[Any], Any]
) -> None:
    """A result that only the outer derivative moves has left torch for none of them."""
    f = in_torch(lambda x, y: (x.sin() * y, y**2))
    mixed = outer(lambda y: jax.jvp(lambda x: inner(lambda x: f(x, y))(x)[1], (array(),), (array(),))[1])
    assert not host(mixed(array())).any()
    ours = jax.jacrev(lambda y: jax.jvp(lambda x: f(x, y), (array(),), (array(),))[1])(array())
    same(ours[0], np.diag(np.cos(X) * X))
    assert not host(ours[1]).any()


def third(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The third derivatives along a direction, in a fraction of the time of all."""
    along = np.array([1.0, -2.0, 0.5, 3.0])
    return jax.grad(lambda x: jax.grad(lambda x: jax.grad(f)(x) @ along)(x) @ along)  # type: ignore[no-any-return] # jax is untyped here


def test_aligned__has_no_third_derivatives_of_norms() -> None:
    """Those of torch are wrong."""
    instance_norm = lambda x: torch.nn.functional.instance_norm(x[None])  # noqa: E731 -- a norm of three axes
    modules = [double(torch.nn.LayerNorm(4)), double(torch.nn.BatchNorm1d(4, track_running_stats=False))]
    for norm in [*modules, *map(torch.jit.script, modules), instance_norm]:
        f = in_torch(lambda x, norm=norm: (norm(torch.outer(x.cos(), x)) ** 3).sum())
        assert host(jax.grad(lambda x, f=f: jax.grad(f)(x)[0])(array())).any()
        refused(GradientError, partial(third(f), array()), "third derivatives")
    evaluated = torch.jit.script(double(torch.nn.BatchNorm1d(4)).eval())
    f = in_torch(lambda x: (evaluated(x[None]) ** 3).sum())
    straight = jax.grad(lambda x: jax.grad(lambda x: jax.grad(f)(x)[0])(x)[0])
    same(straight(array()), np.eye(4)[0] * 6 * (1 + 1e-5) ** -1.5, 1e-7)


@derivatives
def test_aligned__has_no_derivative_of_a_function_without_one(way: Callable[[Any], Any]) -> None:
    """Torch treats the results of some functions as constants, and does not raise."""
    without = in_torch(torch.special.bessel_j0)
    with pytest.raises(Exception, match="torch has no derivative of special_bessel_j0"):
        jax.block_until_ready(way(without)(array()))
    for constant in (torch.zeros_like, torch.sign, lambda x: x.new_ones(4), lambda x: (x > 1).double()):
        assert not host(way(in_torch(constant))(array())).any()


def test_aligned__has_no_second_derivative_of_a_backward_pass_without_one() -> None:
    """An autograd function whose gradient torch does not follow has none, where torch itself raises."""

    class Cube(torch.autograd.Function):  # type: ignore[misc, name-defined] # torch is optional
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator] # torch leaves it untyped
        def backward(ctx: Any, g: Any) -> Any:
            return g * 3 * ctx.saved_tensors[0] ** 2

    first = WAYS["grad"](in_torch(lambda x: Cube.apply(x)))  # noqa: PLW0108 -- as users write it
    same(first(array()), 3 * X**2)
    refused(GradientError, lambda: WAYS["grad"](first)(array()), "detaches")


@pytest.mark.parametrize("keeps", [True, False])
def test_aligned__has_second_derivatives_of_a_backward_pass_that_torch_follows(*, keeps: bool) -> None:
    """The same holds for an autograd function with a rule for batches, within every transform."""

    class Cube(torch.autograd.Function):  # type: ignore[misc, name-defined] # torch is optional
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Any) -> Any:
            return x**3

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * 3 * (x if keeps else x.detach()) ** 2

        @staticmethod
        def jvp(ctx: Any, t: Any) -> Any:
            return t * 3 * ctx.saved_tensors[0] ** 2

    f, x = in_torch(lambda x: Cube.apply(x).sum()), array()
    same(jax.jacfwd(f)(x), 3 * X**2)
    ways: list[Callable[[Any], Any]] = [
        jax.hessian,
        lambda f: jax.jacrev(jax.jacrev(f)),
        lambda f: jax.jacrev(jax.jacfwd(f)),
        lambda f: lambda x: jax.vmap(jax.hessian(f))(x[None])[0],
    ]
    for way in ways:
        if keeps:
            same(way(f)(x), np.diag(6 * X))
        else:
            refused(GradientError, lambda: way(f)(x), "detaches")


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_aligned__has_dense_gradients_of_sparse_embeddings(transform: Callable[[Any], Any]) -> None:
    @in_torch
    def rows(weights: Any, at: Any) -> Any:
        return torch.nn.functional.embedding(at, weights, sparse=True).square().sum()

    at = jax.numpy.array([1, 0, 1])
    slopes = jax.grad(lambda w: transform(jax.grad(rows))(w, at).sum())
    same(transform(jax.grad(rows))(array(np.ones((3, 2))), at), np.array([[2.0, 2], [4, 4], [0, 0]]))
    same(slopes(array(np.ones((3, 2)))), np.array([[2.0, 2], [4, 4], [0, 0]]))


@pytest.mark.slow
@pytest.mark.parametrize("derive", [
    lambda f: lambda x: jax.jvp(f, (x,), (x,)),
    lambda f: lambda x: jax.vmap(jax.grad(f))(x[None]),
    jax.hessian,
    lambda f: lambda x: jax.jvp(jax.vmap(f), (x[None],), (x[None],)),
], ids=["jvp", "vmap(grad)", "hessian", "jvp(vmap)"])  # fmt: skip
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_aligned__has_no_derivative_of_one_of_two_results_that_leaves_torch(
    transform: Callable[[Any], Any], derive: Callable[[Any], Any]
) -> None:
    both = in_torch(lambda x: (x.sum(), x.detach().sum()))
    constant = in_torch(lambda x: (x.square().sum(), torch.zeros_like(x).sum()))
    with pytest.raises(Exception, match="detaches"):
        jax.block_until_ready(transform(derive(lambda x: sum(both(x))))(array()))
    pure = derive(lambda x: (x**2).sum())(array())
    for a, b in zip(
        *map(jax.tree.leaves, (transform(derive(lambda x: sum(constant(x))))(array()), pure)), strict=True
    ):
        same(a, b)


def test_aligned__has_zeros_for_what_is_not_asked_and_for_constants() -> None:
    both = in_torch(lambda x: (x * torch.sin(x), x.detach()))
    x = array()
    for transform in (lambda f: f, jax.jit):
        same(transform(jax.grad(lambda x: both(x)[0].sum()))(x), slope(X))
    same(jax.vmap(jax.grad(lambda x: both(x)[0].sum()))(x[None])[0], slope(X))
    assert not host(jax.grad(lambda x: both(x)[1].sum())(x)).any()
    detached = in_torch(lambda x: x.detach())
    refused(GradientError, lambda: jax.grad(lambda x: detached(x).sum())(x), "detaches", "stop_gradient")
    refused(
        GradientError, lambda: jax.vmap(jax.grad(lambda x: in_torch(LEAVING["detach"])(x).sum()))(x[None])
    )
    one = in_torch(lambda x: torch.ones(3, dtype=x.dtype))
    for way in (WAYS["grad"], WAYS["jvp"], lambda f: jax.vmap(WAYS["grad"](f))):
        assert not host(way(one)(x[None])).any()
    same(jax.hessian(lambda x: in_torch(lambda x: 2 * x)(x).sum())(x), np.zeros((4, 4)))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_aligned__is_differentiated_in_every_mode_of_torch(mode: Callable[[], Any]) -> None:
    f, x = in_torch(lambda x: x * torch.sin(x)), array()
    expected = [host(way(f)(x)) for way in WAYS.values()]
    curve = host(jax.hessian(lambda x: f(x).sum())(x))
    with mode():
        f = in_torch(lambda x: x * torch.sin(x))
        for way, y in zip(WAYS.values(), expected, strict=True):
            same(way(f)(x), y)
        same(jax.hessian(lambda x: f(x).sum())(x), curve)


def test_aligned__is_derived_within_a_function_of_torch() -> None:
    """A first run, which is watched, runs a function of NumPy on values as any other run does."""
    inner = aligned(backend="numpy", vjp=lambda g, y, x: g * slope(x))(value)
    same(jax.grad(lambda x: in_torch(lambda x: 2 * inner(x))(x).sum())(array()), 2 * slope(X))


@pytest.mark.parametrize("way", [*WAYS.values(), lambda f: f], ids=[*WAYS, "value"])
def test_aligned__computes_beside_the_default_device_of_torch(way: Callable[[Any], Any]) -> None:
    """A function computes where its arguments are, and its results stay there."""
    f, x = in_torch(lambda x: x * torch.sin(x)), array()
    expected = way(f)(x)
    with torch.device("meta"):
        same(way(in_torch(lambda x: x * torch.sin(x)))(x), expected)


def test_aligned__is_traced_on_the_device_where_it_computes() -> None:
    seen = []

    def f(x: Any) -> Any:
        seen.append(x.device.type)
        return 2 * x

    there = aligned(backend="torch", device="meta")(f)
    assert jax.eval_shape(there, array()).shape == X.shape
    assert seen == ["meta"]


def test_aligned__runs_in_the_autocast_of_the_call() -> None:
    """A value and its derivatives have the autocast of the call; compiled code has that of its trace."""
    weight = torch.nn.Parameter(torch.arange(6.0).reshape(3, 2))

    def f(x: Any) -> Any:
        y = x @ weight
        return y.float() * (2 if y.dtype == torch.bfloat16 else 1)

    aligned_f, x = in_torch(f), array(np.arange(3, dtype="float32"))
    compiled = [jax.jit(aligned_f), jax.jit(jax.grad(lambda x: aligned_f(x).sum()))]
    value, slope = [10, 13], [1, 5, 9]

    def eager() -> Any:
        gradient = jax.grad(lambda x: aligned_f(x).sum())(x)
        return np.concatenate([*jax.jvp(aligned_f, (x,), (x,)), gradient])

    def in_jit() -> Any:
        return np.concatenate([run(x) for run in compiled])

    with torch.autocast("cpu", torch.bfloat16):
        same(eager(), 2 * np.concatenate([value, value, slope]))
        same(in_jit(), 2 * np.concatenate([value, slope]))
        pull = jax.vjp(aligned_f, x)[1]
    same(pull(jax.numpy.ones(2, "float32"))[0], 2 * np.array(slope))
    same(in_jit(), 2 * np.concatenate([value, slope]))
    same(eager(), np.concatenate([value, value, slope]))
    with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
        same(eager(), np.concatenate([value, value, slope]))


def test_aligned__leaves_no_cast_in_the_cache_of_autocast() -> None:
    """Torch caches casts of weights. Those of a trace have no values, and those of a batch belong to it."""
    linear, x = torch.nn.Linear(4, 4), array(np.ones(4, "float32"))
    with torch.autocast("cpu", torch.bfloat16):
        f = in_torch(lambda x: linear(x).float())
        found = [jax.jit(f)(x), jax.jvp(f, (x,), (x,))[0], f(x)]
        same(jax.vmap(f)(x[None]), torch.vmap(lambda x: linear(x).float())(torch.ones(1, 4)))
        expected = linear(torch.ones(4)).float()
    for y in found:
        same(y, expected)


def test_aligned__describes_results_in_the_default_dtype_of_the_call() -> None:
    f, x = in_torch(lambda x: x.sum() * torch.ones(2)), array(np.ones(3, "float32"))
    for name in ("float32", "float64", "float32"):
        before = torch.get_default_dtype()
        torch.set_default_dtype(getattr(torch, name))
        try:
            assert {jax.jit(lambda x: -f(x))(x).dtype.name, jax.jvp(f, (x,), (x,))[0].dtype.name} == {name}
        finally:
            torch.set_default_dtype(before)


def test_aligned__names_the_default_dtype_that_a_program_was_compiled_with() -> None:
    """The error of a program that runs with another default dtype says so, and how to go on."""
    run, x = jax.jit(in_torch(lambda x: (x, torch.zeros(2)))), array()
    before = torch.get_default_dtype()
    try:
        with jax.enable_x64(True):
            assert run(x)[1].dtype == "float32"
            torch.set_default_dtype(torch.float64)
            with pytest.raises(
                Exception, match=r"dtype torch.float32.*float64.*; try torch.set_default_dtype"
            ):
                run(x)
            torch.set_default_dtype(torch.float32)  # as the hint says, or as its other half does
            assert run(x)[1].dtype == "float32"
            torch.set_default_dtype(torch.float64)
            jax.clear_caches()
            assert run(x)[1].dtype == "float64"
    finally:
        torch.set_default_dtype(before)


def test_aligned__has_tangents_in_several_threads() -> None:
    f, x, wrong = in_torch(lambda x: x * torch.sin(x)), array(), []

    def work() -> None:
        for _ in range(20):
            try:
                with jax.enable_x64(True):
                    same(jax.jvp(f, (x,), (x,))[1], X * slope(X))
            except Exception as error:  # noqa: BLE001 -- an error of a thread is one of the test
                wrong.append(error)

    threads = [Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


@needs_newer_jax
@pytest.mark.parametrize("weighted", [False, True])
def test_aligned__varies_over_the_axes_of_a_mesh(*, weighted: bool) -> None:
    """A result varies over the axes that any argument varies over, and so does its derivative."""
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    along, whole = jax.sharding.PartitionSpec("i"), jax.sharding.PartitionSpec()
    weight = torch.nn.Parameter(torch.tensor(1.0).double()) if weighted else 1
    f = in_torch(lambda w, x: w * x * torch.sin(x) * weight)

    def loss(w: Any, x: Any) -> Any:
        y = f(w, x)
        assert jax.typeof(y).str_short() == jax.typeof(x).str_short()
        return jax.lax.psum(y.sum(), "i")

    rows = jax.shard_map(jax.grad(loss, argnums=1), mesh=mesh, in_specs=(whole, along), out_specs=along)
    same(rows(array(2.0), array()), 2 * slope(X))
    one = jax.shard_map(jax.grad(loss), mesh=mesh, in_specs=(whole, along), out_specs=whole)
    assert float(jax.jit(one)(array(2.0), array())) == pytest.approx(value(X).sum())


@needs_newer_jax
@pytest.mark.slow
def test_aligned__has_the_gradients_of_a_mesh() -> None:
    """On four devices, what shard_map and pmap sum over devices is what the pure program of JAX sums.

    Results and gradients stay on the devices of their arguments.
    """
    program = """
        import os
        from itertools import pairwise

        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
        import jax, numpy as np, torch
        from jax import lax, numpy as jnp
        from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
        from xbridge import aligned

        mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))
        x, w = jnp.linspace(0.5, 2, 8), jnp.float32(2)
        weight = torch.nn.Parameter(torch.tensor(3.0))

        def vjp(g, y, x):
            return 3 * g * (np.sin(x) + x * np.cos(x))

        jvp = lambda t, y, x: vjp(t[0], y, x)
        functions = [
            aligned(backend="torch")(lambda t: torch.sin(t) * t * weight),
            aligned(backend="numpy", signature="()->()", vjp=vjp, jvp=jvp)(lambda x: 3 * np.sin(x) * x),
        ]
        pure = lambda t: 3 * jnp.sin(t) * t

        def ways(f):
            def outside(w, x):
                both = jax.value_and_grad(lambda w, x: jnp.sum(f(w * x)))(w, x)
                return jax.tree.map(lambda y: lax.psum(y, "i"), both)

            def inside(w, x):
                return jax.value_and_grad(lambda w, x: lax.psum(jnp.sum(f(w * x)), "i"))(w, x)

            def two(w, x):
                return jax.grad(lambda w: lax.psum(jnp.sum(f(w) * x), "i"))(w)

            for check in (True, False):
                for each in (outside, inside):
                    mapped = jax.shard_map(
                        each, mesh=mesh, in_specs=(P(), P("i")), out_specs=P(), check_vma=check
                    )
                    yield mapped(w, x)
                    yield jax.jit(mapped)(w, x)
            rows = {"mesh": mesh, "in_specs": P("i"), "out_specs": P("i")}
            yield jax.shard_map(two, mesh=mesh, in_specs=(P(), P("i")), out_specs=P())(w, x)
            yield jax.jit(jax.shard_map(lambda x: jax.jvp(f, (x,), (x,))[1], **rows))(x)
            yield jax.jit(jax.shard_map(jax.vmap(jax.grad(f)), **rows))(x)
            yield jax.grad(lambda x: jax.shard_map(f, **rows)(x).sum())(x)
            yield jax.pmap(lambda x: lax.psum(jax.grad(lambda x: f(x).sum())(x), "i"), axis_name="i")(
                x.reshape(4, 2)
            )
            yield jax.pmap(lambda x: jax.jvp(f, (x,), (x,))[1])(x.reshape(4, 2))
            yield jax.jit(jax.grad(lambda x: f(x).sum()))(jax.device_put(x, NamedSharding(mesh, P("i"))))

        # The threads of the devices have the autocast of the caller.
        linear = torch.nn.Linear(2, 2)
        with torch.autocast("cpu", torch.bfloat16):
            cast = linear(torch.ones(4, 2)).float().detach().numpy()
            mapped = aligned(backend="torch")(lambda x: linear(x).float())
            np.testing.assert_array_equal(jax.pmap(mapped)(jnp.ones((4, 2))), cast)

        there = jax.device_put(x, jax.devices()[2])
        host = aligned(backend="torch", device="cpu")(torch.sin)
        for f in (functions[1], host):
            both = jax.value_and_grad(lambda x: f(x).sum())(there)
            for found in (*both, *jax.jvp(f, (there,), (there,)), jax.vmap(f)(there)):
                assert found.devices() == there.devices()

        places = [there, jax.device_put(x, jax.devices()[1]), jax.device_put(x, NamedSharding(mesh, P("i")))]
        product = aligned(backend="torch", device="cpu")(lambda a, b: (torch.sin(a) * b).sum())
        for a, b in pairwise([x, *places, x]):
            made = jax.grad(product, (0, 1))(a, b)
            second = jax.grad(lambda a: jax.grad(product, 1)(a, b).sum())(a)
            assert [y.devices() for y in (*made, second)] == [y.devices() for y in (a, b, a)]
            np.testing.assert_allclose(made, (np.cos(a) * b, np.sin(a)), rtol=1e-5)
            np.testing.assert_allclose(second, np.cos(a), rtol=1e-5)
            curve = jax.hessian(lambda a: product(a, b))(a)
            np.testing.assert_allclose(curve, np.diag(-np.sin(a) * b), rtol=1e-5)

        expected = [*ways(pure)]
        for f in functions:
            for ours, theirs in zip(ways(f), expected, strict=True):
                jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), ours, theirs)
            rows = jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
            total = lambda x: rows(x).sum()
            for way in (rows, jax.jit(rows), jax.grad(total), jax.jit(jax.grad(total))):
                assert way(jax.device_put(x, NamedSharding(mesh, P("i")))).sharding.spec == P("i")
            try:
                jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P())(x)
            except ValueError:
                continue
            raise AssertionError("a result that varies was taken for one that is the same on all devices")
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", dedent(program)], check=True)


@needs_newer_jax
@pytest.mark.slow
def test_aligned__refuses_explicit_sharding_outside_of_auto_axes() -> None:
    """On four devices, arrays of explicit sharding are an error that names the call that works."""
    program = """
        import os

        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
        import jax, numpy as np, pytest, torch, xbridge
        from jax import numpy as jnp
        from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

        mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
        x = jnp.linspace(0.5, 2, 16).reshape(4, 4)
        f = xbridge.aligned(backend="torch")(torch.sin)
        ways = [
            lambda f: f,
            lambda f: jax.vmap(lambda x: f(x) * x),
            lambda f: jax.grad(lambda x: (f(x) * x).sum()),
        ]
        with jax.set_mesh(mesh):
            y = jax.device_put(x, NamedSharding(mesh, P("a", "b")))
            for way in ways:
                with pytest.raises(xbridge.DeviceError, match="auto_axes"):
                    jax.jit(way(f))(y)
                found = jax.jit(jax.sharding.auto_axes(way(f), out_sharding=P()))(y)
                np.testing.assert_allclose(found, way(jnp.sin)(x), rtol=1e-5)
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", dedent(program)], check=True)
