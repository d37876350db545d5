"""A function of torch in JAX is one of its arguments: what it reads, writes and draws besides is noticed."""

# ruff: noqa: B023 -- functions are called within their loop

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier, Event, Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from crossed import IN_JAX, X, aligned, array, double, host, in_torch, refused, same, slope, transforms
from torch_modes import default_dtype
from versions import needs_newer_jax

from xbridge import GradientError, OptionError

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

from xbridge.functions.torch.private import dispatch_modes as modes  # noqa: E402 -- only where the library is
from xbridge.functions.torch.private import shared_flags  # noqa: E402 -- likewise
from xbridge.functions.torch.purity import Watch  # noqa: E402 -- likewise

if TYPE_CHECKING:
    from collections.abc import Callable

ONES = np.ones(64)
EVAL = "module.eval() of the torch module itself"
ROWS = np.arange(12.0).reshape(3, 4)

WAYS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    **IN_JAX,
    "jit": jax.jit,
    "vmap": lambda f: lambda x: jax.vmap(f)(x[None]),
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))


def first_of(fn: Any) -> Any:
    return lambda x: fn(x)[0]


def attention(p: float) -> Any:
    return lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=p)


CALM: dict[str, Callable[[], Any]] = {
    "attention": lambda: attention(0.0),
    "transformer": lambda: double(torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)).eval(),
    "lstm": lambda: first_of(double(torch.nn.LSTM(4, 4, 2, batch_first=True))),
    "rrelu": lambda: torch.nn.RReLU().eval(),
}


@needs_newer_jax
@pytest.mark.parametrize("make", CALM.values(), ids=list(CALM))
@transforms
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


def drawing_hook(x: Any) -> Any:
    y = torch.sin(x)
    if y.requires_grad:
        y.register_hook(lambda g: g * torch.rand_like(g))
    return y


def drawing_pack(x: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda y: y + torch.rand_like(y), lambda y: y):
        return x * x


GENERATOR = torch.Generator()
DRAWS: dict[str, Callable[[Any], Any]] = {
    "dropout": torch.nn.Dropout(0.5),
    "attention": attention(0.5),
    "rrelu": lambda x: torch.nn.functional.rrelu(-x, training=True),
    "generator": lambda x: x * torch.rand(4, generator=GENERATOR),
    "hook": drawing_hook,
    "saved tensors": drawing_pack,
}


@pytest.mark.parametrize("fn", DRAWS.values(), ids=list(DRAWS))
def test_aligned__refuses_random_numbers(fn: Callable[[Any], Any]) -> None:
    """A value and a gradient that would differ in the next run are refused in the first one."""
    x = array(np.ones((1, 1, 8, 4)))
    for way in (WAYS["grad"], WAYS["jit(grad)"]):
        refused(GradientError, lambda: way(in_torch(fn))(x), "draws")


@ways
def test_aligned__refuses_random_numbers_after_a_mode_changed(way: Callable[[Any], Any]) -> None:
    """Dropout is refused in each followed call in training, and in none in evaluation."""
    drop = torch.nn.Dropout(0.5)
    f, x = in_torch(drop), array(ONES)
    refused(GradientError, lambda: way(f)(x), "random", EVAL)
    drop.eval()
    made = way(f)
    assert set(host(made(x)).ravel().tolist()) == {1.0}
    drop.train()
    refused(GradientError, lambda: made(x), "random", EVAL)


def noise_operator(state: list[bool]) -> Any:
    noise = torch.library.custom_op(
        "xbridge_tests::noise",
        lambda x: x * torch.rand_like(x) if state else x * 2,
        mutates_args=(),
        schema="(Tensor x) -> Tensor",
    )
    noise.register_fake(torch.empty_like)
    return lambda x: noise(x) * 1


def chance_in_a_tensor(state: list[bool]) -> Any:
    return lambda x: torch.dropout(x, torch.tensor(0.5 if state else 0.0), True) * 2


def script(state: list[bool]) -> Any:
    drop = torch.jit.script(torch.nn.Dropout(0.5))
    return lambda x: drop(x) * 2 if state else x * 2


@pytest.mark.parametrize("make", [noise_operator, chance_in_a_tensor, script])
def test_aligned__refuses_random_numbers_that_begin_in_a_later_run(make: Callable[[Any], Any]) -> None:
    """Later calls compare the states of torch's generators, whatever draws."""
    state: list[bool] = []
    run = jax.jit(aligned(backend="torch", result=lambda x: x)(make(state)))
    for _ in range(2):
        same(run(array()), 2 * X)
    state.append(True)
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


def accumulate(total: Any, view: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        y = x + total
        view(total).add_(1)
        return y

    return f


WRITES: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "whole": lambda total: accumulate(total, lambda y: y),
    "view": lambda total: accumulate(total, lambda y: y[1:]),
    "data": lambda total: accumulate(total, lambda y: y.data),
    "view of data": lambda total: accumulate(total, lambda y: y.data[0]),
    "out": lambda total: lambda x: x + torch.add(total, 1, out=total),
    "not in a schema": lambda total: (
        lambda x: torch.nn.functional.batch_norm(x[None].expand(2, -1), total, total + 1, training=True)[0]
    ),
}


@ways
@pytest.mark.parametrize("make", WRITES.values(), ids=list(WRITES))
def test_aligned__refuses_a_write_to_a_tensor_of_others(
    way: Callable[[Any], Any], make: Callable[[Any], Any]
) -> None:
    """A write is refused however it reaches the memory of a tensor that outlives the call."""
    fn = make(torch.zeros(4, dtype=torch.float64))
    refused(GradientError, lambda: way(in_torch(fn))(array(np.ones(4))), "writes")


@pytest.mark.parametrize("later", ["as before", "other shape"])
def test_aligned__refuses_a_write_that_begins_in_a_later_run(later: str) -> None:
    """Later calls compare the versions of the tensors that were read; other shapes are watched anew."""
    total, learns = torch.zeros(4, dtype=torch.float64), [False]

    @in_torch
    def f(x: Any) -> Any:
        y = x + total[: len(x)]
        if learns[0] or len(x) == 1:
            total.add_(1)
        return y

    same(jax.grad(lambda x: f(x).sum())(array()), np.ones(4))
    learns[0] = True
    x = array() if later == "as before" else array(X[:1])
    refused(GradientError, lambda: jax.grad(lambda x: f(x).sum())(x), "writes")


def test_aligned__writes_to_its_own_tensors() -> None:
    """What the function made itself is no state, nor is its copy of an argument."""

    def f(x: Any) -> Any:
        made = torch.from_numpy(np.zeros(4))
        made += 1
        return (torch.zeros(4, dtype=torch.float64).add_(made)) * x.mul_(2).sin()

    g, x = in_torch(f), array()
    for way in (WAYS["grad"], WAYS["jit(grad)"], lambda f: lambda x: jax.vmap(WAYS["grad"](f))(x[None])[0]):
        same(way(g)(x), 2 * np.cos(2 * X))
    same(jax.jit(jax.hessian(lambda x: g(x).sum()))(x).diagonal(), -4 * np.sin(2 * X))
    same(jax.jvp(g, (x,), (x,))[1], 2 * X * np.cos(2 * X))
    same(x, X)


@needs_newer_jax
@pytest.mark.parametrize("change", ["update", "update and run", "replace"])
@transforms
def test_aligned__refuses_a_pullback_of_other_weights(transform: Callable[[Any], Any], change: str) -> None:
    """The derivative is that of the value, or an error: never one of weights that changed since."""
    layer = double(torch.nn.Linear(4, 4))
    f, x = in_torch(layer), array()
    back = jax.vjp(transform(f), x)[1]
    same(back(array(np.ones(4)))[0], layer.weight.detach().numpy().sum(0))
    if change == "replace":
        layer.weight = torch.nn.Parameter(2 * layer.weight.detach())
    else:
        with torch.no_grad():
            layer.weight.mul_(2)
    if change == "update and run":  # a value of the new weights does not make the old pullback valid
        jax.grad(lambda x: transform(f)(x).sum())(x)
    refused(GradientError, lambda: back(array(np.ones(4))), "changed", "functional_call")
    same(jax.vjp(transform(f), x)[1](array(np.ones(4)))[0], layer.weight.detach().numpy().sum(0))


@needs_newer_jax
@pytest.mark.parametrize("replaced", ["the layer", "its weight"])
@transforms
def test_aligned__follows_what_replaced_a_weight(transform: Callable[[Any], Any], replaced: str) -> None:
    """A weight that came in place of another is compared too, even if the user keeps the other."""
    net = double(torch.nn.Sequential(torch.nn.Linear(4, 4)))
    f, x = transform(in_torch(lambda x: net(x) ** 2)), array()
    jax.vjp(f, x)[1](f(x))
    old, layer = net[0], double(torch.nn.Linear(4, 4))
    if replaced == "the layer":
        net[0] = layer
    else:
        net[0].weight, old = layer.weight, net[0].weight
    y, back = jax.vjp(f, x)
    with torch.no_grad():
        layer.weight.mul_(10)
    refused(GradientError, lambda: back(y), "changed")
    assert old is not None


def test_aligned__layer_that_was_replaced_has_its_own_shape() -> None:
    """A new trace has the shape of the new layer, although the old one lives on; an old trace is refused."""
    model = double(torch.nn.Sequential(torch.nn.Linear(4, 2)))
    f, x, old = in_torch(model), array(ROWS), model[0]
    before = jax.jit(f)
    assert before(x).shape == (3, old.out_features)
    model[0] = double(torch.nn.Linear(4, 5))
    expected = model(torch.from_numpy(ROWS))
    for run in (f, jax.jit(lambda x: f(x)), lambda x: jax.jit(jax.vmap(f))(x)):  # noqa: PLW0108 -- a new trace
        same(run(x), expected)
    refused(OptionError, lambda: before(x), "declared as float64 (3, 2)")
    before.clear_cache()
    same(before(x), expected)


def test_aligned__module_may_override_how_its_parameters_are_listed() -> None:
    """The shapes of a module's own tensors are read, whatever its methods take and return."""

    class Listed(torch.nn.Linear):  # type: ignore[name-defined, misc] # torch is Any here
        def parameters(self) -> Any:
            return iter([self.weight])

        def buffers(self) -> Any:
            return iter(())

    layer = Listed(2, 1)
    x = np.ones(2, "float32")
    f = jax.jit(aligned(backend="torch")(layer))
    same(f(jax.numpy.asarray(x)), layer(torch.from_numpy(x)).detach())


def test_aligned__compares_weights_of_a_part_that_torch_computes_again() -> None:
    """A part under `torch.utils.checkpoint` runs again in the backward pass, with the weights of then."""
    from torch.utils.checkpoint import checkpoint

    weight = torch.full((4,), 3.0, dtype=torch.float64)
    f = in_torch(lambda x: checkpoint(lambda x: (weight * x) ** 2, x, use_reentrant=False))
    y, back = jax.vjp(f, array())
    same(back(y)[0], 18 * X * np.asarray(y))
    y, back = jax.vjp(f, array())
    weight.mul_(10)
    refused(GradientError, lambda: back(y), "changed")


class _Trainer:
    def __init__(self, net: Any) -> None:
        self.nets = [net]

    def run(self, x: Any) -> Any:
        return self.nets[0](x) ** 2


@pytest.mark.parametrize("where", ["module", "method", "attribute", "closure", "list"])
@transforms
def test_aligned__sees_the_mode_of_modules(transform: Callable[[Any], Any], where: str) -> None:
    """A batch norm in training is refused before it counts, or when it is set to it, wherever it is."""
    norm = double(torch.nn.BatchNorm1d(2))
    owner, nets = _Trainer(norm), [norm]
    fns = {
        "module": norm,
        "method": norm.forward,
        "attribute": owner.run,
        "closure": lambda x: owner.run(x) + 1,
        "list": lambda x: sum(n(x) for n in nets),
    }
    f = in_torch(fns[where])
    g, x = transform(jax.grad(lambda x: f(x).sum())), array(np.ones((3, 2)))
    hints = (EVAL, "functional_call") if where == "module" else ()
    refused(GradientError, lambda: g(x), "writes", *hints)
    assert (norm.num_batches_tracked, norm.running_mean.tolist()) == (0, [0, 0])
    norm.eval()
    g(x)
    norm.train()
    refused(GradientError, lambda: jax.block_until_ready(g(x)), "writes to a tensor that is not its own")


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


@pytest.mark.parametrize(
    "wrap", [torch.from_dlpack, lambda x: torch.frombuffer(x, dtype=torch.float64)], ids=["dlpack", "buffer"]
)
def test_aligned__memory_of_others_is_no_weight_that_changed(wrap: Callable[[Any], Any]) -> None:
    """A tensor that a run makes of other memory ends with the graph, and the next derivative has another."""
    back = jax.vjp(jax.jit(in_torch(lambda x: x * wrap(X))), array())[1]
    for _ in range(2):
        same(back(array(np.ones(4)))[0], X)


MOVED: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "the argument": lambda f: lambda x: jax.numpy.sin(f(x)),
    "another array": lambda f: lambda h: jax.numpy.sin(h) * f(array()),
}


@pytest.mark.parametrize("moved", MOVED)
@transforms
def test_aligned__has_one_value_in_a_checkpoint_of_jax(transform: Callable[[Any], Any], moved: str) -> None:
    """The backward pass of a checkpoint does not run a call again, whose weights may have changed."""
    weight = torch.nn.Parameter(torch.full((4,), 3.0, dtype=torch.float64))
    f, ones = in_torch(lambda x: weight * x), array(np.ones(4))
    back = jax.vjp(transform(jax.checkpoint(MOVED[moved](f))), ones)[1]
    with torch.no_grad():
        weight.mul_(10)
    if moved == "the argument":
        refused(GradientError, lambda: back(ones), "changed")
    else:
        same(back(ones)[0], np.cos(1) * 3 * X)


DERIVED: dict[str, Callable[[Any, Any], Any]] = {
    "backward": lambda y, x: torch.autograd.grad(y.sum(), x)[0],
    "second derivative": lambda y, x: torch.autograd.grad(
        torch.autograd.grad(y.sum(), x, create_graph=True)[0].sum(), x
    )[0],
}


@pytest.mark.parametrize("way", DERIVED)
def test_aligned__function_of_jax_reads_constants_where_it_is_tracked(way: str) -> None:
    """What it reads besides its arguments is the same in a value and its derivatives, and read anew else."""
    factor = [1.0]
    f = aligned(backend="jax")(lambda x: factor[0] * x**2)
    x = torch.from_numpy(X.copy()).requires_grad_()
    y = f(x)
    factor[0] = 5.0
    same(DERIVED[way](y, x), np.full(4, 2.0) if way == "second derivative" else 2 * X)
    same(torch.func.jvp(f, (x.detach(),), (torch.ones_like(x),))[1], 2 * X)
    same(torch.vmap(f)(x.detach()[None])[0], X**2)
    same(f(x.detach()), 5 * X**2)


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
    """A compiled program refuses another one than that of its trace, unless it is traced again."""
    f, x = in_torch(lambda x: x.sum() * torch.ones(2)), array(np.ones(3, "float32"))
    for name in ("float32", "float64", "float32"):
        with default_dtype(name):
            run = jax.jit(lambda x: -f(x))
            assert {run(x).dtype.name, jax.jvp(f, (x,), (x,))[0].dtype.name} == {name}
    with default_dtype("float64"):
        refused(OptionError, lambda: run(x), "declared")
        run.clear_cache()
        assert run(x).dtype == "float64"


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, partial(torch.device, "meta")],
                         ids=["inference_mode", "no_grad", "device"])  # fmt: skip
@ways
def test_aligned__is_the_same_in_every_mode_of_torch(
    way: Callable[[Any], Any], mode: Callable[[], Any]
) -> None:
    """A mode around a call of JAX is not one within the function, which computes where its arguments are."""
    expected = way(lambda x: x * jax.numpy.sin(x))(array())
    with mode():
        same(way(in_torch(lambda x: x * torch.sin(x)))(array()), expected)


def test_aligned__module_of_a_network_computes_in_its_own_library() -> None:
    """Without a library, a module of torch and its methods run in torch, whatever the arguments are."""
    layer = torch.nn.Linear(4, 2)
    x = ROWS.astype("float32")
    wanted = layer(torch.from_numpy(x)).detach().numpy()
    for fn in (layer, layer.forward):
        made = aligned(fn)(x)
        assert isinstance(made, np.ndarray)
        np.testing.assert_array_equal(made, wanted)
        assert isinstance(aligned(fn)(array(x)), jax.Array)
    assert aligned(torch.nn.ReLU())(-ROWS).max() == 0


def test_shared_flags__overlapping_threads_leave_no_mode() -> None:
    """Torch's flags for modes are one for all threads, and are off after calls that overlap."""
    count = 2
    inside, done = Barrier(count), Event()

    def overlap(first: bool) -> None:
        with Watch("f", []):
            inside.wait()
            if not first:
                assert done.wait(30.0)
        done.set()

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(overlap, (True, False)))
    assert not modes._is_in_torch_dispatch_mode


def test_shared_flags__mode_of_the_caller_stays() -> None:
    """A mode that the caller is in is still known after a call within it."""
    with modes.TorchDispatchMode():  # type: ignore[no-untyped-call] # theirs
        with shared_flags:
            pass
        assert modes._is_in_torch_dispatch_mode
    assert not modes._is_in_torch_dispatch_mode
