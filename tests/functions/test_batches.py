"""Batches of functions with a signature: one call for all examples, of values, gradients and tangents."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from crossed import aligned, autograd_function, refused, same

from xbridge import GradientError, OptionError

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

if TYPE_CHECKING:
    from collections.abc import Callable

A, B = np.arange(1.0, 4), np.arange(6.0).reshape(3, 2) + 1


def _tangent(t: Any, y: Any, a: Any, b: Any) -> Any:
    return (0 if t[0] is None else 2 * a * t[0] * b) + (0 if t[1] is None else a * a * t[1])


def pure(a: Any, b: Any) -> Any:
    return a * a * b


def product() -> Any:
    """A function of two numbers, with two derivatives, that broadcasts."""
    back = aligned(
        backend="numpy",
        vjp=lambda c, o, g, y, a, b: (
            c[0] * 2 * a * b + c[1] * a * a,
            np.zeros_like(y),
            c[0] * g * 2 * b + c[1] * g * 2 * a,
            c[0] * g * 2 * a,
        ),
        jvp=lambda t, o, g, y, a, b: (
            2 * g * ((0 if t[2] is None else t[2] * b) + (0 if t[3] is None else a * t[3]))
            + np.zeros_like(o[0]),
            2 * g * a * (0 if t[2] is None else t[2]) + np.zeros_like(o[1]),
        ),
    )(lambda g, y, a, b: (g * 2 * a * b, g * a * a))
    return aligned(backend="numpy", signature="(),()->()", vjp=back, jvp=_tangent)(pure)


def test_aligned__batch_in_compiled_code_is_a_loop() -> None:
    """A function without a signature is one call in the program, for any number of examples."""
    f = aligned(backend="numpy", result=np.empty_like, vjp=lambda g, y, x: 2 * x * g)(lambda x: x * x)
    square = jax.vmap(f)
    for run in (square, jax.grad(lambda x: square(x).sum()), jax.vmap(jax.grad(lambda x: f(x).sum()))):
        short, long = (str(jax.make_jaxpr(run)(jnp.ones((n, 2)))).count("xbridge_") for n in (2, 9))
        assert short == long > 0


def slopes_in_jax(f: Any, x: Any) -> Any:
    return jax.vmap(jax.grad(f))(jnp.array(x))


def slopes_in_torch(f: Any, x: Any) -> Any:
    return torch.func.vmap(torch.func.grad(f))(torch.tensor(x))


@pytest.mark.parametrize("vjp", [lambda g, y, x: g * x / y, lambda g, y, x: g * y])
def test_aligned__vjp_for_one_example_names_itself_in_a_batch(vjp: Any) -> None:
    """A derivative that cannot take the axes of a batch is named, and one that takes them is right."""
    declare: Any = partial(aligned, backend="numpy", signature="(n)->()")
    norm: Any = partial(np.linalg.norm, axis=-1)
    x = np.arange(1.0, 7).reshape(2, 3)
    for run in (slopes_in_jax, slopes_in_torch):
        text = refused(OptionError, lambda: run(declare(vjp=vjp)(norm), x))  # noqa: B023 -- called at once
        assert "cannot use the vjp of partial for a batch: " in text
        assert "takes the axes of a batch in front of each array, as in g[..., None] * x" in text
        same(run(declare(vjp=lambda g, y, x: g[..., None] * x / y[..., None])(norm), x), x / norm(x)[:, None])


def each(func: Any, f: Any) -> dict[str, Any]:
    """Transforms of JAX or of `torch.func` whose arguments differ in rank, and are batched."""
    grad, vmap = func.grad(lambda a, b: f(a, b).sum(), argnums=(0, 1)), func.vmap
    return {
        "values": vmap(f),
        "gradients": vmap(grad),
        "tangents": vmap(lambda a, b: func.jvp(f, (a, b), (a, b))[1]),
        "tangents of one": vmap(lambda a, b: func.jvp(lambda b: f(a, b), (b,), (b,))[1]),
        "jacrev": vmap(func.jacrev(f, argnums=(0, 1))),
        "jacfwd": vmap(func.jacfwd(f, argnums=(0, 1))),
        "gradient of a batch": func.grad(lambda a, b: vmap(f)(a, b).sum(), argnums=(0, 1)),
        "second gradients": vmap(func.grad(lambda a, b: sum(x.sum() for x in grad(a, b)), argnums=(0, 1))),
        "a tangent of gradients": vmap(lambda a, b: func.jvp(grad, (a, b), (a, b))[1]),
        "one for all": vmap(grad, (None, 0)),
    }


CALLERS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "torch": (torch.func, torch.from_numpy, lambda f: f),
    "jax": (jax, jnp.asarray, lambda f: f),
    "jit": (jax, jnp.asarray, jax.jit),
}


@pytest.mark.parametrize("way", each(jax, pure))
@pytest.mark.parametrize(
    "caller", ["torch", *(pytest.param(name, marks=pytest.mark.slow) for name in ("jax", "jit"))]
)
def test_signature__arguments_of_other_ranks(caller: str, way: str) -> None:
    """Derivatives in a batch have the shapes of their arguments, whichever have fewer axes."""
    func, make, compiled = CALLERS[caller]
    a, b = make(A[:1].reshape(()) if way == "one for all" else A), make(B)
    made, right = compiled(each(func, product())[way])(a, b), each(func, pure)[way](a, b)
    for y, expected in zip(jax.tree.leaves(made), jax.tree.leaves(right), strict=True):
        same(y, expected)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_signature__tangents_of_a_batch_in_one_call(compiled: bool) -> None:
    """The jvp of a function with a signature runs once for all examples."""
    calls: list[int] = []

    def jvp(t: Any, y: Any, x: Any) -> Any:
        calls.append(1)
        return np.cos(x) * t[0]

    f = aligned(backend="numpy", signature="()->()", jvp=jvp)(np.sin)
    x = jnp.linspace(0, 1, 5)
    run = jax.vmap(lambda x: jax.jvp(f, (x,), (x,))[1])
    same((jax.jit(run) if compiled else run)(x), np.cos(x) * x)
    assert len(calls) == 1


def test_signature__keywords_in_another_order() -> None:
    """Arrays by name are in the order of the parameters, in which a signature describes them."""
    f = aligned(backend="numpy", signature=" (), (n) -> (n) ")(lambda a, b: a[..., None] * b)
    right = A[:, None] * B
    same(jax.jit(lambda a, b: f(b=b, a=a))(A, B), right)
    same(jax.vmap(lambda a, b: f(b=b, a=a))(jnp.asarray(A), jnp.asarray(B)), right)
    da = pytest.importorskip("dask.array")
    same(f(b=da.from_array(B, chunks=(2, 2)), a=da.from_array(A, chunks=2)).compute(), right)


by_rule = autograd_function(lambda x: x.sin(), lambda ctx, g: g * ctx.saved_tensors[0].cos())
"""A function without a rule for batches."""


def by_branch(x: Any) -> Any:
    return x.sin() if x.sum() > 2 else x * x


def by_write(x: Any) -> Any:
    y = torch.zeros(3, dtype=x.dtype)
    y[1:] = x[:2].sin()
    return y


CELL = torch.nn.LSTMCell(3, 3, dtype=torch.float64).requires_grad_(False)


def by_cell(x: Any) -> Any:
    return CELL(x)[0]


UNBATCHED = [by_branch, by_write, by_cell, by_rule]
"""Functions of torch that `torch.vmap` refuses."""


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of torch, about a batch of gradients
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])  # five programs
@pytest.mark.parametrize("fn", UNBATCHED)
def test_aligned__examples_that_torch_does_not_batch(fn: Any, compiled: bool) -> None:
    """A batch of a function that torch cannot batch has the values and all derivatives of its examples."""
    declared = {"result": np.empty_like} if fn is by_branch else {}  # it cannot be traced
    f = aligned(backend="torch", **declared)(fn)
    xs = np.random.default_rng(0).normal(size=(2, 3)) + np.array([[1.0], [-1.0]])
    jit = jax.jit if compiled else (lambda g: g)
    examples = [torch.tensor(x) for x in xs]
    same(jit(jax.vmap(f))(xs), torch.stack([fn(x) for x in examples]))
    total = lambda x: f(x).sum()  # noqa: E731 -- as in the documents
    gradients = torch.autograd.functional.jacobian
    wanted = torch.stack([gradients(lambda x: fn(x).sum(), x) for x in examples])
    same(jit(jax.vmap(jax.grad(total)))(xs), wanted)
    same(jit(jax.grad(lambda xs: jax.vmap(f)(xs).sum()))(xs), wanted)
    if fn is not by_rule:  # which has no forward mode
        same(jit(jax.jacfwd(f))(xs[0]), gradients(fn, examples[0]))
        hessian = torch.autograd.functional.hessian(lambda x: fn(x).sum(), examples[0])
        same(jit(jax.hessian(total))(xs[0]), hessian)


def test_aligned__examples_of_other_trees() -> None:
    """The examples of a batch may list keys in any order, and agree in all else; no number is cast."""
    xs = np.array([[1.0], [2.0]])

    def swapped(x: Any) -> Any:
        return {"a": x, "b": -x} if x.sum() > 1 else {"b": -x, "a": x}

    same(jax.vmap(aligned(backend="torch")(swapped))(xs)["b"], -xs)
    for other in (
        lambda x: (x, "more") if x.sum() > 1 else (x, "less"),
        lambda x: x if x.sum() > 1 else x.int(),
        lambda x: x if x.sum() > 1 else x[:0],
    ):
        f = aligned(backend="torch")(other)
        with pytest.raises(OptionError, match="cannot use the result"):
            jax.vmap(f)(xs)
        with pytest.raises(OptionError, match="cannot use the result"):
            jax.vmap(jax.vmap(f))(xs[:, None])


def test_aligned__batch_that_writes_is_not_run_twice() -> None:
    """No example is computed from numbers that torch's attempt at the batch, or another, has changed."""
    grows = [False]

    def fn(x: Any) -> Any:
        if grows[0]:
            x.mul_(3)
        return x if x.sum() > 10 else -x

    def late(x: Any, y: Any) -> Any:
        sign = 1 if x.sum() > 2 else -1
        return x * y.mul_(3) * sign if grows[0] else x * y

    f = aligned(backend="torch")(fn)
    xs = np.array([[1.0], [5.0]])
    same(jax.vmap(f)(xs), -xs)
    both = partial(jax.vmap(aligned(backend="torch")(late), (0, None)), xs, np.ones(1))
    same(both(), xs)
    grows[0] = True
    refused(GradientError, lambda: jax.vmap(f)(xs), "the same call again")
    for again in (f, aligned(backend="torch")(fn)):
        same(jax.vmap(again)(xs), np.array([[-3.0], [15.0]]))
    same(both(), np.array([[-3.0], [15.0]]))


def test_aligned__examples_that_write_to_a_shared_argument() -> None:
    """What one example of a batch writes to an argument, the others do not see."""

    def fn(x: Any, w: Any) -> Any:
        return x * w.mul_(2) if x.sum() > 0 else x + w

    xs, w = np.array([[-3.0, -4.0], [1.0, 2.0], [5.0, 6.0]]), np.array([1.0, 2.0])
    wanted = np.stack([x * 2 * w if x.sum() > 0 else x + w for x in xs])
    slopes = np.stack([2 * x if x.sum() > 0 else np.ones(2) for x in xs])
    for first in (xs, -np.abs(xs)):
        batched = partial(jax.vmap, in_axes=(0, None))
        f = aligned(backend="torch")(fn)
        same(batched(f)(first, w)[0], first[0] + w)
        same(batched(f)(xs, w), wanted)
        pull = lambda x, w, f=f: jax.vjp(partial(f, x), w)[1](jnp.ones(2))[0]  # noqa: E731 -- of a new function
        same(batched(pull)(xs, w), slopes)


# -- in torch ------------------------------------------------------------------------------------------------
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


@pytest.mark.parametrize("library", ["numpy", "jax"])
def test_aligned__shapes_are_enough_for_tensors_without_memory(library: str) -> None:
    """A result, and a gradient, has no values if one of the tensors has none."""

    def outer(x: Any, y: Any) -> Any:
        return x[:, None] * y

    given = {"vjp": lambda g, z, x, y: (g @ y, x @ g)} if library == "numpy" else {}
    f, far = aligned(backend=library, result=outer, **given)(outer), torch.ones(3, device="meta")
    for x in (torch.ones(2), torch.ones(2, requires_grad=True)):
        for made in (f(x, far), f(far, x).T):
            assert (made.is_meta, tuple(made.shape)) == (True, (2, 3))
    (slope,) = torch.autograd.grad(f(far.requires_grad_(), far).sum(), far)
    assert (slope.is_meta, tuple(slope.shape)) == (True, (3,))
