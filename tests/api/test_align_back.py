"""There and back: who decides where arrays meet, and where results go from there."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from names import stable_id
from toylib import Toy, make_backend

import xbridge
from xbridge.errors import type_of

if TYPE_CHECKING:
    from collections.abc import Callable


A = np.arange(3.0, dtype="f4")


@pytest.fixture(autouse=True)
def toys(own_registry: None) -> None:
    xbridge.register_backend("toylib", make_backend())


def test_restore__accepts_any_dtype() -> None:
    """`restore` casts to any dtype given by name or type, and rejects a name that is not a dtype."""
    _, restore = xbridge.align_back(A)
    for dtype, made in (("f8", "f8"), (None, "f8"), (False, "f8"), ("float16", "f2"), (int, "i8")):
        named = {"f8": "float64"}.get(dtype, dtype) if isinstance(dtype, str) else dtype
        assert restore(np.ones(2), dtype=named).dtype == made
    with pytest.raises(xbridge.DTypeError, match="read dtype 'yes'"):
        restore(A, dtype="yes")
    (_, _), restore = xbridge.align_back(A, Toy(A.astype("f8")))
    assert restore(np.ones(2, "f8"), dtype=True).dtype == "f4"
    assert restore(A, to=1, dtype=True).data.dtype == "f8"


@pytest.mark.parametrize("scalar", [np.float64(2), np.bool_(1)], ids=["float", "bool"])
def test_align_back__numpy_scalar_decides_only_alone(scalar: Any) -> None:
    """A NumPy scalar picks the backend only when there is no other array."""
    (n, x), restore = xbridge.align_back(scalar, Toy(A))
    assert [type(n), type(x)] == [Toy, Toy]
    assert (n.data.dtype, n.data.shape) == (scalar.dtype, ())
    assert type(restore(A)) is Toy
    assert type(restore(x, to=0)) is np.ndarray
    (m, k), restore = xbridge.align_back(3, scalar)
    assert (m, type(k)) == (3, np.ndarray)
    assert type(restore(Toy(A))) is np.ndarray


@pytest.mark.parametrize(
    ("like", "hint"),
    [
        ("numpy", "like=None, backend='numpy'"),
        (np, "like=None, backend='numpy'"),
        *(("JAX", "like=None"), (3, "like=None"), ([A], r"like=y\[0\]"), ({"a": A}, "like=None")),
    ],
    ids=lambda given: type(given).__name__,
)
def test_like__must_be_an_array(like: Any, hint: str) -> None:
    """Every function with a `like` option rejects anything but an array and suggests a fix."""
    calls: list[Callable[[], object]] = [
        lambda: xbridge.align(A, like=like),
        lambda: xbridge.align_back(A, like=like),
        lambda: xbridge.aligned(like=like)(np.shape)(A),
        lambda: xbridge.asarray(A, like=like),
    ]
    for call in calls:
        message = rf"take {type_of(like)} as like: it is not an array; try {hint}$"
        with pytest.raises(xbridge.OptionError, match=message):
            call()


def test_align__error_names_the_argument() -> None:
    """Errors of `align`, `align_back` and `aligned` name the argument or result they are about."""
    bad = np.array([None])
    for align in (xbridge.align, xbridge.align_back):
        with pytest.raises(xbridge.DTypeError, match=r"^at xs\[2\]: cannot convert a numpy object array"):
            align(Toy(A), 1, bad, bad)

    @xbridge.aligned
    def loss(x: Any, n: int, weight: Any = None) -> Any:
        return {"x": np.array(["a"]), "y": [bad]}

    with pytest.raises(xbridge.DTypeError, match=r"^at argument 'weight' of .*loss: cannot"):
        loss(Toy(A), 1, weight=bad)
    with pytest.raises(xbridge.DTypeError, match=r"^at argument 2 of .*loss: cannot"):
        loss(Toy(A), 1, bad)
    with pytest.raises(xbridge.DTypeError, match=r"^at the result of .*loss\['y'\]\[0\]: cannot"):
        loss(Toy(A), 1)


def test_restore__returns_non_arrays_unchanged() -> None:
    """A result that is not an array is returned as the same object."""
    _, restore = xbridge.align_back(Toy(A), A)
    for x in (None, 3, 2.5, True, 1j, "text", b"bytes", np.str_("text"), object()):
        assert restore(x) is x


def test_restore__accepts_trees() -> None:
    """`restore` converts every array in a tree and leaves the other leaves alone."""
    _, restore = xbridge.align_back(Toy(A), A)
    made = restore({"x": [A, 3], "y": (A, None)})
    assert [type(x) for x in (made["x"][0], made["y"][0])] == [Toy, Toy]
    assert (made["x"][1], made["y"][1]) == (3, None)


@pytest.mark.parametrize("to", [1, 3, -2, 9, -9, "x", True, slice(0, 1)], ids=str)
def test_restore__to_must_be_the_index_of_an_array(to: Any) -> None:
    """`to` must be the position of an argument that was an array."""
    _, restore = xbridge.align_back(A, 2, A, [1])
    with pytest.raises(xbridge.OptionError, match=r"the arguments that were arrays are \[0, 2\]; try to=0"):
        restore(A, to=to)


@pytest.mark.parametrize("xs", [(), (2, [1, 2])], ids=["nothing", "numbers"])
def test_align_back__requires_an_array(xs: tuple[object, ...]) -> None:
    """`align_back` raises if no argument is an array, even with `backend` and `like`."""
    with pytest.raises(xbridge.OptionError, match=r"tree of arrays; try xbridge\.tree\.align\(\*xs\)"):
        xbridge.align({"a": A}, A)
    with pytest.raises(xbridge.OptionError, match="no argument is an array; try align\\(\\*xs\\)"):
        xbridge.align_back(*xs)
    with pytest.raises(xbridge.OptionError, match="no argument is an array"):
        xbridge.align_back(*xs, backend="numpy", like=Toy(A))


def test_restore__holds_no_reference_to_arguments() -> None:
    """`restore` does not keep the arguments of `align_back` alive."""
    import weakref

    x = np.ones(3)
    _, restore = xbridge.align_back(x)
    gone = weakref.ref(x)
    del x, _
    assert gone() is None
    assert restore(Toy(A)).tolist() == A.tolist()


def kinds(*xs: object, **named: object) -> list[type]:
    """The types of what a function sees."""
    return [type(x) for x in (*xs, *named.values())]


def test_aligned__function_sees_one_library() -> None:
    """An aligned function gets all arrays in one library and everything else untouched."""
    seen: list[list[type]] = []

    @xbridge.aligned
    def f(x: Any, y: Any, *rest: Any, z: Any = None, **more: Any) -> Any:
        seen.append(kinds(x, y, *rest, z=z, **more))
        return y

    assert type(f(Toy(A), A)) is Toy
    assert type(f(A, Toy(A), 3, [A], "s", z=Toy(A), w=A, v=(1,))) is np.ndarray
    assert type(f(1, y=A, z=Toy(A))) is np.ndarray
    assert f(1, "s") == "s"
    array = np.ndarray
    assert seen == [
        [Toy, Toy, type(None)],
        [array, array, int, list, str, array, array, tuple],
        [int, array, array],
        [int, str, type(None)],
    ]


def test_aligned__converts_containers_of_results() -> None:
    """Arrays in dicts and tuples that a function returns go back to the first array's library."""

    @xbridge.aligned(backend="numpy")
    def f(x: Any, y: Any) -> dict[str, Any]:
        return {"sum": x + y, "both": (x, y), "n": 3}

    made = f(Toy(A), A)
    assert kinds(made["sum"], *made["both"], made["n"]) == [Toy, Toy, Toy, int]


def test_aligned__decorates_methods() -> None:
    """Instance methods, class methods and static methods can be aligned."""

    class Model:
        @xbridge.aligned(backend="toylib")
        def method(self, x: Any) -> Any:
            assert isinstance(self, Model)
            assert type(x) is Toy
            return x

        @classmethod
        @xbridge.aligned(backend="toylib")
        def of_class(cls, x: Any) -> Any:
            assert cls is Model
            assert type(x) is Toy
            return x

        @staticmethod
        @xbridge.aligned
        def static(x: Any, y: Any) -> Any:
            return y

    assert type(Model().method(A)) is np.ndarray
    assert type(Model.of_class(x=A)) is np.ndarray
    assert type(Model.static(Toy(A), A)) is Toy


def test_aligned__preserves_name_doc_and_signature() -> None:
    """An aligned function has the name, docstring and signature of the original."""

    @xbridge.aligned
    def f(x: int, *, y: str = "s") -> float:
        """What it does."""
        return 1.0

    assert (f.__name__, f.__doc__) == ("f", "What it does.")
    assert str(inspect.signature(f)) == "(x: 'int', *, y: 'str' = 's') -> 'float'"


@pytest.mark.parametrize(
    "fn", ["torch", 3, staticmethod(abs), classmethod(type), property(abs)], ids=stable_id
)
def test_aligned__refuses_non_functions(fn: Any) -> None:
    """Decorating something that is not a plain function raises, and says what to decorate if it is known."""
    hint = "" if fn == 3 or isinstance(fn, property) else "; try @"
    with pytest.raises(xbridge.OptionError, match=rf"align an? \w+: it is not a function{hint}"):
        xbridge.aligned(fn)


async def coroutine() -> None: ...


def generator() -> Any:
    yield


async def asynchronous() -> Any:
    yield


@pytest.mark.parametrize("fn", [coroutine, generator, asynchronous, partial(coroutine)])
def test_aligned__refuses_generators_and_coroutines(fn: Any) -> None:
    """Generator functions and coroutine functions cannot be decorated."""
    name = getattr(fn, "__name__", "partial")
    with pytest.raises(xbridge.OptionError, match=f"cannot align {name}: .* try align_back inside it"):
        xbridge.aligned(fn)
    with pytest.raises(xbridge.OptionError):
        xbridge.aligned(backend="numpy")(fn)
