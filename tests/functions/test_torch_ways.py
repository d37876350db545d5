"""Each way in which torch runs a call: batches of any axes, several gradients at once, compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from crossed import same, wide

import xbridge

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

aligned: Any = xbridge.aligned

wide64 = pytest.fixture(autouse=True)(wide)


def matvec() -> Any:
    """A product of matrices and vectors of NumPy, over any axes before theirs."""

    def vjp(g: Any, _: Any, a: Any, b: Any) -> Any:
        return g[..., :, None] * b[..., None, :], (a * g[..., :, None]).sum(-2)

    return aligned(backend="numpy", signature="(m,n),(n)->(m)", vjp=vjp)(
        lambda a, b: np.einsum("...mn,...n->...m", a, b)
    )


def by_torch(a: Any, b: Any) -> Any:
    return torch.einsum("...mn,...n->...m", a, b)


def rand(*shape: int) -> Any:
    rng = np.random.default_rng(len(shape))
    return torch.from_numpy(rng.normal(size=shape)).requires_grad_()


@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0), (1, 0), (2, None), (0, 2)], ids=str)
@pytest.mark.parametrize("loop", [(), (5,)], ids=["one axis", "two axes"])
def test_aligned__any_axes_are_a_batch_of_a_function_with_a_signature(
    dims: Any, loop: tuple[int, ...]
) -> None:
    """The other axes before the core broadcast with each other, and not with the batch."""
    a, b = rand(*loop, 2, 3), rand(1, 3) if loop else rand(3)
    xs = [
        x if d is None else torch.stack([x, x + 1, x * 2, x - 1]).movedim(0, min(d, x.ndim))
        for x, d in zip((a, b), dims, strict=True)
    ]
    at = tuple(d if d is None else min(d, x.ndim - 1) for x, d in zip(xs, dims, strict=True))
    xs = [x.detach().requires_grad_() for x in xs]
    made, right = torch.vmap(matvec(), at)(*xs), torch.vmap(by_torch, at)(*xs)
    same(made, right)
    for g, h in zip(torch.autograd.grad(made.sum(), xs), torch.autograd.grad(right.sum(), xs), strict=True):
        same(g, h)


def test_aligned__empty_batch_has_the_dtypes_and_the_shapes_of_the_results() -> None:
    """An empty batch has the dtypes and the shapes of the results."""

    def declare(x: Any) -> Any:
        return np.empty((2, *x.shape), "f4"), np.empty((), "i8")

    f = aligned(backend="numpy", result=declare)(lambda x: (np.stack([x, x]).astype("f4"), np.argmax(x)))
    for size in (0, 3):
        y, at = torch.vmap(f)(torch.ones(size, 4))
        assert (tuple(y.shape), y.dtype) == ((size, 2, 4), torch.float32)
        assert (tuple(at.shape), at.dtype) == ((size,), torch.int64)


def test_aligned__shapes_are_enough_for_tensors_without_memory() -> None:
    """Shapes are enough for tensors without memory."""
    f = aligned(backend="jax")(lambda x: (x @ x.T, x.sum()))
    x = torch.ones(2, 3, device="meta", requires_grad=True)
    y, s = f(x)
    assert (y.is_meta, tuple(y.shape), tuple(s.shape)) == (True, (2, 2), ())
    (g,) = torch.autograd.grad(y.sum() + s, x)
    assert (g.is_meta, tuple(g.shape)) == (True, (2, 3))


@pytest.mark.parametrize("library", ["numpy", "jax"])
def test_aligned__result_has_no_values_if_one_of_the_tensors_has_none(library: str) -> None:
    """A result has no values if one of the tensors has none."""
    f = aligned(backend=library, result=lambda x, y: np.empty_like(x))(lambda x, y: x + y)
    for x in (torch.ones(2), torch.ones(2, requires_grad=True)):
        assert f(x, torch.ones(2, device="meta")).is_meta
        assert f(torch.ones(2, device="meta"), x).is_meta
