"""Results of calls that are followed: numbers are arrays, dicts are read by key, dtypes are the caller's."""

from __future__ import annotations

import functools
import gc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from crossed import X, aligned, refused, same, total

import xbridge
from xbridge import DTypeError, GradientError, OptionError, UnsupportedArrayError, ValueLossError

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

if TYPE_CHECKING:
    from collections.abc import Callable

NARROW = True

DECLARED: dict[str, Any] = {
    "not declared": {},
    "result": {"result": lambda x: np.empty((), x.dtype)},
    "a number as a result": {"result": lambda x: 0.0},
    "signature": {"signature": "()->()"},
}


def square(**more: Any) -> Callable[..., Any]:
    """A function of NumPy that returns a Python float."""
    made: Callable[..., Any] = aligned(
        backend="numpy", vjp=lambda g, y, x: g * 2 * x, jvp=lambda t, y, x: t[0] * 2 * x, **more
    )(lambda x: float(x**2))
    return made


@pytest.mark.parametrize("declared", DECLARED)
def test_aligned__number_is_tracked(declared: str) -> None:
    """A Python float of a tracked call is a 0-d array with a gradient, as precise as its argument."""
    f = square(**DECLARED[declared])
    x = torch.tensor(3.0, requires_grad=True)
    (f(x) + x).backward()
    assert x.grad == 7
    wide = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    assert (f(wide).shape, f(wide).dtype) == ((), torch.float64)
    assert torch.autograd.gradcheck(f, (wide,), check_forward_ad=True)
    assert jax.grad(f)(jnp.float32(3)) == 6
    assert jax.jvp(f, (jnp.float32(3),), (jnp.float32(2),)) == (9, 12)
    if declared != "not declared":
        assert jax.jit(jax.value_and_grad(f))(3.0) == (9, 6)
        compiled = torch.compile(f, fullgraph=True, backend="eager")
        assert torch.autograd.grad(compiled(x), x)[0] == 6
    assert type(f(x.detach())) is float  # as it is, where nothing is tracked


@pytest.mark.parametrize("declared", ["not declared", "result", "a number as a result"])
def test_aligned__number_of_each_example(declared: str) -> None:
    """Each example of a batch has its own number, and its own gradient."""
    f, three = square(**DECLARED[declared]), np.arange(3, dtype="f4")
    same(torch.vmap(f)(torch.from_numpy(three)), three**2)
    same(torch.vmap(torch.func.grad(f))(torch.from_numpy(three)), 2 * three)
    transform = (lambda f: f) if declared == "not declared" else jax.jit
    same(transform(jax.vmap(f))(jnp.asarray(three)), three**2)
    same(transform(jax.vmap(jax.grad(f)))(jnp.asarray(three)), 2 * three)


def test_aligned__integer_keeps_its_value() -> None:
    """An integer that the caller's dtype cannot hold is an error, wherever it is narrowed."""
    of_jax = aligned(backend="jax")(lambda x, n: (x.sum(), x.size * n))
    x = torch.ones(2, requires_grad=True)
    assert of_jax(x, 3)[1].tolist() == 6
    of_torch = aligned(backend="torch", dtype="nearest")(lambda x: torch.tensor(2**40) + x.long())
    of_numpy = aligned(backend="numpy")(lambda x: 2**40)
    assert int(of_numpy(x[0])) == 2**40
    ways: list[Callable[[], Any]] = [
        lambda: of_jax(x, 2**40),
        lambda: of_torch(jnp.ones(2)),
        lambda: jax.vmap(of_torch)(jnp.ones(2)),
        lambda: jax.vmap(of_numpy)(jnp.ones(2)),
    ]
    for run in ways:
        with pytest.raises(ValueLossError):
            run()
    with pytest.raises(jax.errors.JaxRuntimeError, match="ValueLossError"):
        np.asarray(jax.jit(of_torch)(jnp.ones(2)))


def test_aligned__numbers_of_every_kind() -> None:
    """Numbers in a followed result are arrays with the caller's default dtypes; text and None stay."""

    def f(x: Any) -> dict[str, Any]:
        return {"f": float(x), "i": 3, "b": True, "c": 2j, "s": np.float64(x), "t": "text", "n": None}

    made = aligned(backend="numpy")(f)(torch.tensor(1.0, requires_grad=True))
    dtypes = [str(made[key].dtype)[6:] for key in "fibcs"]
    assert dtypes == ["float32", "int64", "bool", "complex64", "float64"]
    assert (made["t"], made["n"]) == ("text", None)
    assert made["f"].requires_grad
    assert not made["i"].requires_grad
    more = aligned(backend="numpy", dtype="nearest", result=f)(f)
    found: dict[str, Any] = {}
    jax.jit(lambda x: found.update(more(x)))(jnp.float32(1))
    assert [str(found[key].dtype) for key in "fibcs"] == ["float32", "int32", "bool", "complex64", "float32"]
    of_ints = aligned(backend="numpy")(lambda i: float(i) / 2)
    assert torch.vmap(of_ints)(torch.arange(3)).tolist() == [0, 0.5, 1]
    assert jax.vmap(of_ints)(jnp.arange(3)).tolist() == [0, 0.5, 1]


# -- what is declared, and what the function returns ---------------------------------------------------------


def swapped(**more: Any) -> Callable[..., Any]:
    def f(x: Any) -> dict[str, Any]:
        return {"a": x * 2, "b": x * 3, "in": {"c": [x, x * 5], "d": x * 7}}

    def declared(x: Any) -> dict[str, Any]:
        return {"in": {"d": x, "c": [x, x]}, "b": x, "a": x}

    made: Callable[..., Any] = aligned(
        backend="numpy",
        result=declared,
        vjp=lambda g, y, x: g["a"] * 2 + g["b"] * 3 + g["in"]["c"][1] * 5 + g["in"]["d"] * 7,
        **more,
    )(f)
    return made


def test_aligned__declared_dict_with_keys_in_another_order() -> None:
    """Compiled code reads a dict by its keys, in whatever order they are declared."""
    f, x = swapped(), np.ones(2, "f4")

    def pick(y: Any) -> Any:
        return y["a"] + 10 * y["b"] + 100 * y["in"]["c"][1] + 1000 * y["in"]["d"]

    v, t = jnp.asarray(x), torch.from_numpy(x).requires_grad_()
    same(jax.jit(lambda v: pick(f(v)))(v), 7532 * x)
    same(jax.jit(jax.vmap(lambda v: pick(f(v))))(v[None]), 7532 * x[None])
    same(jax.jit(jax.grad(lambda v: pick(f(v)).sum()))(v), (2 * 1 + 3 * 10 + 5 * 100 + 7 * 1000) * x)
    y = torch.compile(lambda t: pick(f(t)), fullgraph=True, backend="eager")(t)
    same(y, 7532 * x)
    same(torch.autograd.grad(y.sum(), t)[0], 7532 * x)


@pytest.mark.parametrize(
    "declared",
    [
        lambda x: {"a": x, "c": x, "t": "yes"},
        lambda x: {"a": x, "b": x, "t": "no"},
        lambda x: (x, x, "yes"),
        lambda x: {"a": x, "b": x, "t": x},
    ],
    ids=["other keys", "another text", "a tuple", "an array"],
)
def test_aligned__declared_structure_is_another(declared: Callable[..., Any]) -> None:
    """A result with other containers, keys or constants than declared is an error in compiled code."""
    f = aligned(backend="numpy", result=declared)(lambda x: {"a": x, "b": x, "t": "yes"})

    def arrays(x: Any) -> list[Any]:
        return [y for y in jax.tree.leaves(f(x)) if type(y) is not str]

    with pytest.raises(jax.errors.JaxRuntimeError, match=r"OptionError: cannot use the result of .*const"):
        jax.tree.map(np.asarray, jax.jit(arrays)(1.0))


# -- dtypes of results ---------------------------------------------------------------------------------------


@pytest.fixture
def narrow() -> Any:
    with jax.enable_x64(False):
        yield


WAYS: dict[str, Callable[..., Any]] = {
    "direct": lambda f: f,
    "vmap": jax.vmap,
    "jit": jax.jit,
    "jit of vmap": lambda f: jax.jit(jax.vmap(f)),
    "grad": lambda f: lambda x: jax.value_and_grad(lambda x: (f(x)[0].sum(), f(x)), has_aux=True)(x)[0][1],
}


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["nearest", "default"])
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_aligned__dtype_of_results_in_every_way(name: str, dtype: str, way: str) -> None:
    """`dtype="nearest"` and `"default"` hold for results of followed, batched and compiled calls."""

    def of_torch(x: Any) -> Any:
        return x * 2, x.argmax(-1), (x * 3).double()

    def of_numpy(x: Any) -> Any:
        return x * 2, x.argmax(-1), (x * 3).astype("f8")

    fn = of_torch if name == "torch" else of_numpy
    more = {"result": of_numpy, "vjp": lambda g, y, x: g[0] * 2 + g[2] * 3} if name == "numpy" else {}
    x = np.eye(3, dtype="f4")[None]
    made = WAYS[way](aligned(backend=name, dtype=dtype, **more)(fn))(jnp.asarray(x))
    assert [str(y.dtype) for y in made] == ["float32", "int32", "float32"]
    for y, right in zip(made, of_numpy(x), strict=True):
        same(y, right)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_aligned__gradient_of_a_result_that_is_narrowed(name: str) -> None:
    """A result that goes back in 32 bits has its gradient and its tangent in 32 bits."""
    more = {"vjp": lambda g, y, x: g * 2 * x, "jvp": lambda t, y, x: t[0] * 2 * x} if name == "numpy" else {}
    f = aligned(backend=name, dtype="nearest", result=lambda x: np.empty(x.shape), **more)(
        lambda x: x.double() ** 2 if name == "torch" else x.astype("f8") ** 2
    )
    x, three = jnp.arange(3.0), np.arange(3, dtype="f4")
    for transform in (lambda f: f, jax.jit):
        same(transform(jax.grad(lambda x: f(x).sum()))(x), 2 * three)
        _, t = transform(lambda x: jax.jvp(f, (x,), (x,)))(x)
        same(t, 2 * three**2)
        assert t.dtype == "float32"


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("dtype", [None, "float32"])
def test_aligned__dtype_that_the_caller_lacks(dtype: str | None) -> None:
    """A 64-bit result is an error while JAX traces, with the option that narrows it."""
    f = aligned(backend="torch", dtype=dtype)(lambda x: x.argmax(-1))
    g = aligned(backend="numpy", dtype=dtype, result=lambda x: x.argmax(-1))(lambda x: x.argmax(-1))
    for run in (f, g):
        with pytest.raises(DTypeError, match=r"dtype='nearest'"):
            jax.jit(run)(jnp.eye(3))
        with pytest.raises(DTypeError, match=r"dtype='nearest'"):
            jax.vmap(run)(jnp.eye(3))


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("dtype", [None, "float64"])
def test_aligned__dtype_that_the_library_lacks(dtype: str | None) -> None:
    """The error names the argument of a tracked call, as any other does; JAX would truncate a result."""
    f = aligned(backend="jax", dtype=dtype)(lambda x, y: y)
    for x in (torch.ones(2), torch.ones(2, requires_grad=True)):
        y = torch.ones(2, dtype=torch.float64)
        with pytest.raises(DTypeError, match="at argument 1 of" if dtype is None else "at argument 0 of"):
            f(x, y)
    result = aligned(backend="jax", dtype=dtype)(lambda _: np.array([2**40 + 1]))
    refused(DTypeError, lambda: result(torch.ones(4, requires_grad=True)), "nearest")


# -- results that hide arrays --------------------------------------------------------------------------------


class _Box:
    def __init__(self, x: Any) -> None:
        self.x = x

    def get(self) -> Any:
        return self.x


async def _later(x: Any) -> Any:
    return x


HIDING: dict[str, Callable[[Any], Any]] = {
    "a partial": lambda x: functools.partial(abs, x),
    "a closure": lambda x: lambda: x,
    "an object": lambda x: _Box([x]),
    "a bound method": lambda x: _Box(x).get,
    "a coroutine": lambda x: _later([x]),
}


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("hiding", HIDING)
@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_aligned__object_that_holds_arrays(name: str, hiding: str) -> None:
    """An object that holds arrays, or gives them later, is no result of a followed call."""
    f = aligned(backend=name)(HIDING[hiding])
    run: Callable[[], Any] = (
        (lambda: f(torch.ones((), requires_grad=True)))
        if name != "torch"
        else (lambda: jax.grad(lambda x: (f(x), x)[1])(1.0))
    )
    with pytest.raises((UnsupportedArrayError, OptionError), match=r"in an? |result|later"):
        run()
    if hiding == "a coroutine":
        gc.collect()  # its warning belongs to this test


def test_aligned__keep_and_a_graph_of_another_library() -> None:
    """With `grad="keep"`, the graph of a second library is not cut in silence."""
    f = aligned(backend="torch", grad="keep")(lambda a, b: a * b)
    w = torch.ones(2, requires_grad=True)
    with pytest.raises(GradientError, match="argument 1"):
        jax.grad(lambda v: f(v, w).sum())(jnp.ones(2))
    same(jax.grad(lambda v: f(v, w.detach()).sum())(jnp.ones(2)), np.ones(2, "f4"))


class Marked(np.ndarray):
    """Numbers that mean something beside."""


FOREIGN: dict[str, Any] = {
    "a mask": np.ma.masked_array(X, X > 1),
    "a subclass": X.view(Marked),
    "objects": X.astype(object),
}


@pytest.mark.parametrize("kept", FOREIGN.values(), ids=list(FOREIGN))
@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
@pytest.mark.usefixtures("wide64")
def test_aligned__result_that_would_lose_its_meaning_is_refused(name: str, kept: Any) -> None:
    """A tracked call refuses what a direct one refuses, with its own error."""
    f = aligned(backend=name, result=lambda *_: X)(lambda *_: kept)
    g = aligned(backend="numpy", vjp=lambda *_: kept)(np.sin)
    t, v = torch.from_numpy(X.copy()), jax.numpy.asarray(X)
    calls = [lambda: f(t.requires_grad_()), lambda: torch.vmap(f)(t[None])] if name != "torch" else []
    if name != "jax":
        calls += [lambda: jax.vjp(f, v), lambda: jax.vmap(f)(v[None])]
    if kept.dtype != object:  # whose numbers are cast to those of the argument
        calls += [lambda: jax.grad(total(g))(v)]
    for call in calls:
        refused(DTypeError if kept.dtype == object else UnsupportedArrayError, call)


@pytest.mark.parametrize("kept", [X[::-1], X.astype(">f8")], ids=["reversed", "big-endian"])
@pytest.mark.usefixtures("wide64")
@pytest.mark.parametrize("name", ["torch", "jax"])
def test_aligned__tracked_result_may_be_any_array_of_numpy(name: str, kept: Any) -> None:
    """A function may return arrays of NumPy, in each layout and byte order, as in a direct call."""
    f = aligned(backend=name)(lambda _: kept)
    made = f(torch.ones(4).requires_grad_()) if name == "jax" else jax.jit(f)(jax.numpy.ones(4))
    same(made, kept)


@pytest.mark.usefixtures("wide64")
@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("caller", ["numpy", "torch", "jax"])
def test_aligned_restore__results_of_the_named_dtype_have_that_of_the_caller(
    library: str, caller: str
) -> None:
    """Doubles go in, and the caller's dtype comes out; a result of another dtype keeps it."""

    def f(x: Any) -> Any:
        assert str(x.dtype).endswith("float64")
        return {"y": x * x, "positive": [x > 0]}

    g = aligned(backend=library, dtype="float64", restore=True)(f)
    for dtype in ("float32", "float64"):
        made = g(xbridge.asarray(np.array([-1, 2], dtype), backend=caller))
        assert [xbridge.backend_of(y) for y in (made["y"], *made["positive"])] == [caller] * 2
        assert [xbridge.dtype_of(y) for y in (made["y"], *made["positive"])] == [dtype, "bool"]
        assert xbridge.to_list(made["y"]) == [1, 4]


@pytest.mark.usefixtures("wide64")
def test_aligned_restore__keeps_the_graph_of_tracked_arrays() -> None:
    """The casts are part of the graph, and of compiled programs, so gradients have the caller's dtype."""
    f = aligned(backend="jax", dtype="float64", restore=True)(lambda x: x * x)
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = f(x)
    y.sum().backward()
    assert (y.dtype, x.grad.dtype, x.grad.tolist()) == (torch.float32, torch.float32, [2, 4])
    compiled = torch.compile(f, fullgraph=True, backend="eager")
    assert compiled(x.detach()).dtype == torch.float32
    g = aligned(backend="torch", dtype="float64", restore=True)(lambda x: x * x)
    slope = jax.jit(jax.grad(lambda x: g(x).sum()))(jax.numpy.ones(2, "float32"))
    assert (slope.dtype, slope.tolist()) == ("float32", [2, 2])


@pytest.mark.usefixtures("wide64")
@pytest.mark.parametrize("caller", ["numpy", "torch", "jax"])
def test_aligned_restore__keeps_fractions_where_no_array_is_inexact(caller: str) -> None:
    """Integers and booleans cannot hold the result; the first array that can decides."""
    half = aligned(backend="numpy", dtype="float64", restore=True)(lambda x, y=0: x / 2 + y)
    for dtype in ("int64", "bool"):
        x = xbridge.asarray(np.array([0, 1], dtype), backend=caller)
        made = half(x)
        assert (xbridge.dtype_of(made), xbridge.to_list(made)) == ("float64", [0, 0.5])
        y = xbridge.asarray(np.array([0, 1], "float32"), backend=caller)
        made = half(x, y)
        assert (xbridge.dtype_of(made), xbridge.to_list(made)) == ("float32", [0, 1.5])
    if caller == "jax":
        like = lambda x: np.empty(x.shape)  # noqa: E731 -- the shape of a result
        made = jax.jit(aligned(backend="numpy", dtype="float64", restore=True, result=like)(lambda x: x / 2))(
            x
        )
        assert (made.dtype, made.tolist()) == ("float64", [0, 0.5])


@pytest.mark.parametrize("dtype", [None, "nearest", "default", "int64"])
def test_aligned_restore__needs_a_named_dtype_of_floats(dtype: str | None) -> None:
    """Without a dtype there is nothing to undo, and integers would be rounded to the caller's floats."""
    with pytest.raises(OptionError, match=r"dtype= names no dtype of floats"):
        aligned(dtype=dtype, restore=True)


@pytest.mark.usefixtures("wide64")
@pytest.mark.parametrize("library", ["numpy", "jax"])
def test_aligned__mapping_of_dtypes_holds_for_tracked_arrays(library: str) -> None:
    """Arrays of a dtype that is mapped are cast within the graph, and others keep theirs."""
    seen: list[str] = []

    def f(x: Any, y: Any) -> Any:
        seen.extend(map(xbridge.dtype_of, (x, y)))
        return x + y

    given = {"vjp": lambda g, z, x, y: (g, g)} if library == "numpy" else {}
    call = aligned(backend=library, dtype={"float64": "float32"}, **given)(f)
    x, y = torch.ones(2, dtype=torch.float64, requires_grad=True), torch.ones(2, dtype=torch.float16)
    call(x, y).sum().backward()
    assert (seen[:2], x.grad.dtype) == (["float32", "float16"], torch.float64)
