"""A derivative that does not exist is an error when it is asked for, and never a zero."""

# ruff: noqa: B023 -- functions are called within their loop

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from crossed import X, aligned, array, by_hand, host, leaf, refused, same, total
from fresh import run

import xbridge
from xbridge import DTypeError, GradientError, OptionError

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

if TYPE_CHECKING:
    from collections.abc import Callable


def sine(**more: Any) -> Callable[..., Any]:
    made: Callable[..., Any] = aligned(backend="numpy", signature="()->()", **more)(np.sin)
    return made


GIVEN: dict[str, Callable[..., Any]] = {"vjp": lambda g, y, x: g * np.cos(x)}


WAYS: dict[str, list[Callable[[Any], Any]]] = {
    "vjp": [
        lambda f: jax.grad(total(f))(array()),
        lambda f: jax.jit(jax.grad(total(f)))(array()),
    ],
    "jvp": [
        lambda f: torch.func.jacfwd(f)(leaf().detach()),
        lambda f: jax.jvp(f, (array(),), (array(),)),
        lambda f: jax.jit(lambda v: jax.jvp(f, (v,), (v,))[1])(array()),
    ],
}


@pytest.mark.parametrize(("missing", "given"), [("vjp", {}), ("jvp", GIVEN)])
def test_aligned__function_has_no_derivative_that_it_was_not_given(
    missing: str, given: dict[str, Any]
) -> None:
    """A function without a vjp has a graph and no gradient; one without a jvp has no forward mode."""
    y = sine(**given)(leaf())
    assert y.requires_grad
    same(y, np.sin(X))
    for way in WAYS[missing]:
        refused(GradientError, lambda: way(sine(**given)), f"{missing}=f")


@pytest.mark.parametrize("again", [False, True])
def test_hint__of_a_batch_of_gradients_is_followed(again: bool) -> None:
    """The batch of `is_grads_batched` is another than that of `torch.func`, which has the same Jacobian."""
    f, x = aligned(backend="jax")(lambda x: jax.numpy.sin(x) * x), leaf()
    jacobian = torch.autograd.functional.jacobian
    with pytest.raises(GradientError, match=r"try torch\.func\.jacrev\(f\)\(x\)"):
        jacobian(f, x, create_graph=again, vectorize=True)
    same(torch.func.jacrev(f)(x), jacobian(f, x))
    with pytest.raises(GradientError, match=r"try torch\.func\.jacfwd\(f\)\(x\)"):
        jacobian(f, x, vectorize=True, strategy="forward-mode")
    same(torch.func.jacfwd(f)(x), jacobian(f, x))


def test_aligned__vjp_without_a_vjp_has_no_second_order() -> None:
    """A vjp without a vjp has no second order."""
    grad = jax.grad(lambda v: sine(**GIVEN)(v).sum())
    refused(GradientError, lambda: jax.grad(lambda v: grad(v).sum())(jax.numpy.asarray(X)))
    f, x = by_hand(), leaf()
    second = x
    for _ in range(2):
        (second,) = torch.autograd.grad((f(x) if second is x else second).sum(), x, create_graph=True)
    refused(GradientError, second.sum().backward, "the vjp of the vjp of", "vjp=aligned")


def test_aligned__hint_for_a_jvp_of_a_vjp_keeps_its_vjp() -> None:
    """The hint has the derivatives that a vjp was given, and the one that it needs."""
    twice = aligned(backend="numpy", vjp=lambda c, o, g, y, x: None)(GIVEN["vjp"])
    f, x = sine(vjp=twice, jvp=lambda t, y, x: t[0] * np.cos(x)), jax.numpy.asarray(X)
    gradient = jax.grad(lambda v: f(v).sum())
    refused(GradientError, lambda: jax.jvp(gradient, (x,), (x,)), "numpy', vjp=..., jvp=...)(f)")


def test_aligned__none_of_a_vjp_is_not_a_zero() -> None:
    """A vjp that returns None does not give zeros."""
    product = aligned(backend="numpy", vjp=lambda g, y, a, b: (None, g * a))(lambda a, b: a * b)
    a, b = leaf(), leaf()
    same(torch.autograd.grad(product(a.detach(), b).sum(), b)[0], X)
    refused(GradientError, lambda: torch.autograd.grad(product(a, b).sum(), a), "None", "detach")
    nothing = aligned(backend="numpy", vjp=lambda g, y, a, b: None)(lambda a, b: a * b)
    refused(GradientError, lambda: torch.autograd.grad(nothing(a, b).sum(), a), "None")
    tree = aligned(backend="numpy", vjp=lambda g, y, p: {"w": g, "x": None})(lambda p: p["w"] + p["x"])
    y = tree({"w": a, "x": b}).sum()
    refused(GradientError, lambda: torch.autograd.grad(y, b), "None for argument 0['x']")


@pytest.mark.parametrize("zero", [lambda y: None, np.zeros_like])
def test_aligned__result_without_a_part_in_a_second_derivative_has_a_zero(zero: Callable[..., Any]) -> None:
    """None for the result is an error of a second derivative too, whose hint gives the zeros to return."""
    inner = aligned(backend="numpy", vjp=lambda c, o, g, y, x: (2 * c * x, zero(y), 2 * c * g))
    square = aligned(backend="numpy", vjp=inner(lambda g, y, x: 2 * g * x))(lambda x: x * x)
    x = leaf()
    (first,) = torch.autograd.grad(square(x).sum(), x, create_graph=True)
    if zero is np.zeros_like:
        same(torch.autograd.grad(first.sum(), x)[0], np.full_like(X, 2.0))
    else:
        refused(GradientError, lambda: torch.autograd.grad(first.sum(), x), "None", "numpy.zeros_like(y)")


@pytest.mark.parametrize(
    ("count", "gradients", "kind", "reason"),
    [
        (1, lambda g: (g, g), OptionError, "another form"),
        (1, lambda g: g[:2], OptionError, "has shape (2,)"),
        (1, lambda g: g * 1j, DTypeError, "is complex"),
        (2, lambda g: 3, OptionError, "another form"),
        (2, lambda g: (g,), OptionError, "it returned 1 gradients for 2 arguments"),
        (2, lambda g: (g, g, g), OptionError, "it returned 3 gradients for 2 arguments"),
    ],
)
def test_aligned__vjp_of_the_wrong_form_is_refused(
    count: int, gradients: Callable[[Any], Any], kind: type[Exception], reason: str
) -> None:
    """A vjp returns one gradient for each argument, of the shape and the kind of the argument."""
    f = aligned(backend="numpy", result=lambda *xs: xs[0], vjp=lambda g, *_: gradients(g))(
        lambda *xs: sum(xs)
    )
    x, v = leaf(), jax.numpy.asarray(X)
    for derive in (
        lambda: torch.autograd.grad(f(*[x] * count).sum(), x),
        lambda: jax.jit(jax.grad(lambda v: f(*[v] * count).sum()))(v),
    ):
        refused(kind, derive, "use the vjp of", reason)


@pytest.mark.parametrize(
    ("jvp", "kind"),
    [(lambda t, y, x: (t[0], t[0]), OptionError), (lambda t, y, x: t[0] * 1j, DTypeError)],
    ids=["two", "complex"],
)
def test_aligned__jvp_of_the_wrong_form_is_refused(jvp: Callable[..., Any], kind: type[Exception]) -> None:
    """A jvp of the wrong form is refused."""
    t = torch.from_numpy(X)
    refused(kind, lambda: torch.func.jvp(sine(jvp=jvp), (t,), (t,)), "use the jvp of")


def test_aligned__function_of_a_library_without_rules_has_no_gradient() -> None:
    """A function of a library without rules has no gradient."""
    pytest.importorskip("array_api_strict")
    f = aligned(backend="array_api_strict")(lambda x: x + x)
    y = f(leaf())
    same(y, 2 * X)
    refused(GradientError, y.sum().backward, "array_api_strict")
    same(torch.vmap(f)(torch.from_numpy(X)[None]), 2 * X[None])


def test_aligned__keep_raises_at_the_call_and_detach_cuts() -> None:
    """`grad="keep"` raises at the call, and `grad="detach"` cuts the graph."""
    v = jax.numpy.asarray(X)
    refused(GradientError, lambda: jax.grad(lambda v: sine(grad="keep")(v).sum())(v), "vjp=f")
    assert sine(grad="keep", **GIVEN)(leaf()).requires_grad
    assert not sine(grad="detach")(leaf()).requires_grad
    same(jax.grad(lambda v: sine(grad="detach")(v).sum())(v), 0 * X)


def test_aligned__detach_cuts_the_graph_of_weights() -> None:
    """`grad="detach"` also cuts a graph that the function makes in the library of its caller."""
    linear = torch.nn.Linear(3, 2)
    call = aligned(linear, grad="detach")
    pair = aligned(backend="torch", grad="detach")(lambda x: {"y": linear(x), "n": 1})
    for x in (torch.ones(1, 3), torch.ones(1, 3, requires_grad=True)):
        for _ in range(2):  # the second call is a cached one
            assert not call(x).requires_grad
            assert torch.equal(call(x), linear(x))
            assert not pair(x)["y"].requires_grad
    assert linear.weight.requires_grad


@pytest.mark.slow
def test_aligned__complex_gradients_are_right_in_both_conventions() -> None:
    """Complex gradients are right in both conventions."""
    z = np.array([1 + 1j, 2 - 1j])
    by_numpy = aligned(
        backend="numpy",
        vjp=lambda g, y, x: g * np.conj(2 * x * (1 + 2j)),
        jvp=lambda t, y, x: 2 * x * t[0] * (1 + 2j),
    )(lambda x: x * x * (1 + 2j))
    for f in (by_numpy, aligned(backend="jax")(lambda x: x * x * (1 + 2j))):
        assert torch.autograd.gradcheck(f, (torch.from_numpy(z).requires_grad_(),))
    for f in (by_numpy, aligned(backend="torch")(lambda x: x * x * (1 + 2j))):
        v = array(z)
        own = jax.grad(lambda v: (v * v * (1 + 2j)).real.sum())(v)
        same(jax.grad(lambda v: f(v).real.sum())(v), own)
        same(jax.jvp(f, (v,), (v * 1j,))[1], 2j * z * z * (1 + 2j))


def test_aligned__integers_have_no_gradients_and_results_of_floats_beside_them_do() -> None:
    """Integers have no gradients and results of floats beside them do."""
    f = aligned(backend="jax")(lambda a, i, m: (jax.numpy.where(m, a, 0)[i] * 2, a.argmax(), m))
    i, m, a = torch.tensor([3, 1]), torch.tensor([True, True, False, True]), leaf()
    y, k, n = f(a, i, m)
    assert y.requires_grad
    assert not k.requires_grad
    assert (k.dtype, n.tolist()) == (torch.int64, m.tolist())
    assert torch.autograd.grad(y.sum(), a)[0].tolist() == [0, 2, 0, 2]
    g = aligned(backend="torch")(lambda a, i: (a[i] * 2, a.argmax(), a.sum()))
    v, w = jax.numpy.asarray(X), jax.numpy.array([3, 1])
    assert host(jax.grad(lambda t: g(t, w)[0].sum())(v)).tolist() == [0, 2, 0, 2]
    (_, k, _), t = jax.jvp(lambda t: g(t, w), (v,), (v,))
    assert (t[1].dtype, int(k)) == (jax.dtypes.float0, 3)
    whole = aligned(backend="torch")(lambda i: i * 2)
    assert jax.jvp(whole, (w,), (np.zeros(2, jax.dtypes.float0),))[0].tolist() == [6, 2]
    ordered = aligned(backend="torch")(lambda a: a.argsort())
    assert jax.jvp(ordered, (v,), (v,))[1].dtype == jax.dtypes.float0


def test_aligned__control_flow_on_values_is_refused_in_words() -> None:
    """Control flow on values is refused in words."""
    x, f = leaf(), aligned(backend="jax")(lambda x: x if x.sum() > 0 else -x)
    refused(OptionError, lambda: f(x), "jax.lax.cond")
    same(f(x.detach()), X)  # nothing is followed, so it runs as it is
    refused(OptionError, lambda: torch.zeros(f(x.detach().to("meta")).shape), "jax.lax.cond")


def test_aligned__control_flow_of_torch_runs_on_zeros_for_its_shapes() -> None:
    """A compiled call compares the shapes of its results with those of the run on zeros."""
    x = jax.numpy.asarray(X)
    same(jax.jit(aligned(backend="torch")(lambda x: x if x.sum() > 0 else -x))(x), X)
    same(jax.jit(jax.grad(aligned(backend="torch")(lambda x: x[x > 1].square().sum())))(x), 2 * X * (X > 1))
    cases: list[tuple[Callable[[Any], Any], str]] = [
        (lambda x: x[x > 1], "depends on the values"),
        (lambda x: x[x >= 0], "declared"),
    ]
    for chosen, reason in cases:
        run = jax.jit(aligned(backend="torch")(chosen))
        refused(OptionError, lambda: jax.block_until_ready(run(x - 1)), reason, "result=")


def test_aligned__shapes_are_declared_for_compiled_code() -> None:
    """Shapes are declared for compiled code."""
    f = aligned(backend="numpy")(lambda x: x + 1)
    v, t = jax.numpy.asarray(X), torch.from_numpy(X)
    refused(OptionError, lambda: torch.compile(f, fullgraph=True, backend="eager")(t), "result=")
    for wrong in (lambda x: np.empty((*x.shape, 2)), lambda x: np.empty(x.shape, "f4"), lambda x: [x, x]):
        g = aligned(backend="numpy", result=wrong)(lambda x: x + 1)
        same(g(v), X + 1)
        refused(OptionError, lambda: jax.jit(g)(v), "declared")
        torch._dynamo.reset()
        refused(OptionError, lambda: torch.compile(g, fullgraph=True, backend="eager")(t), "declared")
    stack = aligned(backend="numpy", result=lambda x, n: np.empty((n, *x.shape)))(
        lambda x, n: np.stack([x] * n)
    )
    assert jax.jit(lambda v: stack(v, 3))(v).shape == (3, 4)
    lost = aligned(backend="numpy", signature="(n)->(k)")(lambda x: x)
    refused(OptionError, lambda: jax.jit(lost)(v), "result=")


@pytest.mark.parametrize(
    "given",
    [{"vjp": 3}, {"jvp": "forward"}, {"result": 3}]
    + [{"signature": text} for text in ("n->n", "(n)", "(n)->", "(n)->(n)->(n)", "(n),->(n)", 3)],
    ids=str,
)
def test_aligned__options_are_checked_when_a_function_is_decorated(given: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(given))}="):
        aligned(backend="numpy", **given)(np.sin)


def test_aligned__gradients_of_arguments_that_are_broadcast_are_summed() -> None:
    """Gradients of arguments that are broadcast are summed."""
    f = aligned(backend="numpy", signature="(),()->()", vjp=lambda g, y, a, b: (g * b, g * a))(
        lambda a, b: a * b
    )
    a, b = (torch.rand(*shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 1), (2,)))
    for found, right in zip(
        torch.autograd.grad(f(a, b).sum(), (a, b)), torch.autograd.grad((a * b).sum(), (a, b)), strict=True
    ):
        same(found, right)
    bare = aligned(backend="numpy", vjp=lambda g, y, a, b: (g * b, g * a))(lambda a, b: a * b)
    refused(OptionError, lambda: torch.autograd.grad(bare(a, b).sum(), (a, b)), "shape")


def test_aligned__result_without_the_axes_of_the_signature_is_refused() -> None:
    """A result without the axes of the signature is refused."""
    t = torch.from_numpy(X)
    for fn in (np.sum, lambda x: (x, x), lambda x: x[None]):
        f = aligned(backend="numpy", signature="()->()")(fn)
        refused(OptionError, lambda: torch.vmap(f)(t), "announces")
    padded = aligned(backend="numpy", signature="(n)->(k)")(lambda x: np.concatenate([x, x], -1))
    assert torch.vmap(padded)(t[None]).shape == (1, 8)


def test_aligned__jax_in_the_callback_of_jax_is_refused_and_does_not_hang() -> None:
    """JAX in the callback of JAX is refused and does not hang."""
    inner = aligned(backend="jax")(lambda x: x + 1)
    outer = aligned(backend="torch")(lambda x: inner(x) * 2)
    v = jax.numpy.asarray(X)
    same(outer(v), (X + 1) * 2)
    same(jax.grad(lambda v: outer(v).sum())(v), 2 + 0 * X)
    with_numpy = aligned(backend="numpy", result=np.empty_like)(lambda x: inner(x) * 2)
    for f in (with_numpy, jax.vmap(with_numpy)):
        refused(OptionError, lambda: jax.jit(f)(v), "jax_cpu_enable_async_dispatch")


def test_aligned__missing_dtype_names_both_ways_out() -> None:
    """A missing dtype names the option of `aligned` and the setting of JAX; the option gives the values."""
    with jax.enable_x64(False):
        for x in (leaf(), leaf().detach(), X):
            with pytest.raises(DTypeError, match=r"^at argument 0 of ") as caught:
                aligned(backend="jax")(lambda x: x)(x)
            option, setting = caught.value.hint.split(", or ")
            assert setting.startswith("jax.config.update('jax_enable_x64'")
            made = eval(option.replace("...", "lambda x: x * 2, backend='jax'"), {"aligned": aligned})(x)
            same(made, 2 * X, 1e-6)
    with pytest.raises(DTypeError) as caught:
        aligned(backend="torch")(lambda x: x)(X.astype("longdouble"))
    assert caught.value.hint == "aligned(..., dtype='nearest')"
    of_torch = eval(
        caught.value.hint.replace("...", "lambda x: x * 2, backend='torch'"), {"aligned": aligned}
    )
    same(of_torch(X.astype("longdouble")), 2 * X)
    with jax.enable_x64(False):
        with pytest.raises(DTypeError, match="object is not a numeric dtype"):
            aligned(backend="jax")(lambda x: x)(np.array([None]))
        with pytest.raises(xbridge.ValueLossError):
            aligned(backend="jax", dtype="default")(lambda a, i: a)(leaf(), torch.tensor([2**40]))


def test_aligned__missing_dtype_of_a_result_names_the_option_of_the_decorator() -> None:
    """A result that JAX lacks names the function and the option, in a call and in a derivative."""
    x, chunked = jax.numpy.ones(3, "float32"), pytest.importorskip("dask.array").ones((3, 3))
    total = partial(np.sum, dtype="float64")
    f = aligned(backend="numpy", vjp=lambda g, y, x: g * np.ones_like(x))(total)
    with jax.enable_x64(False):
        for run in (lambda: f(x), lambda: jax.grad(f)(x), lambda: jax.jacrev(f)(x)):
            text = refused(DTypeError, run).splitlines()[0]
            assert "at the result of partial: cannot convert" in text
            assert "; try aligned(..., dtype='nearest'), or jax.config.update(" in text
        nearest = aligned(backend="numpy", dtype="nearest", vjp=lambda g, y, x: g * np.ones_like(x))(total)
        same(jax.grad(nearest)(x), np.ones(3))
    narrows = aligned(backend="torch", dtype="default", signature="(n)->()")(lambda x: x.sum(-1))
    (text, *_) = refused(DTypeError, lambda: narrows(chunked)).splitlines()
    assert text.endswith("; try aligned(..., dtype='float32')")


def test_aligned__missing_dtype_in_a_trace_names_the_way_out() -> None:
    """A trace for a dtype that torch lacks is refused, and `dtype="nearest"` takes the array."""
    x = jax.numpy.ones(2, "float8_e3m4")
    text = refused(DTypeError, lambda: jax.jit(aligned(backend="torch")(lambda x: x))(x))
    assert "torch has no float8_e3m4; try aligned(..., dtype='nearest')" in text
    assert jax.jit(aligned(backend="torch", dtype="nearest")(lambda x: x))(x).tolist() == [1, 1]


@pytest.mark.slow  # an interpreter that imports JAX
def test_hint__of_a_callback_is_followed_before_jax_computes() -> None:
    """A callback of JAX computes with JAX once asynchronous dispatch is off, as the refusal advises."""
    status, lines = run(
        """
        import jax, numpy as np, xbridge
        jax.config.update('jax_cpu_enable_async_dispatch', False)
        inner = xbridge.aligned(backend="jax")(lambda x: x + 1)
        outer = xbridge.aligned(backend="numpy", result=np.empty_like)(lambda x: inner(x) * 2)
        print(jax.jit(outer)(jax.numpy.ones(2)).tolist())
        """
    )
    assert (status, lines) == (0, ["[4.0, 4.0]"])
