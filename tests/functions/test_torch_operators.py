"""Both orders of tangents of operators of torch, against differences of values and of torch's gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from crossed import host, wide

import xbridge

jax: Any = pytest.importorskip("jax")
torch: Any = pytest.importorskip("torch")
F = torch.nn.functional

if TYPE_CHECKING:
    from collections.abc import Callable

wide64 = pytest.fixture(autouse=True)(wide)

X = np.array([0.3, 0.7, 1.1, 0.9])
ALONG = np.array([1.0, -2.0, 0.5, 1.5])
STEP = 1e-5


def square(x: Any) -> Any:
    return torch.outer(x, x.cos()) / 8 + torch.diag(x.exp())


def symmetric(x: Any) -> Any:
    return torch.outer(x, x) + torch.diag(x.exp())


def image(x: Any) -> Any:
    return torch.outer(x, x.sin())[None, None]


def attend(x: Any) -> Any:
    rows = torch.outer(x, x.cos())[None]
    return F.scaled_dot_product_attention(rows, rows.sin(), rows)


UNARY = """abs acos asin atan cosh digamma erf erfc erfinv exp exp2 expm1 lgamma log log1p log2 logit
    reciprocal rsqrt sigmoid sin sinc sinh sqrt tan tanh"""
ACTIVATIONS = """celu elu gelu glu hardswish leaky_relu logsigmoid mish relu selu silu softplus softsign
    tanhshrink"""
OPERATORS: dict[str, Callable[[Any], Any]] = {
    **{name: getattr(torch, name) for name in UNARY.split()},
    **{name: getattr(F, name) for name in ACTIVATIONS.split()},
    "softmax": lambda x: torch.softmax(x, 0),
    "logsumexp": lambda x: torch.logsumexp(x, 0),
    "logcumsumexp": lambda x: torch.logcumsumexp(x, 0),
    "cumprod": lambda x: torch.cumprod(x, 0),
    "prod": torch.prod,
    "std": torch.std,
    "norm": torch.linalg.vector_norm,
    "renorm": lambda x: torch.renorm(x[None], 2, 0, 0.5),
    "pow": lambda x: x ** x.flip(0),
    "atan2": lambda x: torch.atan2(x, x.flip(0)),
    "hypot": lambda x: torch.hypot(x, x.flip(0)),
    "polygamma": lambda x: torch.polygamma(1, x),
    "sort": lambda x: torch.sort(x)[0] * x,
    "matmul": lambda x: square(x) @ x,
    "solve": lambda x: torch.linalg.solve(square(x), x.sin()),
    "slogdet": lambda x: torch.linalg.slogdet(square(x))[1],
    "eigh": lambda x: torch.linalg.eigh(symmetric(x))[1] ** 2,
    "zeros in cumprod": lambda x: torch.cumprod(x * (x > 0.5), 0),
    "scatter_reduce": lambda x: x + x.scatter_reduce(0, torch.tensor([0, 1, 0, 1]), x.sin(), "prod"),
    "inv": lambda x: torch.linalg.inv(square(x)),
    "det": lambda x: torch.linalg.det(square(x)),
    "cholesky": lambda x: torch.linalg.cholesky(symmetric(x)),
    "eigvalsh": lambda x: torch.linalg.eigvalsh(symmetric(x)),
    "svdvals": lambda x: torch.linalg.svdvals(square(x)),
    "matrix_exp": lambda x: torch.linalg.matrix_exp(square(x)),
    "conv2d": lambda x: F.conv2d(image(x), image(x.cos())[..., :2, :2]),
    "avg_pool2d": lambda x: F.avg_pool2d(image(x), 2),
    "interpolate": lambda x: F.interpolate(image(x), scale_factor=1.5, mode="bicubic"),
    "layer_norm": lambda x: F.layer_norm(x**2, x.shape),
    "group_norm": lambda x: F.group_norm(image(x), 1),
    "attention": attend,
    "cdist": lambda x: torch.cdist(x[:, None], x[:, None] ** 2),
    "cross_entropy": lambda x: F.cross_entropy(square(x), torch.arange(4)),
    "huber_loss": lambda x: F.huber_loss(x, x.flip(0) ** 2, delta=0.2),
}


def value_of(run: Callable[[Any], Any], x: Any) -> Any:
    """The result of a call; None if it is refused."""
    try:
        return host(run(x))
    except xbridge.GradientError:
        return None


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", OPERATORS)
def test_tangents__of_an_operator_are_right_or_refused(name: str) -> None:
    """A tangent, that of a tangent, and the gradient of a tangent."""

    def total(x: Any) -> Any:
        return OPERATORS[name](x).sin().sum()

    def slope(x: Any) -> Any:
        leaf = torch.from_numpy(x).requires_grad_()
        return torch.autograd.grad(total(leaf), leaf)[0].numpy()

    def push(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda x: jax.jvp(f, (x,), (jax.numpy.asarray(ALONG),))[1]

    f, x = xbridge.aligned(backend="torch")(total), jax.numpy.asarray(X)
    ends = (X + STEP * ALONG, X - STEP * ALONG)
    curve = np.subtract(*map(slope, ends)) / (2 * STEP)
    for run, right in (
        (push(f), np.subtract(*[total(torch.from_numpy(end)).item() for end in ends]) / (2 * STEP)),
        (push(push(f)), curve @ ALONG),
        (jax.grad(push(f)), curve),
    ):
        if (found := value_of(run, x)) is not None:
            np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-7)
