"""Calls within what torch and JAX build around a function: checkpoints, hooks, loops, rules of the user."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from crossed import X, by_hand, curve, in_library, same, slope, value, wide

import xbridge
from xbridge import OptionError

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
jnp = jax.numpy

if TYPE_CHECKING:
    from collections.abc import Callable

aligned: Any = xbridge.aligned

wide64 = pytest.fixture(autouse=True)(wide)

OF_JAX = aligned(backend="jax")(lambda x: x * jnp.sin(x))
OF_TORCH = aligned(backend="torch")(lambda x: x * torch.sin(x))
IN_TORCH = pytest.mark.parametrize("f", [by_hand(), OF_JAX], ids=["numpy", "jax"])
IN_JAX = pytest.mark.parametrize("f", [by_hand(), OF_TORCH], ids=["numpy", "torch"])


def leaf(x: Any = X) -> Any:
    return torch.from_numpy(x.copy()).requires_grad_()


def gradient(f: Callable[[Any], Any], x: Any) -> Any:
    return torch.autograd.grad(f(x).sum(), x)[0]


def test_aligned__function_calls_functions_of_other_libraries_three_deep() -> None:
    """A function calls functions of other libraries three deep."""
    inner = aligned(backend="torch")(lambda x: by_hand()(x) * 2)
    outer = aligned(backend="jax")(lambda x: inner(x) * 3)
    same(gradient(outer, leaf()), 6 * slope(X))
    same(torch.func.grad(lambda x: outer(x).sum())(torch.from_numpy(X)), 6 * slope(X))
    x = leaf()
    (first,) = torch.autograd.grad(outer(x).sum(), x, create_graph=True)
    same(torch.autograd.grad(first.sum(), x)[0], 6 * curve(X))
    same(jax.jit(jax.grad(lambda x: inner(x).sum()))(jnp.asarray(X)), 2 * slope(X))


def test_aligned__jax_in_torch_in_jax_has_derivatives_and_is_refused_in_compiled_code() -> None:
    """JAX in torch in JAX has derivatives and is refused in compiled code."""
    f = aligned(backend="torch")(lambda x: OF_JAX(x) * 2)
    same(jax.grad(lambda x: f(x).sum())(jnp.asarray(X)), 2 * slope(X))
    same(jax.vmap(f)(jnp.stack([jnp.asarray(X)] * 2)), 2 * value(np.stack([X, X])))
    with pytest.raises(Exception, match="jax_cpu_enable_async_dispatch"):  # as JAX wraps it
        jax.block_until_ready(jax.jit(f)(jnp.asarray(X)))


def test_aligned__function_of_torch_that_cannot_be_traced_has_a_gradient_outside_of_compiled_code() -> None:
    """A function of torch that cannot be traced has a gradient outside of compiled code."""
    with_numpy = aligned(backend="torch")(lambda x: {"y": x * 2, "n": x.detach().numpy() * 3})
    by_value = aligned(backend="torch")(lambda x: {"y": x * 2 if x.sum() > 0 else -x})
    x = jnp.asarray(X)
    for f in (with_numpy, by_value):
        same(jax.grad(lambda x: f(x)["y"].sum())(x), np.full(X.shape, 2.0))  # noqa: B023 -- called at once
    same(jax.linearize(lambda x: by_value(x)["y"], x)[1](x), 2 * X)
    with pytest.raises(RuntimeError) as caught:
        jax.jit(with_numpy)(x)
    assert any("result=f" in note for note in caught.value.__notes__)
    with pytest.raises(OptionError, match="depends on the values"):
        jax.jit(by_value)(x)


@IN_TORCH
def test_aligned__torch_keeps_what_a_call_needs_wherever_it_is_asked_to(f: Any, tmp_path: Any) -> None:
    """torch keeps what a call needs wherever it is asked to."""
    from torch.utils.checkpoint import checkpoint

    same(gradient(lambda x: checkpoint(f, x, use_reentrant=False), leaf()), slope(X))
    x = leaf()
    checkpoint(f, x, use_reentrant=True).sum().backward()
    same(x.grad, slope(X))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().numpy().copy(), torch.from_numpy):
        y = f(x)
    same(torch.autograd.grad(y.sum(), x)[0], slope(X))
    with torch.autograd.set_detect_anomaly(True):
        same(gradient(f, leaf()), slope(X))


@IN_TORCH
def test_aligned__hooks_see_the_gradient_and_a_graph_is_used_twice(f: Any) -> None:
    """Hooks see the gradient and a graph is used twice."""
    x = leaf()
    y = f(x)
    y.retain_grad()
    y.register_hook(lambda g: g * 2)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    same(x.grad, 4 * slope(X))
    same(y.grad, np.full(X.shape, 4.0))


@IN_TORCH
def test_aligned__torch_differentiates_a_call_in_each_of_its_ways(f: Any) -> None:
    """torch differentiates a call in each of its ways."""
    x = torch.from_numpy(X)
    right = np.diag(slope(X))
    same(torch.autograd.functional.jacobian(f, x), right)
    same(torch.autograd.functional.jacobian(f, x, vectorize=True), right)
    eye = torch.eye(X.size, dtype=torch.float64)
    x = leaf()
    same(torch.autograd.grad(f(x), x, eye, is_grads_batched=True)[0], right)
    wide = torch.stack([x.detach(), x.detach() + 1])
    jvp = torch.vmap(torch.func.jvp, in_dims=(None, (0,), (0,)))(f, (wide,), (wide,))[1]
    same(jvp, wide.numpy() * slope(wide.numpy()))


def test_aligned__samples_of_a_module_have_gradients_of_their_own() -> None:
    """Samples of a module have gradients of their own."""

    class Scaled(torch.nn.Module):  # type: ignore[misc,name-defined] # torch is Any
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.from_numpy(X.copy()))

        def forward(self, x: Any) -> Any:
            return OF_JAX(self.w * x)

    module = Scaled()
    xs = torch.stack([torch.from_numpy(X), torch.from_numpy(X + 1)])

    def loss(w: Any, x: Any) -> Any:
        return torch.func.functional_call(module, w, (x,)).sum()

    each = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))({"w": module.w.detach()}, xs)["w"]
    same(each, xs.numpy() * slope(X * xs.numpy()))
    same(torch.export.export(module, (xs[0],)).module()(xs[1]), value(X * (X + 1)))


@IN_JAX
def test_aligned__call_is_part_of_rules_that_the_user_gives_to_jax(f: Any) -> None:
    """A call is part of rules that the user gives to JAX."""

    @jax.custom_vjp  # type: ignore[untyped-decorator] # theirs
    def twice(x: Any) -> Any:
        return f(x) * 2

    twice.defvjp(lambda x: (f(x) * 2, x), lambda x, g: (g * 2 * jax.grad(lambda v: f(v).sum())(x),))

    @jax.custom_jvp  # type: ignore[untyped-decorator] # theirs
    def once(x: Any) -> Any:
        return f(x)

    once.defjvp(lambda xs, ts: (f(*xs), jax.jvp(f, xs, ts)[1]))
    x = jnp.asarray(X)
    same(jax.jit(jax.grad(lambda x: twice(x).sum()))(x), 2 * slope(X))
    same(jax.grad(lambda x: once(x).sum())(x), slope(X))
    same(jax.jvp(once, (x,), (x,))[1], X * slope(X))


@IN_JAX
@pytest.mark.parametrize("policy", [None, "dots_saveable", "everything_saveable"])
def test_aligned__checkpoint_of_jax_runs_a_call_again(f: Any, policy: str | None) -> None:
    """A checkpoint of JAX runs a call again."""
    chosen = None if policy is None else getattr(jax.checkpoint_policies, policy)
    again = jax.grad(lambda x: jax.checkpoint(lambda v: f(v) * f(v), policy=chosen)(x).sum())
    for run in (again, jax.jit(again)):
        same(run(jnp.asarray(X)), 2 * value(X) * slope(X))


@pytest.mark.slow
@IN_JAX
def test_aligned__call_is_part_of_the_control_flow_of_jax(f: Any) -> None:
    """A call is part of the control flow of JAX."""
    x = jnp.asarray(X)
    right = value(value(X))

    def scan(x: Any) -> Any:
        return jax.lax.scan(lambda a, _: (f(a), None), x, None, length=2)[0]

    def loop(x: Any) -> Any:
        return jax.lax.fori_loop(0, 2, lambda _, a: f(a), x)

    def choose(x: Any) -> Any:
        return jax.lax.cond(x.sum() > 0, lambda a: f(f(a)), lambda a: a, x)

    for run in (scan, loop, choose):
        same(jax.jit(run)(x), right)
        same(jax.jit(jax.grad(lambda x: run(x).sum()))(x), slope(value(X)) * slope(X))  # noqa: B023 -- at once
        same(jax.vmap(run)(x[None]), right[None])
    same(jax.lax.map(f, jnp.stack([x] * 4), batch_size=2), value(np.stack([X] * 4)))


@IN_JAX
def test_aligned__jax_transposes_and_compiles_a_call_ahead_of_time(f: Any) -> None:
    """JAX transposes and compiles a call ahead of time."""
    x = jnp.asarray(X)
    same(jax.linear_transpose(lambda t: jax.jvp(f, (x,), (t,))[1], x)(x)[0], X * slope(X))
    same(jax.jit(f).lower(x).compile()(x), value(X))
    same(jax.jit(f, donate_argnums=0)(x + 0), value(X))
    with jax.disable_jit():
        same(jax.jit(jax.grad(lambda x: f(x).sum()))(x), slope(X))
    with jax.checking_leaks():
        same(jax.jit(jax.grad(lambda x: f(x).sum()))(x), slope(X))


def test_aligned__threads_differentiate_calls_of_several_forms_at_once() -> None:
    """Threads differentiate calls of several forms at once."""
    double = aligned(backend="jax")(lambda tree: {key: 2 * x for key, x in tree.items()})

    def work(i: int) -> bool:
        with jax.enable_x64(True):  # of this thread
            return differentiate(i)

    def differentiate(i: int) -> bool:
        tree = {f"k{j}": leaf(X + j) for j in range(i % 4 + 1)}
        made = double(tree)
        sum(y.sum() for y in made.values()).backward()
        same(gradient(by_hand(), leaf(X + i)), slope(X + i))
        same(jax.grad(lambda x: OF_TORCH(x).sum())(jnp.asarray(X + i)), slope(X + i))
        return list(made) == list(tree) and all((x.grad == 2).all() for x in tree.values())

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(24)))


def test_aligned__derivatives_of_the_users_own_are_used() -> None:
    """Derivatives that the user gives are used."""

    class Cube(torch.autograd.Function):  # type: ignore[misc,name-defined] # torch is Any
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:  # not the derivative, so that it shows
            return 5 * ctx.saved_tensors[0] * g

    cube = aligned(backend="torch")(Cube.apply)
    same(jax.jit(jax.grad(lambda x: cube(x).sum()))(jnp.asarray(X)), 5 * X)
    custom = jax.custom_vjp(lambda x: x**3)
    custom.defvjp(lambda x: (x**3, x), lambda x, g: (5 * x * g,))
    same(gradient(aligned(backend="jax")(custom), leaf()), 5 * X)
    inside = aligned(backend="torch")(torch.func.grad(lambda v: (v**4).sum()))
    same(jax.jit(jax.grad(lambda x: inside(x).sum()))(jnp.asarray(X)), 12 * X**2)


@pytest.mark.parametrize("function", ["numpy", "torch", "jax"])
def test_aligned__error_of_a_function_is_the_callers_and_the_next_call_works(function: str) -> None:
    """An error of a function reaches the caller, and the next call works."""
    fail = [True]

    def f(x: Any) -> Any:
        if fail:
            raise KeyError("mine")
        return in_library(function)(x)

    call = aligned(backend=function, vjp=lambda g, y, x: g * slope(x))(f) if function == "numpy" else None
    call = call or aligned(backend=function)(f)
    x = leaf() if function != "torch" else jnp.asarray(X)

    def run() -> Any:
        return gradient(call, x) if function != "torch" else jax.grad(lambda x: call(x).sum())(x)

    with pytest.raises(KeyError, match="mine"):
        run()
    fail.clear()
    same(run(), slope(X))
