"""The array that decides where `align` converts to, if one is followed by a graph or a transform."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xbridge import align, align_back

torch = pytest.importorskip("torch")


def test_align__followed_array_decides() -> None:
    """An array that requires grad decides, whichever comes first, in any order of calls."""
    a, t, w = np.ones(2), torch.ones(2), torch.ones(2, requires_grad=True)
    for _ in range(3):
        for _ in range(2):
            assert [type(x) for x in align(a, t)] == [np.ndarray, np.ndarray]
        for _ in range(2):
            x, y = align(a, w)
            assert (type(x), y) == (torch.Tensor, w)
    assert [type(x) for x in align(a, w, t)] == [torch.Tensor] * 3
    with torch.no_grad():
        assert [type(x) for x in align(a, w)] == [np.ndarray, np.ndarray]
    assert [type(x) for x in align(a, w, backend="numpy")] == [np.ndarray, np.ndarray]
    assert [type(x) for x in align(a, w, like=a)] == [np.ndarray, np.ndarray]
    assert [type(x) for x in align([1.0, 2.0], np.float64(1), w)] == [torch.Tensor] * 3
    assert [type(x) for x in align(np.float64(1), 2.0)] == [np.ndarray, float]


def test_align_back__followed_array_decides() -> None:
    """Results go back to the array that requires grad."""
    w = torch.ones(2, requires_grad=True)
    for _ in range(2):
        assert type(align_back(np.ones(2, "f4"), torch.ones(2))[0][1]) is np.ndarray
    (x, y), restore = align_back(np.ones(2, "f4"), w)
    assert restore(x * y).requires_grad
    assert type(restore(x * y, to=0)) is np.ndarray


def test_align__tracer_decides() -> None:
    """A tracer of JAX decides, so that nothing leaves the transform."""
    jax = pytest.importorskip("jax")

    def distance(x: Any) -> Any:
        a, b = align(np.ones(2, "f4"), x)
        return ((a - b) ** 2).sum()

    assert jax.grad(distance)(jax.numpy.zeros(2)).tolist() == [-2, -2]
    assert float(distance(jax.numpy.zeros(2))) == 2
