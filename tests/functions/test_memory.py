"""A function cannot write to its caller's arrays, and results share no memory with arguments or constants."""

from __future__ import annotations

from array import array
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from crossed import X, aligned, host, leaf, same, total
from toylib import Toy, make_backend

import xbridge

if TYPE_CHECKING:
    from collections.abc import Callable

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")


def raw(x: Any) -> bytes:
    return bytes(host(x).tobytes())


def of_strict() -> Any:
    return pytest.importorskip("array_api_strict").asarray(X.copy())


def of_toylib() -> Any:
    xbridge.register_backend("toylib", make_backend(), replace=True)
    return Toy(X.copy())


SOURCES: dict[str, Callable[[], Any]] = {
    "numpy": X.copy,
    "torch": lambda: torch.from_numpy(X.copy()),
    "a leaf": leaf,
    "jax": lambda: jax.numpy.asarray(X),
    "dask": lambda: pytest.importorskip("dask.array").from_array(X.copy(), chunks=2),
    "array_api_strict": of_strict,
    "toylib": of_toylib,
    "a buffer": lambda: array("d", X.tolist()),
    "a series": lambda: pytest.importorskip("pandas").Series(X),
}


def overwritten(a: Any) -> Any:
    """The argument, overwritten as its library does it."""
    writable = a.data if isinstance(a, Toy) else a
    with suppress(ValueError, RuntimeError):  # it is read-only
        writable[...] = 9
    return a


@pytest.mark.usefixtures("own_registry")
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside an array of NumPy"])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("library", ["numpy", "torch", "array_api_strict", "toylib"])
def test_aligned__function_cannot_write_to_arguments_of_another_library(
    library: str, source: str, *, beside: bool
) -> None:
    """Whatever the pair of libraries, and however often it is called, the caller's memory stays."""
    SOURCES.get(library, X.copy)()  # registers it
    names = ("a", "b") if source in ("a buffer", "a series") else None
    f = aligned(backend=library, arrays=names)(lambda a, b=None: overwritten(a))
    x, other = SOURCES[source](), X.copy()
    for _ in range(3):
        f(x, other) if beside else f(x)
        if source != library:
            assert xbridge.to_list(x) == X.tolist()
        assert other.tolist() == X.tolist()


@pytest.mark.parametrize("library", ["torch", "array_api_strict"])
def test_aligned__followed_function_cannot_write_to_arguments(library: str) -> None:
    """Nor does a rule that a graph or a transform embeds."""
    SOURCES.get(library, X.copy)()
    f = aligned(backend=library, result=np.empty_like)(lambda a: overwritten(a) * 1)
    graph, constant = leaf(), jax.numpy.asarray(X)
    for _ in range(3):
        with suppress(RuntimeError, xbridge.GradientError):  # torch refuses a write to a leaf
            f(graph)
        jax.block_until_ready(jax.jit(f)(constant))
        assert raw(graph) == raw(constant) == X.tobytes()


def test_aligned__isolation_is_the_callers_choice() -> None:
    """With `copy=False` the function shares the memory of its arguments, as the caller says."""
    x = of_strict()
    aligned(backend="torch", copy=False)(lambda t: t.mul_(2))(x)
    assert xbridge.to_list(x) == (2 * X).tolist()


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_aligned__no_result_shares_memory_with_an_argument(name: str) -> None:
    """No result shares memory with an argument."""
    for f in (lambda a: a, lambda a: a[1:], lambda a: (a, a)):
        call = aligned(backend=name)(f)
        for x in (SOURCES[source]() for source in ("numpy", "torch", "a leaf", "jax")):
            if xbridge.backend_of(x) == name:
                continue
            for _ in range(2):
                made = call(x)
                made = made[0] if isinstance(made, tuple) else made
                if xbridge.backend_of(made) != "jax":
                    assert not np.shares_memory(host(made), host(x))


def test_aligned__no_result_shares_memory_with_a_constant_of_jax() -> None:
    """No result shares memory with a constant of JAX."""
    constant = jax.numpy.ones(3)
    for x in (torch.ones(3), torch.ones(3, requires_grad=True)):
        aligned(backend="jax")(lambda a: constant)(x).detach().mul_(5)
        assert constant.tolist() == [1, 1, 1]


def in_one_graph(f: Any) -> Any:
    """The gradients of two calls, each saved for the other."""
    x, y = leaf(), torch.from_numpy(2 * X).requires_grad_()
    return torch.stack(torch.autograd.grad((f(x) + f(y)).sum(), (x, y)))


TWO = np.stack([X, 2 * X])
KEPT: dict[str, Callable[[Any], Any]] = {
    "two calls": in_one_graph,
    "torch.vmap": lambda f: torch.vmap(f)(torch.from_numpy(TWO)),
    "torch.vmap(grad)": lambda f: torch.vmap(torch.func.grad(total(f)))(torch.from_numpy(TWO)),
    "torch.compile": lambda f: torch.stack(
        torch.compile(lambda x: (f(x), f(2 * x)), backend="eager", fullgraph=True)(torch.from_numpy(X))
    ),
    "jax.vmap": lambda f: jax.vmap(f)(jax.numpy.asarray(TWO)),
    "jit(vmap(grad))": lambda f: jax.jit(jax.vmap(jax.grad(total(f))))(jax.numpy.asarray(TWO)),
}


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[:]], ids=["whole", "view"])
@pytest.mark.parametrize("way", KEPT)
def test_aligned__buffer_of_a_function_of_numpy_is_copied(way: str, view: Callable[[Any], Any]) -> None:
    """A function of NumPy, and its vjp, may fill the same buffer in each call and return it."""
    buffer, gradient = np.empty(4), np.empty(4)

    def vjp(g: Any, y: Any, _: Any) -> Any:
        return np.multiply(g, y, out=gradient)

    def exp(x: Any) -> Any:
        return view(np.exp(x, out=buffer))

    same(KEPT[way](aligned(backend="numpy", vjp=vjp, result=np.empty_like)(exp)), np.exp(TWO))


def test_aligned__result_that_nothing_keeps_is_shared() -> None:
    """What a function of NumPy made for its result is not copied, nor a view of it."""
    where = []

    def f(x: Any) -> Any:
        whole = np.stack([x, 2 * x])
        where.append(whole.ctypes.data)
        return whole[:1].reshape(-1)

    y = aligned(backend="numpy")(f)(leaf())
    assert y.data_ptr() == where[0]


def test_aligned__write_between_forward_and_backward_is_noticed_by_torch() -> None:
    """A write between forward and backward is noticed by torch."""
    a = leaf() * 1
    y = aligned(backend="jax")(jax.numpy.sin)(a)
    a.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


SINES = {
    "numpy": aligned(backend="numpy", vjp=lambda g, y, x: g * np.conj(np.cos(x)))(np.sin),
    "jax": aligned(backend="jax")(jax.numpy.sin),
}
VIEWS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda t: t.T,
    "stepped": lambda t: t[::2, 1:],
    "expanded": lambda t: t.expand(2, 4, 3),
    "flipped": lambda t: t.flip(0)[:, None],
    "conjugated": lambda t: t.conj(),
    "negated": lambda t: t.conj().imag,
}


@pytest.mark.parametrize("sine", SINES.values(), ids=SINES)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_aligned__any_layout_of_arguments_and_cotangents_gives_the_same_numbers(
    sine: Callable[[Any], Any], view: Callable[[Any], Any]
) -> None:
    """Strides, pending conjugates and pending negations of arguments and cotangents are as in torch."""
    x = torch.rand(4, 3, dtype=torch.complex128).requires_grad_()
    shape, dtype = view(x).shape, view(x).dtype
    dense = torch.rand(shape, dtype=dtype)
    for c in (dense, dense.conj(), dense.mT.contiguous().mT, torch.ones((), dtype=dtype).expand(shape)):
        (found,) = torch.autograd.grad(sine(view(x)), x, c)
        same(found, torch.autograd.grad(torch.sin(view(x)), x, c)[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_aligned__gradient_has_the_dtype_of_its_argument(dtype: str) -> None:
    """A gradient has the dtype of its argument."""
    x = torch.linspace(0.5, 2, 4).to(getattr(torch, dtype)).requires_grad_()
    y = aligned(backend="jax")(lambda t: t * t)(x)
    assert y.dtype == x.dtype
    assert torch.autograd.grad(y.sum(), x)[0].dtype == x.dtype
    v = jax.numpy.ones(3, dtype)
    assert jax.jit(jax.grad(lambda t: aligned(backend="torch")(lambda t: t * t)(t).sum()))(v).dtype == dtype


def test_callback__argument_stays_read_only() -> None:
    """Compiled code passes an array that owns its memory, and a function cannot make that writable."""

    def write(x: Any) -> Any:
        x.setflags(write=True)
        return x

    f = aligned(backend="numpy", result=np.empty_like)(write)
    with pytest.raises(jax.errors.JaxRuntimeError, match="cannot set WRITEABLE flag"):
        jax.block_until_ready(jax.jit(f)(jax.numpy.ones(3)))
