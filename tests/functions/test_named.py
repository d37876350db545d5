"""Parameters that are arrays by name, containers that hide arrays, and calls without arrays."""

from __future__ import annotations

import functools
from collections import ChainMap
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from crossed import X, aligned, same

import xbridge
from xbridge import DeviceError, DTypeError, OptionError, UnsupportedArrayError

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")


def kinds(*xs: Any, **named: Any) -> str:
    """The types and dtypes of what a function gets."""
    each = (*xs, *named.values())
    return ", ".join(f"{type(x).__name__} {getattr(x, 'dtype', '')}".strip() for x in each)


def test_aligned_arrays__lists_and_numbers_become_arrays_of_the_names_alone() -> None:
    """Lists and numbers become arrays of the names alone."""
    f = aligned(backend="torch", arrays=("x", "y"))(lambda x, names, y=None, *, k=2: kinds(x, names, y, k))
    assert f([1, 2], ["a"]) == "Tensor torch.int64, list, NoneType, int"
    assert f(1.5, [1], (2, 3), k=[1]) == "Tensor torch.float32, list, Tensor torch.int64, list"
    assert f(y=X, x=range(3), names=[1]) == "Tensor torch.int64, list, Tensor torch.float64, int"


def test_aligned__list_that_is_used_as_an_array_is_named_with_the_way_out() -> None:
    """If the function takes a list or a number for an array, a note names the argument, and what to give."""
    for x, kind in ([1.0, 2.0], "list"), (3.0, "float"):
        with pytest.raises(AttributeError) as caught:
            aligned(backend="numpy")(lambda y, x: x.sum())(X, x)
        (note,) = caught.value.__notes__
        assert note.startswith("argument 'x' of ")
        assert f"is a {kind}, which stays one; try aligned(..., arrays='x')" in note
        assert aligned(backend="numpy", arrays="x")(lambda y, x: x.sum())(X, x) == 3
    other: Any = [1.0]
    with pytest.raises(AttributeError) as caught:
        aligned(backend="numpy")(lambda x: other.sum())([1.0])
    assert not hasattr(caught.value, "__notes__")


def test_aligned_arrays__each_kind_of_parameter_can_be_named() -> None:
    """Each kind of parameter can be named; what ``*args`` and ``**kwargs`` take has no names."""

    def f(a: Any, /, b: Any, *rest: Any, c: Any, **more: Any) -> str:
        return kinds(a, b, *rest, c, **more)

    for place, name in enumerate("abc"):
        found = aligned(arrays=name)(f)([1], [1], c=[1], d=[1]).split(", ")
        assert [i for i, kind in enumerate(found) if kind == "ndarray int64"] == [place]
    g = aligned(lambda x, /, **kw: kinds(x, **kw), backend="torch", arrays="x")
    assert g([1], x=[3]) == "Tensor torch.int64, list"
    for names in ({"a": 1}, [None], 3):
        with pytest.raises(OptionError, match=r"it names no parameters of .*; try arrays=\("):
            aligned(arrays=names)(f)
    for name in ("rest", "more"):
        with pytest.raises(OptionError, match=r"no such parameter; try arrays=\('a', 'b', 'c'\)"):
            aligned(arrays=name)(f)


def test_aligned_arrays__arguments_stay_positional_or_keywords_as_they_were_given() -> None:
    """A function may take keywords alone, as wrappers and derivatives do, and it reports what is missing."""

    def f(x: Any, w: Any) -> Any:
        return (w * x).sum()

    @functools.wraps(f)
    def outer(**kwargs: Any) -> Any:
        return f(**kwargs)

    assert aligned(backend="numpy", arrays="w")(outer)(x=2.0, w=[1.0, 2.0]) == 6
    g = aligned(backend="numpy", arrays="w", vjp=lambda g, y, x, *, w: (g * w.sum(), None))(f)
    x = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    g(x, w=[2.0, 3.0]).backward()
    assert x.grad == 5
    with pytest.raises(TypeError, match=r"f\(\) missing 1 required positional argument: 'w'"):
        aligned(backend="numpy", arrays="w")(f)(X)


def test_aligned_arrays__numbers_and_lists_do_not_decide_and_have_the_default_dtype_of_what_does() -> None:
    """Numbers and lists do not decide and have the default dtype of what does."""
    seen: list[str] = []

    @aligned(backend="numpy", arrays=("x", "y"))  # type: ignore[untyped-decorator] # Any, as above
    def f(x: Any, y: Any) -> Any:
        seen.append(kinds(x, y))
        return x + y

    assert f([0.1, 0.2], torch.zeros(2)).dtype == torch.float32
    assert f([0.1, 0.2], X[:2]).dtype == "float64"
    assert f(3, jax.numpy.zeros(2, "int8")).dtype == "int64"  # JAX's default with x64
    assert seen == [
        "ndarray float32, ndarray float32",
        "ndarray float64, ndarray float64",
        "ndarray int64, ndarray int8",
    ]
    exact = aligned(backend="torch", arrays=("x", "y"), dtype="float64")(lambda x, y: x + y)
    assert exact(0.1, torch.zeros(())).item() == 0.1
    assert exact(0.1, 0).item() == 0.1
    rounded = aligned(backend="torch", arrays=("x", "y"), dtype="nearest")(lambda x, y: x + y)
    assert rounded(0.1, torch.zeros(())).dtype == torch.float32


def test_aligned_arrays__list_of_followed_arrays_keeps_its_graph() -> None:
    """A list of followed arrays keeps its graph."""
    f = aligned(backend="jax", arrays=("x", "y"))(lambda x, y: x * y)
    w = torch.from_numpy(X.copy()).requires_grad_()
    same(torch.autograd.grad(f([w, w * w], 2).sum(), w)[0], 2 + 4 * X)
    g = aligned(backend="torch", arrays="x")(lambda x: x * 2)
    same(
        jax.grad(lambda v: g([v[0], v[1] * v[1]]).sum())(jax.numpy.asarray(X)),
        [2, 4 * X[1], *[0] * (len(X) - 2)],
    )


@pytest.mark.parametrize("array", [np.ones, torch.ones, jax.numpy.ones])
def test_aligned_arrays__list_of_arrays_alone_decides(array: Any) -> None:
    """The result of a list of arrays goes to their library, if there is no other array."""
    f = aligned(backend="torch", arrays="x")(lambda x: x * 2)
    found = f([array(2), array(2)])
    assert (xbridge.backend_of(found), xbridge.to_list(found)) == (
        xbridge.backend_of(array(2)),
        [[2, 2], [2, 2]],
    )


def test_aligned_arrays__arrays_made_of_lists_have_places_in_errors_and_in_plans() -> None:
    """Arrays made of lists have places in errors and in plans."""
    f = aligned(backend="jax", arrays=("x", "y"))(lambda x, y: x * y)
    with pytest.raises(UnsupportedArrayError, match=r"^at argument 'y' of .*: cannot convert a str: "):
        f(X, y="1.0")
    with pytest.raises(DTypeError, match=r"^at argument 1 of "):
        f(X, np.array(["a"]))
    plan = xbridge.explain(f, [1.0, 2.0], torch.ones(2, requires_grad=True))
    assert (plan.caller, plan.tracked, list(plan.arguments)) == ("torch", True, ["argument 0", "argument 1"])


HIDING = [
    {X[0]},
    frozenset({X[0]}),
    {"a": X}.values(),
    {X[0]: 1}.keys(),
    {X[0]: 1},
    ChainMap({"a": X}),
    MappingProxyType({"a": [X]}),
    SimpleNamespace(a=X),
    iter([1]),
    (x for x in [1]),
]


@pytest.mark.parametrize("hiding", HIDING, ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"k": [x]}], ids=["alone", "in a dict"])
def test_aligned_arrays__arrays_are_never_passed_over_in_a_container_that_is_not_one(
    hiding: Any, wrap: Any
) -> None:
    """Arrays are never passed over in a container that is not one."""
    f = aligned(backend="torch")(lambda x, y=None: x)
    for args in ((wrap(hiding),), (wrap(hiding), X), (wrap(hiding), torch.ones(2, requires_grad=True))):
        with pytest.raises(
            UnsupportedArrayError, match=r"^at an argument of .*: cannot convert the arrays in"
        ):
            f(*args)
    for x in (X, torch.ones(2, requires_grad=True)):
        with pytest.raises(
            xbridge.XBridgeError, match=r"later than it returns|^at the result of .* the arrays in"
        ):
            aligned(backend="jax")(lambda _: wrap(hiding))(x)


def test_aligned_arrays__objects_without_arrays_are_passed_unchanged() -> None:
    """Objects without arrays of the call are passed unchanged; those of a module are its own."""
    lin = torch.nn.Linear(3, 3)
    with Path(__file__).open(encoding="utf-8") as file:
        for thing in (
            {1, 2},
            {"a": 1}.keys(),
            MappingProxyType({"a": 1}),
            SimpleNamespace(a="b"),
            *(frozenset({lin}), MappingProxyType({"model": lin}), SimpleNamespace(model=lin, n=3)),
            type("Counting", (), {"n_fields": 0})(),  # as the classes of named tuples that are made in C
            file,
            range(2),
        ):
            assert aligned(backend="torch")(lambda x, y: y)(X, thing) is thing
            assert aligned(backend="torch")(lambda y: y)(thing) is thing


def test_aligned_arrays__call_without_arrays_returns_numpys() -> None:
    """A call without arrays returns NumPy's."""
    zeros = aligned(backend="torch")(lambda n: {"zeros": torch.zeros(n), "n": n})
    made = zeros(3)
    assert (type(made["zeros"]), made["n"]) == (np.ndarray, 3)
    double = aligned(backend="jax", arrays="x")(lambda x, *, flags=(): x * 2)
    assert type(double([1, 2])) is np.ndarray
    flags = [1]
    assert aligned(backend="torch")(lambda flags: flags)(flags) is flags
    assert aligned(backend="torch")(lambda *, flags: flags)(flags=flags) is flags


def test_aligned_arrays__named_dtype_casts_a_table_as_asarray_does() -> None:
    """Missing values have no integer, and the columns of a table need no common dtype."""
    pandas = pytest.importorskip("pandas")
    whole = aligned(backend="numpy", arrays="x", dtype=int)(lambda x: x)
    assert whole(pandas.Series([1.0, 2.0])).tolist() == [1, 2]
    with pytest.raises(xbridge.XBridgeError, match=r"^at argument 'x' of "):
        whole(pandas.Series([1.0, np.nan]))
    single = aligned(backend="torch", arrays="x", dtype="float32")(lambda x: x.sum())
    assert single(pandas.DataFrame({"a": [1, 2], "b": [0.5, 0.5]})).item() == 4


def test_aligned_arrays__mapped_dtype_holds_for_a_list() -> None:
    """A list has the mapped dtype, once, whether or not an array decides."""
    dtypes = {"float64": "float32", "float32": "float16"}
    f = aligned(backend="numpy", arrays=("x",), dtype=dtypes)(lambda x, y=None: x.dtype.name)
    assert f([1.0, 2.0]) == "float32"
    assert f([1.0, 2.0], np.ones(2)) == "float32"
    assert f(np.ones(2, "float32")) == "float16"


def test_aligned__device_that_numpy_lacks_is_an_error_at_decoration() -> None:
    """NumPy is always there, so a wrong device need not wait for the first call."""
    with pytest.raises(DeviceError, match="cuda"):
        aligned(backend="numpy", device="cuda")
