"""Programs as users write them, with torch functions in JAX, against torch itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from crossed import refused, same

import xbridge
from xbridge import GradientError, OptionError

jax: Any = pytest.importorskip("jax")
torch: Any = pytest.importorskip("torch")

X = np.random.default_rng(0).normal(size=(5, 3)).astype("f4")
in_torch: Any = xbridge.aligned(backend="torch")


def test_aligned__target_beside_a_loss_is_a_constant() -> None:
    """The detached prediction of a target network, returned beside the other one, has no gradient."""
    network, target = (torch.nn.Linear(3, 2).requires_grad_(requires_grad=False) for _ in range(2))

    def predict(s: Any) -> Any:
        return network(s).sum(-1), target(s).amax(-1).detach()

    def loss(predict: Any) -> Any:
        def run(s: Any) -> Any:
            now, later = predict(s)
            return ((now - later) ** 2).sum()

        return run

    s = torch.from_numpy(X).requires_grad_()
    expected = torch.autograd.grad(loss(predict)(s), s)[0]
    same(jax.jit(jax.grad(loss(in_torch(predict))))(jax.numpy.asarray(X)), expected, 1e-5)


def test_aligned__function_that_sets_its_seed_is_differentiated() -> None:
    """It draws the same numbers in each run, whatever was drawn between them."""

    def noisy(x: Any) -> Any:
        torch.manual_seed(3)
        return (torch.rand(3) * x**2).sum()

    torch.manual_seed(3)
    expected = 2 * torch.rand(3) * torch.from_numpy(X)
    slope = jax.jit(jax.grad(in_torch(noisy)))
    for _ in range(3):
        torch.rand(2)
        same(slope(jax.numpy.asarray(X)), expected, 1e-6)


def test_aligned__layer_that_was_replaced_has_its_own_shape() -> None:
    """A new trace has the shape of the new layer, although the old one lives on; an old trace is refused."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2)).requires_grad_(requires_grad=False)
    f, x, old = in_torch(model), jax.numpy.asarray(X), model[0]
    assert jax.jit(f)(x).shape == (5, old.out_features)
    before = jax.jit(f)
    model[0] = torch.nn.Linear(3, 4).requires_grad_(requires_grad=False)
    expected = model(torch.from_numpy(X))
    for run in (f, jax.jit(lambda x: f(x)), lambda x: jax.jit(jax.vmap(f))(x)):  # noqa: PLW0108 -- a new trace
        same(run(x), expected, 1e-5)
    refused(OptionError, lambda: before(x), "declared as float32 (5, 2)")
    jax.clear_caches()
    same(before(x), expected, 1e-5)


def test_aligned__jvp_runs_the_function_twice() -> None:
    """Once for the value, and once for the tangent, which is the gradient of a gradient."""
    runs: list[int] = []

    def f(x: Any) -> Any:
        runs.append(1)
        return x.sin()

    push = jax.jit(lambda x: jax.jvp(in_torch(f), (x,), (x,)))
    jax.block_until_ready(push(X))
    runs.clear()
    same(push(X)[1], X * np.cos(X), 1e-5)
    assert len(runs) == 2


def test_aligned__numbers_that_left_torch_have_no_derivative_in_compiled_code() -> None:
    """The value is computed, and the gradient is refused."""
    f = in_torch(lambda x: torch.from_numpy(np.sin(x.detach().numpy())))
    x = jax.numpy.asarray(X)
    same(jax.jit(f)(x), np.sin(X), 1e-6)
    slope = jax.jit(jax.grad(lambda x: f(x).sum()))
    refused(GradientError, lambda: jax.block_until_ready(slope(x)), "numbers out of torch")
