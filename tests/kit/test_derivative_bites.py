"""`assert_derivative` accepts right derivatives, and notices every kind of wrong one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from crossed import in_library, wide

import xbridge
from xbridge.testing import assert_derivative

if TYPE_CHECKING:
    from collections.abc import Callable

pytest.importorskip("torch")
aligned: Any = xbridge.aligned
wide64 = pytest.fixture(autouse=True)(wide)

A = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]])
X = np.array([0.3, 0.7, 1.1])
Z = X + 1j * X[::-1]


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max())
    return e / e.sum()


VJPS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = {
    "zero": (np.sin, lambda g, y, x: 0 * g, (X,)),
    "a factor": (np.sin, lambda g, y, x: 2 * g * np.cos(x), (X,)),
    "the cotangent is forgotten": (np.sin, lambda g, y, x: np.cos(x), (X,)),
    "the derivative at another point": (np.sin, lambda g, y, x: g * np.cos(x + 1e-3), (X,)),
    "not transposed": (lambda x: A[:, :2] @ x, lambda g, y, x: A[:, :2] @ g, (X[:2],)),
    "a diagonal of the derivative": (softmax, lambda g, y, x: g * y * (1 - y), (X,)),
    "a second argument forgotten": (lambda a, b: a * b, lambda g, y, a, b: (g * b, 0 * g), (X, X)),
    "not conjugated": (lambda z: z * z, lambda g, y, z: g * 2 * z, (Z,)),
    "one of two results": (lambda x: (np.sin(x), x * x), lambda g, y, x: g[0] * np.cos(x), (X,)),
    "a branch": (np.abs, lambda g, y, x: g, (X - 0.5,)),
    "a form of another shape": (np.sin, lambda g, y, x: g[:1] * np.cos(x), (X[:1].repeat(3) * 2,)),
    "none": (np.sin, lambda g, y, x: None, (X,)),
}
"""What is wrong -> the function, its wrong vjp, and arguments."""

JVPS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "zero": (np.sin, lambda x: np.diag(np.cos(x)), lambda t, y, x: 0 * t[0]),
    "the transpose": (lambda x: np.tri(3) @ x, lambda x: np.tri(3), lambda t, y, x: np.tri(3).T @ t[0]),
    "the tangent is forgotten": (np.sin, lambda x: np.diag(np.cos(x)), lambda t, y, x: np.cos(x)),
}
"""What is wrong -> the function, its Jacobian, and its wrong jvp."""


@pytest.mark.parametrize("fault", VJPS)
def test_assert_derivative__wrong_vjp(fault: str) -> None:
    """Every planted mistake in a vjp is noticed."""
    fn, vjp, args = VJPS[fault]
    with pytest.raises((AssertionError, xbridge.XBridgeError)):
        assert_derivative(aligned(backend="numpy", vjp=vjp)(fn), *args)


@pytest.mark.parametrize("fault", JVPS)
def test_assert_derivative__wrong_jvp(fault: str) -> None:
    """Every planted mistake in a jvp is noticed, and the message names the tangent."""
    fn, jacobian, jvp = JVPS[fault]
    options = {"backend": "numpy", "vjp": lambda g, y, x: jacobian(x).T @ g}
    assert_derivative(aligned(**options, jvp=lambda t, y, x: jacobian(x) @ t[0])(fn), X, rtol=1e-5)
    with pytest.raises(AssertionError, match="the tangent in torch"):
        assert_derivative(aligned(**options, jvp=jvp)(fn), X, rtol=1e-5)


def test_assert_derivative__wrong_signature() -> None:
    """A signature that is wrong for batches is noticed."""
    total = aligned(backend="numpy", signature="(n)->()", vjp=lambda g, y, x: g[..., None] + 0 * x)(
        lambda x: x.sum() if x.ndim == 1 else x.sum(0)
    )
    with pytest.raises((AssertionError, xbridge.XBridgeError)):
        assert_derivative(total, X)


NORMS = {
    "for one example": (lambda g, y, x: g * x / y, r"raises OptionError: cannot use the vjp"),
    "of the first row": (
        lambda g, y, x: g[..., None] * x[(0,) * (x.ndim - 1)] / y[..., None],
        "in row",
    ),
    "of the mean result": (lambda g, y, x: g[..., None] * x / y.mean(), "in row"),
}
"""What is wrong -> a vjp of a norm that is right for one example, and its fault in a batch."""


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("fault", NORMS)
def test_assert_derivative__wrong_in_batches(fault: str, n: int) -> None:
    """A vjp that is right for one example and wrong for a batch is noticed, whatever the number of values."""
    vjp, message = NORMS[fault]
    declare: Any = partial(aligned, backend="numpy", signature="(n)->()")
    norm, x = partial(np.linalg.norm, axis=-1), np.arange(1.0, n + 1)
    if (fault, n) != ("of the first row", 1):  # its derivative is the same in each row
        with pytest.raises(AssertionError, match=f"the gradient of a batch in torch .*{message}"):
            assert_derivative(declare(vjp=vjp)(norm), x)
    assert_derivative(declare(vjp=lambda g, y, x: g[..., None] * x / y[..., None])(norm), x)


def test_assert_derivative__error_of_a_batch() -> None:
    """An error that a function raises for a batch alone is a fault of the derivative."""
    total = aligned(backend="numpy", signature="(n)->()", vjp=lambda g, y, x: g[..., None] + 0 * x)(
        lambda x: x.sum(-1) if x.ndim == 1 else x.reshape(5, -1)
    )
    with pytest.raises(AssertionError, match="gradient of a batch in torch raises ValueError: cannot resh"):
        assert_derivative(total, X)


def test_assert_derivative__function_that_refuses_other_places() -> None:
    """A function that accepts its argument alone, but for rounding, is differentiated there."""

    def entropy(p: Any) -> Any:
        if not np.allclose(p.sum(-1), 1):
            raise ValueError("no probabilities")
        return -(p * np.log(p)).sum(-1)

    vjp = lambda g, y, p: -g[..., None] * (1 + np.log(p))  # noqa: E731
    assert_derivative(aligned(backend="numpy", signature="(n)->()", vjp=vjp)(entropy), X / X.sum(), rtol=1e-4)


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_assert_derivative__right_derivatives_pass(name: str) -> None:
    """Right derivatives pass, whichever library the function and its arguments are of."""
    if name != "numpy":
        pytest.importorskip("jax")
    assert_derivative(in_library(name), X)
    assert_derivative(in_library(name), xbridge.asarray(X, backend="torch"))


def test_assert_derivative__integer_arguments_and_dicts() -> None:
    """Arguments and results without a derivative are accepted, in dicts too."""
    f = aligned(backend="numpy", vjp=lambda g, y, x, i, *, k: (g["y"] * k, None, None))(
        lambda x, i, *, k: {"y": x * k, "i": i, "n": 3}
    )
    assert_derivative(f, X, np.arange(3), k=2.0)
    assert_derivative(aligned(backend="numpy", vjp=lambda g, y, x: 2 * g)(lambda x: 2 * x), np.ones(100))


def test_assert_derivative__nothing_to_differentiate() -> None:
    """Integer arguments alone, and a function without a derivative, are refused."""
    with pytest.raises(xbridge.OptionError):
        assert_derivative(in_library("numpy"), np.arange(3))
    with pytest.raises(xbridge.GradientError):
        assert_derivative(aligned(backend="numpy")(np.sin), X)


SCALES = [1.0, 1e7, 1e-8, 1e-150, 1e150]


@pytest.mark.slow
@pytest.mark.parametrize("scale", SCALES)
def test_assert_derivative__scale_of_the_arguments(scale: float) -> None:
    """A right derivative passes at any scale of the arguments, and a wrong one is found there."""
    x = np.array([1.0, 2.0]) * scale
    assert_derivative(of_vjp(lambda x: x**2, lambda g, y, x: 2 * g * x), x)
    assert_derivative(of_vjp(lambda x: 1e-9 * x, lambda g, y, x: 1e-9 * g), x)
    assert_derivative(of_vjp(lambda x: 1 + x, lambda g, y, x: g), x)
    for factor in (0.0, 1.001):
        with pytest.raises(AssertionError, match="rtol="):
            assert_derivative(of_vjp(lambda x: x**2, lambda g, y, x: factor * 2 * g * x), x)  # noqa: B023
        with pytest.raises(AssertionError, match="rtol="):
            assert_derivative(of_vjp(lambda x: 1e-9 * x, lambda g, y, x: factor * 1e-9 * g), x)  # noqa: B023


@pytest.mark.parametrize("x", [[1.0, 1e7], [1e-8, 1.0], [0.0, 1e3], [0.0]], ids=str)
def test_assert_derivative__scale_of_the_function(x: list[float]) -> None:
    """A function with a scale of its own is differentiated by steps that fit it."""
    assert_derivative(of_vjp(np.sin, lambda g, y, x: g * np.cos(x)), np.array(x))
    with pytest.raises(AssertionError):
        assert_derivative(of_vjp(np.sin, lambda g, y, x: 1.1 * g * np.cos(x)), np.array(x))


def test_assert_derivative__rtol() -> None:
    """rtol= allows for the error of an approximate solver, and the message names it."""
    rough = of_vjp(np.sin, lambda g, y, x: (1 + 1e-4) * g * np.cos(x))
    with pytest.raises(AssertionError, match="rtol="):
        assert_derivative(rough, np.ones(2))
    assert_derivative(rough, np.ones(2), rtol=1e-3)


def of_vjp(fn: Any, vjp: Any) -> Any:
    return xbridge.aligned(backend="numpy", signature="()->()", vjp=vjp)(fn)
