"""Inside JAX's transforms: tracers pass through, and what is concrete is converted as anywhere else."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import xbridge

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402 -- once JAX is there

from xbridge.backends import jax as backend  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from jax import Array

    Fn = Callable[[Array], Any]


@cache
def matrix() -> Array:
    """An array of JAX's, which starts it: not while tests are collected."""
    return jnp.arange(6.0).reshape(2, 3)


@cache
def large() -> Array:
    return jnp.full(3, 1e30)


@pytest.fixture(autouse=True)
def concrete() -> None:
    """Make both arrays before a trace begins, which would trace them."""
    matrix()
    large()


def each(fn: Fn, x: Array) -> Any:
    return jax.vmap(fn)(jnp.stack([x, x]))[0]


def gradient(fn: Fn, x: Array) -> Any:
    return jax.grad(lambda x: fn(x).sum().astype("f4"))(x)


def twice(fn: Fn, x: Array) -> Any:
    return jax.jit(jax.vmap(fn))(jnp.stack([x, x]))[0]


TRANSFORMS: dict[str, Callable[[Fn, Array], Any]] = {
    "jit": lambda fn, x: jax.jit(fn)(x),
    "grad": gradient,
    "vmap": each,
    "jvp": lambda fn, x: jax.jvp(fn, (x,), (x,)),
    "linearize": lambda fn, x: jax.linearize(fn, x)[0],
    "vmap in jit": twice,
    "scan": lambda fn, x: jax.lax.map(fn, jnp.stack([x, x])),
}


@pytest.fixture(params=TRANSFORMS)
def inside(request: pytest.FixtureRequest) -> Callable[[Fn], Any]:
    """Runs a function on a tracer."""
    return lambda fn: TRANSFORMS[request.param](fn, matrix())


def test_dtype_of__works_on_a_tracer(inside: Callable[[Fn], Any]) -> None:
    """A tracer answers the same questions as an array."""

    def fn(x: Array) -> Array:
        assert (xbridge.backend_of(x), xbridge.dtype_of(x), xbridge.device_of(x)) == ("jax", "float32", "cpu")
        assert xbridge.array_namespace(x, 1) is jnp
        return x

    inside(fn)


def test_asarray__returns_an_unchanged_tracer(inside: Callable[[Fn], Any]) -> None:
    """A tracer that needs no change is returned itself."""

    def fn(x: Array) -> Any:
        assert xbridge.asarray(x) is x
        assert xbridge.to_backend(x, "jax", device="cpu", dtype="float32", copy=False, grad="keep") is x
        assert xbridge.asarray(x, dtype="default") is x
        assert xbridge.align(x, 2.0) == (x, 2.0)
        return x

    inside(fn)


def test_asarray__steps_on_a_tracer_are_traced(inside: Callable[[Fn], Any]) -> None:
    """Copies, casts and stacks of a tracer become part of the program."""
    steps: tuple[Fn, ...] = (
        lambda x: xbridge.asarray(x, copy=True),
        lambda x: xbridge.to_backend(x, "jax", dtype="float16"),
        lambda x: xbridge.asarray([x, x]),
        lambda x: xbridge.asarray([x, np.ones((2, 3), "f4"), matrix()]),
        lambda x: xbridge.asarray([x.sum(), 1], dtype="float32"),
    )

    def fn(x: Array) -> Any:
        for step in steps:
            assert isinstance(step(x), jax.core.Tracer)
        return step(x)

    inside(fn)


@pytest.mark.slow
def test_to_backend__concrete_array_becomes_a_constant(inside: Callable[[Fn], Any]) -> None:
    """A concrete array converted inside a transform is a constant, safe from later writes."""
    torch = pytest.importorskip("torch")
    kept: list[Array] = []

    def fn(x: Array) -> Any:
        a, t = np.full((2, 3), 2, "f4"), torch.full((2, 3), 3.0)
        made = [
            xbridge.to_backend(a, "jax"),
            xbridge.to_backend(a, "jax", copy=True),
            xbridge.to_backend(a, "jax", dtype="float16"),
            xbridge.to_backend(a, "jax", dtype="int32", device="cpu"),
            xbridge.asarray(t, like=x),
            xbridge.asarray([[1, 2, 3], [4, 5, 6]], like=x),
            xbridge.asarray(matrix(), copy=True),
            xbridge.asarray(matrix(), dtype="bfloat16"),
            xbridge.asarray([matrix(), matrix()]),
            backend.materialize(matrix()),
        ]
        a[...] = 7
        t[...] = 7
        assert not [y for y in made if isinstance(y, jax.core.Tracer)]
        kept[:] = made
        return sum((x * y).sum() for y in made).astype("f4") * x

    inside(fn)
    assert [y.ravel()[1].item() for y in kept] == [2, 2, 2, 2, 3, 2, 1, 1, 1, 1]


def test_to_numpy__concrete_array_inside_a_transform(inside: Callable[[Fn], Any]) -> None:
    """A concrete array leaves JAX inside a transform as it does outside."""

    def fn(x: Array) -> Array:
        a = xbridge.to_numpy(matrix())
        assert a.ctypes.data == matrix().unsafe_buffer_pointer()
        assert not a.flags.writeable
        assert xbridge.to_numpy(matrix(), copy=True, dtype="int64").tolist() == [[0, 1, 2], [3, 4, 5]]
        assert xbridge.to_list(matrix()) == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
        with pytest.raises(xbridge.ValueLossError):
            backend.check_cast(large(), "float16")
        return x

    inside(fn)


def test_to_numpy__refuses_a_tracer(inside: Callable[[Fn], Any]) -> None:
    """A tracer has no values, so no conversion takes it out of JAX."""

    def fn(x: Array) -> Array:
        for call in (
            xbridge.to_numpy,
            xbridge.to_list,
            lambda x: xbridge.to_backend(x, "numpy", dtype="int32"),
            lambda x: xbridge.asarray([x], backend="numpy"),
            lambda x: xbridge.shares_memory(x, x),
        ):
            with pytest.raises(
                xbridge.UnsupportedArrayError,
                match=r"has no values yet; try a function with @xbridge",
            ):
                call(x)
        return x

    inside(fn)


def test_check_cast__refuses_a_tracer() -> None:
    """The values of a tracer cannot be checked, and the error suggests to name the dtype."""

    def fn(x: Array) -> Array:
        with pytest.raises(xbridge.DTypeError, match="a tracer has no values to check; try dtype='float16'"):
            backend.check_cast(x, "float16")
        return x

    jax.jit(fn)(matrix())


@pytest.mark.slow
def test_asarray__gradients_flow_unless_detached() -> None:
    """Gradients flow through copies, casts and stacks until they are detached."""
    flows: dict[str, Fn] = {
        "copy": lambda x: xbridge.asarray(x, copy=True),
        "astype": lambda x: xbridge.asarray(x, dtype="bfloat16", grad="keep"),
        "stack": lambda x: xbridge.asarray([x, matrix()]),
        "small": lambda x: xbridge.asarray([x.astype("bfloat16"), matrix().astype("bfloat16")]),
        "constant": lambda x: x * xbridge.to_backend(np.ones((2, 3), "f4"), "jax"),
    }
    for name, fn in flows.items():
        for wrapped in (fn, jax.jit(fn)):
            assert gradient(wrapped, matrix()).tolist() == [[1.0] * 3] * 2, name
    for options in ({"grad": "detach"}, {"requires_grad": False}, {"grad": "detach", "copy": True}):
        cut = partial(xbridge.asarray, **options)
        assert gradient(lambda x, cut=cut: x + cut(x), matrix()).tolist() == [[1.0] * 3] * 2  # type: ignore[misc]


def test_asarray__refuses_to_lose_a_gradient() -> None:
    """A cast that would cut the gradient is refused if the caller wants to keep it."""

    def fn(x: Array) -> Array:
        with pytest.raises(xbridge.GradientError, match="no gradient flows through int32"):
            xbridge.asarray(x, dtype="int32", grad="keep")
        with pytest.raises(xbridge.GradientError, match="JAX differentiates functions, not arrays"):
            xbridge.asarray(x, requires_grad=True)
        return x

    gradient(fn, matrix())


# -- callbacks of compiled code, where JAX may wait for itself --------------------------------------

IN_CALLBACK: dict[str, Callable[[Any], Any]] = {
    "dtype": lambda x: xbridge.asarray(x, dtype="float16"),
    "copy": lambda x: xbridge.asarray(x, copy=True),
    "a list": lambda x: xbridge.asarray([x, x]),
    "a cast": lambda x: xbridge.asarray(x, dtype="default", like=x[0]),
}


def call_back(fn: Callable[[Any], Any]) -> Any:
    shape = jax.eval_shape(lambda: jnp.ones(2))
    return jax.jit(lambda x: jax.pure_callback(fn, shape, x))(jnp.ones(2))


@pytest.mark.parametrize("call", IN_CALLBACK)
def test_refuse_in_callback__conversion_within_jax(call: str) -> None:
    """What JAX would compute is refused in place of a wait that may have no end."""
    seen: list[Exception] = []

    def fn(x: Any) -> Any:
        try:
            IN_CALLBACK[call](x)
        except xbridge.OptionError as error:
            seen.append(error)
        return xbridge.to_numpy(x)

    assert call_back(fn).tolist() == [1.0, 1.0]
    assert len(seen) == (call != "a cast")


def test_refuse_in_callback__conversion_to_the_host() -> None:
    """The advice, a conversion to NumPy, is possible there."""
    assert call_back(lambda x: xbridge.to_numpy(x, dtype="float64").astype("f4")).tolist() == [1.0, 1.0]
    assert call_back(lambda x: np.asarray(xbridge.to_jax(np.asarray(x)))).tolist() == [1.0, 1.0]
