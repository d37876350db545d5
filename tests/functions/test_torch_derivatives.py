"""Derivatives of functions of torch in JAX: which there are, which are zero, and which are refused."""

# ruff: noqa: B023 -- functions are called within their loop

from __future__ import annotations

from functools import partial
from itertools import product
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from crossed import IN_JAX, X, array, autograd_function, double, host, in_torch, refused, same, transforms

from xbridge import GradientError

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

if TYPE_CHECKING:
    from collections.abc import Callable

ways = pytest.mark.parametrize("way", IN_JAX.values(), ids=list(IN_JAX))
slow_batches = pytest.mark.filterwarnings("ignore:There is a performance drop")
"""By torch, which runs each example by itself."""


def scripted(source: str) -> Any:
    return torch.jit.CompilationUnit(dedent(source)).f


LEAVING: dict[str, Callable[[Any], Any]] = {
    "detach": lambda x: 2 * x.detach(),
    "numpy": lambda x: torch.from_numpy(np.sin(x.detach().numpy())),
    "item": lambda x: torch.tensor([x.sum().item()], dtype=x.dtype),
    "no_grad": torch.no_grad()(torch.sin),
    "inference_mode": torch.inference_mode()(torch.sin),
    "a part": lambda x: torch.stack([x.detach()]),
    "no derivative": torch.special.bessel_j0,
    "script": scripted("""
        def f(x):
            return x.detach().sin()
    """),
}
REASONS = r"detaches|data pointer|numpy\(\) is not supported|control flow|no derivative of special_bessel_j0"


@ways
@pytest.mark.parametrize("fn", LEAVING.values(), ids=list(LEAVING))
def test_aligned__has_no_derivative_of_what_leaves_torch(
    fn: Callable[[Any], Any], way: Callable[[Any], Any]
) -> None:
    """A result that has no graph at all has an error where JAX would see zeros."""
    with pytest.raises(Exception, match=REASONS):
        jax.block_until_ready(way(in_torch(fn))(array()))


CONSTANT: dict[str, Callable[[Any], Any]] = {
    "zeros_like": torch.zeros_like,
    "sign": torch.sign,
    "ones": lambda x: x.new_ones(4),
    "compared": lambda x: (x > 1).double(),
    "script": scripted("""
        def f(x):
            return torch.ones_like(x) * (x > 1).to(x.dtype)
    """),
}


@ways
@pytest.mark.parametrize("fn", CONSTANT.values(), ids=list(CONSTANT))
def test_aligned__has_zeros_for_constants(fn: Callable[[Any], Any], way: Callable[[Any], Any]) -> None:
    assert not host(way(in_torch(fn))(array())).any()


def part(x: Any) -> Any:
    with torch.no_grad():
        size = x.square().sum()
    return (x / size).sin()


PARTS: dict[str, Callable[[Any], Any]] = {
    "detach": lambda x: (x / x.detach().square().sum()).sin(),
    "no_grad": part,
    "script": scripted("""
        def f(x):
            with torch.no_grad():
                size = x.square().sum()
            return (x / size).sin()
    """),
}


@pytest.mark.parametrize("way", [*IN_JAX.values(), lambda f: jax.hessian(lambda x: f(x).sum())],
                         ids=[*IN_JAX, "hessian"])  # fmt: skip
@pytest.mark.parametrize("fn", PARTS.values(), ids=list(PARTS))
def test_aligned__detached_part_is_a_constant(fn: Callable[[Any], Any], way: Callable[[Any], Any]) -> None:
    """`detach` and `no_grad` mean what they mean in torch, in both modes and in each order."""

    def pure(x: Any) -> Any:
        return jax.numpy.sin(x / jax.lax.stop_gradient((x**2).sum()))

    same(way(in_torch(fn))(array()), way(pure)(array()))


@transforms
def test_aligned__detached_result_beside_one_with_a_graph_is_a_constant(
    transform: Callable[[Any], Any],
) -> None:
    """A metric or a target beside a loss is a constant, and a result that is linear has no curvature."""
    both = in_torch(lambda x: (x * torch.sin(x), x.detach()))
    for way in IN_JAX.values():
        same(transform(way(lambda x: sum(both(x))))(array()), way(lambda x: x * jax.numpy.sin(x))(array()))
        assert not host(transform(way(lambda x: both(x)[1]))(array())).any()
    same(jax.hessian(lambda x: in_torch(lambda x: 2 * x)(x).sum())(array()), np.zeros((4, 4)))


def sample(x: Any) -> Any:
    """A function for which torch has no forward mode."""
    image = torch.arange(16, dtype=x.dtype).sin().reshape(1, 1, 4, 4)
    at = x.reshape(1, 2, 1, 2).sin() / 2
    return torch.nn.functional.grid_sample(image * x.sum(), at, mode="bicubic", align_corners=False)[0, 0, 0]


LAYERS = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
TANGENTS: dict[str, Callable[[Any], Any]] = {
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, x.shape),
    "batch_norm": lambda x: torch.nn.functional.batch_norm(
        torch.stack([x, x**2], 1), None, None, training=True
    ),
    "grid_sample": sample,
    "written": lambda x: sample(x.mul_(2)),
    "script": torch.jit.script(double(LAYERS)),
}


@pytest.mark.slow  # eight derivatives and their differences, of which JAX compiles every operation
@slow_batches
@pytest.mark.parametrize("fn", TANGENTS.values(), ids=list(TANGENTS))
def test_tangents__are_gradients_of_gradients(fn: Callable[[Any], Any]) -> None:
    """Torch's forward mode is wrong for some of these and lacks others; no order of derivatives uses it."""
    f, x = in_torch(lambda x: fn(x).sin().sum()), array()
    first = host(jax.grad(f)(x))
    same(jax.jacfwd(f)(x), first)
    second = jax.jacrev(jax.grad(f))(x)
    for derive in (jax.hessian, lambda f: jax.jacrev(jax.jacfwd(f)), lambda f: jax.jacfwd(jax.jacfwd(f))):
        same(derive(f)(x), second)
    same(jax.jit(jax.hessian(f))(x), second)
    steps = 1e-5 * np.eye(4)
    found = [(host(jax.grad(f)(x + e)) - host(jax.grad(f)(x - e))) / 2e-5 for e in steps]
    np.testing.assert_allclose(host(second), found, rtol=1e-4, atol=1e-6)


@slow_batches
def test_aligned__names_a_derivative_that_torch_lacks() -> None:
    """Torch has gradients of these, but no derivative of them, and so no tangents."""
    attention = torch.nn.functional.scaled_dot_product_attention
    fns: list[Callable[[Any], Any]] = [
        lambda x: torch.cdist(x[:, None], x[:, None] ** 2),
        lambda x: attention(*[x.reshape(1, 1, 1, 4)] * 3),
    ]
    for fn in fns:
        f = in_torch(lambda x: fn(x).sum())
        assert host(jax.grad(f)(array())).shape == (4,)
        for derive in (jax.jacfwd, jax.hessian):
            refused(GradientError, lambda: derive(f)(array()), "torch has no such derivative")


INSIDE: dict[str, Callable[[Any], Any]] = {
    "jacfwd of jacrev": torch.func.hessian(lambda x: x.exp().sum()),
    "jacrev of jacfwd": torch.func.jacrev(torch.func.jacfwd(lambda x: x.exp().sum())),
}


@pytest.mark.parametrize("name", INSIDE)
@pytest.mark.parametrize(
    "derive", [lambda f: f, lambda f: jax.hessian(lambda x: f(x).sum())], ids=["values", "hessian"]
)
def test_aligned__batches_a_function_that_differentiates_inside(
    derive: Callable[[Any], Any], name: str
) -> None:
    """The shapes of a batch follow from those of an example: torch cannot run such a batch without values."""
    x = array(X.reshape(2, 2))
    found, right = (
        jax.jit(jax.vmap(derive(f)))(x)
        for f in (in_torch(INSIDE[name]), lambda x: jax.numpy.diag(jax.numpy.exp(x)))
    )
    same(found, right)


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
@transforms
def test_aligned__derives_a_function_that_writes_to_its_arguments(transform: Callable[[Any], Any]) -> None:
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
        lambda f: jax.jacrev(jax.jacfwd(f, 1), 0),
        lambda f: lambda x, y: jax.vmap(jax.jacrev(f, 1))(x[None], y[None]),
    ]
    for derive in ways:
        run, expected = transform(derive(in_torch(fn))), jax.tree.leaves(derive(pure)(x, y))
        for _ in range(2):
            for made, right in zip(jax.tree.leaves(run(x, y)), expected, strict=True):
                same(made, right)


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


CUBES: dict[str, Any] = {
    "once": torch.autograd.function.once_differentiable(lambda ctx, g: g * 3 * ctx.saved_tensors[0] ** 2),
    "detached": lambda ctx, g: g * 3 * ctx.saved_tensors[0].detach() ** 2,
}


@pytest.mark.parametrize("backward", CUBES.values(), ids=list(CUBES))
def test_aligned__has_no_second_derivative_of_a_backward_pass_without_one(backward: Any) -> None:
    """An autograd function whose gradient torch does not follow has none, in every transform."""
    cube = autograd_function(lambda x: x**3, backward, generate_vmap_rule=True)
    f, x = in_torch(lambda x: cube(x).sum()), array()
    same(jax.grad(f)(x), 3 * X**2)
    for way in (jax.hessian, lambda f: jax.jacrev(jax.grad(f)), lambda f: jax.jacrev(jax.jacfwd(f))):
        refused(GradientError, lambda: way(f)(x), "detaches")


@transforms
def test_aligned__has_dense_gradients_of_sparse_embeddings(transform: Callable[[Any], Any]) -> None:
    @in_torch
    def rows(weights: Any, at: Any) -> Any:
        return torch.nn.functional.embedding(at, weights, sparse=True).square().sum()

    at, right = jax.numpy.array([1, 0, 1]), np.array([[2.0, 2], [4, 4], [0, 0]])
    slopes = jax.grad(lambda w: transform(jax.grad(rows))(w, at).sum())
    for derive in (lambda w: transform(jax.grad(rows))(w, at), slopes):
        same(derive(array(np.ones((3, 2)))), right)


# -- operators -----------------------------------------------------------------------------------------------
ALONG = np.array([1.0, -2.0, 0.5, 1.5])


def square(x: Any) -> Any:
    return torch.outer(x, x.cos()) / 8 + torch.diag(x.exp())


def of_symmetric(fn: Callable[[Any], Any], x: Any) -> Any:
    return fn(torch.outer(x, x) + torch.diag(x.exp()))


def image(x: Any) -> Any:
    return torch.outer(x, x.sin())[None, None]


def attend(x: Any) -> Any:
    rows = torch.outer(x, x.cos())[None]
    return torch.nn.functional.scaled_dot_product_attention(rows, rows.sin(), rows)


UNARY = """abs acos asin atan cosh digamma erf erfc erfinv exp exp2 expm1 lgamma log log1p log2 logit
    reciprocal rsqrt sigmoid sin sinc sinh sqrt tan tanh"""
ACTIVATIONS = """celu elu gelu glu hardswish leaky_relu logsigmoid mish relu selu silu softplus softsign
    tanhshrink"""
ALONG_AN_AXIS = "softmax logsumexp logcumsumexp cumprod"
OF_MATRICES = "inv det cholesky eigvalsh svdvals matrix_exp"
OPERATORS: dict[str, Callable[[Any], Any]] = {
    **{name: getattr(torch, name) for name in UNARY.split()},
    **{name: getattr(torch.nn.functional, name) for name in ACTIVATIONS.split()},
    **{name: partial(getattr(torch, name), dim=0) for name in ALONG_AN_AXIS.split()},
    **{name: partial(of_symmetric, getattr(torch.linalg, name)) for name in OF_MATRICES.split()},
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
    "eigh": lambda x: of_symmetric(torch.linalg.eigh, x)[1] ** 2,
    "zeros in cumprod": lambda x: torch.cumprod(x * (x > 0.5), 0),
    "scatter_reduce": lambda x: x + x.scatter_reduce(0, torch.tensor([0, 1, 0, 1]), x.sin(), "prod"),
    "conv2d": lambda x: torch.nn.functional.conv2d(image(x), image(x.cos())[..., :2, :2]),
    "avg_pool2d": lambda x: torch.nn.functional.avg_pool2d(image(x), 2),
    "interpolate": lambda x: torch.nn.functional.interpolate(image(x), scale_factor=1.5, mode="bicubic"),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x**2, x.shape),
    "group_norm": lambda x: torch.nn.functional.group_norm(image(x), 1),
    "attention": attend,
    "cdist": lambda x: torch.cdist(x[:, None], x[:, None] ** 2),
    "cross_entropy": lambda x: torch.nn.functional.cross_entropy(square(x), torch.arange(4)),
    "huber_loss": lambda x: torch.nn.functional.huber_loss(x, x.flip(0) ** 2, delta=0.2),
}


def value_of(run: Callable[[Any], Any], x: Any) -> Any:
    """The result of a call; None if it is refused."""
    try:
        return host(run(x))
    except GradientError:
        return None


@slow_batches
@pytest.mark.parametrize("name", OPERATORS)
def test_tangents__of_an_operator_are_right_or_refused(name: str) -> None:
    """A tangent, that of a tangent, and the gradient of a tangent."""

    def total(x: Any) -> Any:
        return OPERATORS[name](x).sin().sum()

    def slope(x: Any) -> Any:
        leaf = torch.from_numpy(x).requires_grad_()
        return torch.autograd.grad(total(leaf), leaf)[0].numpy()

    def push(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda x: jax.jvp(f, (x,), (array(ALONG),))[1]

    inner, step = 0.45 * X, 1e-5 * ALONG  # where each is smooth
    f, x = in_torch(total), array(inner)
    ends = (inner + step, inner - step)
    curve = np.subtract(*map(slope, ends)) / 2e-5
    for run, right in (
        (push(f), np.subtract(*[total(torch.from_numpy(end)).item() for end in ends]) / 2e-5),
        (push(push(f)), curve @ ALONG),
        (jax.grad(push(f)), curve),
    ):
        if (found := value_of(run, x)) is not None:
            np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-7)
