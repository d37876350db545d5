"""There and back: who decides where arrays meet, and where results go from there."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from exporters import array_only
from fresh import run
from names import stable_id
from toylib import Toy, make_backend

import xbridge
from xbridge.errors import type_of
from xbridge.tree.restore import Restore

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge.protocol import ArrayInfo

A = np.arange(3.0, dtype="f4")


@pytest.fixture(autouse=True)
def toys(own_registry: None) -> None:
    xbridge.register_backend("toylib", make_backend())


@pytest.mark.parametrize("order", list(permutations(["toy", "numpy", "number", "list"])))
def test_align_back__first_array_decides(order: tuple[str, ...]) -> None:
    """The first array picks the backend unless `like` or `backend` is given; numbers and lists never do."""
    inputs: dict[str, Any] = {"toy": Toy(A), "numpy": A, "number": 2.5, "list": [1, 2]}
    first = "toylib" if order.index("toy") < order.index("numpy") else "numpy"
    for options, winner in (
        ({}, first),
        ({"like": Toy(A)}, "toylib"),
        ({"like": A}, "numpy"),
        ({"like": A, "backend": "toylib"}, "toylib"),
        ({"backend": "numpy"}, "numpy"),
    ):
        arrays, restore = xbridge.align_back(*(inputs[name] for name in order), **options)
        kinds = dict(zip(order, arrays, strict=True))
        kind = {"toylib": Toy, "numpy": np.ndarray}[winner]
        assert [type(kinds[name]) for name in ("toy", "numpy", "list")] == [kind] * 3
        assert kinds["number"] is inputs["number"]
        assert arrays == xbridge.align(*arrays)  # nothing is to change any more
        assert type(restore(kinds["numpy"])) is type(inputs[first.removesuffix("lib")])
        assert type(restore(kinds["numpy"], to=order.index("toy"))) is Toy
        assert type(restore(kinds["toy"], to=order.index("numpy"))) is np.ndarray


@pytest.mark.parametrize("options", [{}, {"backend": "numpy"}, {"dtype": "nearest"}], ids=str)
def test_align__inspects_each_array_once(options: dict[str, Any]) -> None:
    """`align` reads the info of each array once."""
    described, info = Counter[int](), make_backend().array_info
    xbridge.align(A)  # imports the modules of the engine

    def array_info(x: Toy) -> ArrayInfo:
        described[id(x)] += 1
        return info(x)  # type: ignore[no-any-return] # the attribute of a module

    xbridge.register_backend("toylib", make_backend(array_info=array_info), replace=True)
    like, *arrays = (type(f"Toy{i}", (Toy,), {})(A) for i in range(4))
    xbridge.align(*arrays, 2.5, like=like, **options)
    assert [described[id(x)] for x in arrays] == [1, 1, 1]
    assert described[id(like)] <= 1


def test_restore__keeps_dtype_unless_asked() -> None:
    """A restored result keeps its dtype unless the caller passes `dtype=True`."""
    (_, _), restore = xbridge.align_back(A, Toy(A.astype("f8")))
    assert restore(np.ones(2, "f8")).dtype == "f8"
    assert restore(np.ones(2, "f8"), dtype=True).dtype == "f4"
    assert restore(A, to=1, dtype=True).data.dtype == "f8"


def test_restore__accepts_any_dtype() -> None:
    """`restore` casts to any dtype given by name or type, and rejects a name that is not a dtype."""
    _, restore = xbridge.align_back(A)
    for dtype, made in (("f8", "f8"), (None, "f8"), (False, "f8"), ("float16", "f2"), (int, "i8")):
        named = {"f8": "float64"}.get(dtype, dtype) if isinstance(dtype, str) else dtype
        assert restore(np.ones(2), dtype=named).dtype == made
    with pytest.raises(xbridge.DTypeError, match="read dtype 'yes'"):
        restore(A, dtype="yes")


def test_align__dtype_applies_to_all_arrays() -> None:
    """A dtype passed to `align`, `align_back` or `aligned` is the dtype of every array."""
    for made in (
        xbridge.align(A, Toy(A), [1], dtype="float64"),
        xbridge.align_back(A, A, dtype="float64")[0],
    ):
        assert {xbridge.dtype_of(x) for x in made} == {"float64"}

    @xbridge.aligned(dtype="float64")
    def f(x: Any, y: Any) -> Any:
        return x + y

    assert f(A, Toy(A)).dtype == "f8"


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


@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("backend", ["numpy", "torch", "array_api_strict"])
def test_align__error_names_the_argument_that_sets_the_device(backend: str, position: int) -> None:
    """The position is named even if the array fails while its device is being looked up."""
    pytest.importorskip(backend)
    xs: list[object] = [3, 4]
    xs.insert(position, array_only(np.array(["a"])))
    with pytest.raises(xbridge.DTypeError, match=rf"^at xs\[{position}\]: cannot read an Exporter: "):
        xbridge.align(*xs, backend=backend)


def test_restore__returns_non_arrays_unchanged() -> None:
    """A result that is not an array is returned as the same object."""
    _, restore = xbridge.align_back(Toy(A), A)
    for x in (None, 3, 2.5, True, 1j, "text", b"bytes", np.str_("text"), object()):
        assert restore(x) is x


def test_restore__refuses_sharded_targets() -> None:
    """A result cannot be restored to an argument that is spread over several devices."""
    restore = Restore(
        (("jax", xbridge.Device("sharded"), "float32"), ("numpy", xbridge.Device("cpu"), "float32")), 0
    )
    with pytest.raises(xbridge.DeviceError, match=r"to argument 0: it is on several devices; try align_back"):
        restore(A)
    assert restore(Toy(A), to=1).tolist() == A.tolist()


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
    with pytest.raises(xbridge.OptionError, match="no argument is an array; try align, or align_back with"):
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


def test_align_back__raises_what_align_raises() -> None:
    """`align_back` raises the same errors as `align`."""
    with pytest.raises(xbridge.DTypeError):
        xbridge.align_back(Toy(A), np.array(["text"]))
    with pytest.raises(xbridge.CopyError):
        xbridge.align_back(Toy(A), [1], copy=False)


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


def test_aligned__accepts_a_fixed_backend() -> None:
    """With `backend` or `like`, the function always runs in that library."""

    @xbridge.aligned(backend="toylib")
    def f(x: Any, /) -> Any:
        assert type(x) is Toy
        return x

    assert type(f(A)) is np.ndarray
    assert type(f(Toy(A))) is Toy

    @xbridge.aligned(like=Toy(A), copy=True)
    def g(x: Any) -> Any:
        return type(x)

    assert g.__wrapped__(A) is np.ndarray  # type: ignore[attr-defined]


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


def test_aligned__returns_self_as_is() -> None:
    """A method that returns `self` returns the same object, not a copy."""

    @dataclass
    class Model:
        w: Any = None

        @xbridge.aligned(backend="toylib")
        def fit(self, x: Any) -> Any:
            self.w = x
            return self

    model = Model()
    assert model.fit(A) is model
    assert type(model.w) is Toy


@pytest.mark.parametrize(
    "fn", ["torch", 3, staticmethod(abs), classmethod(type), property(abs)], ids=stable_id
)
def test_aligned__refuses_non_functions(fn: Any) -> None:
    """Decorating something that is not a plain function raises and says what to decorate instead."""
    with pytest.raises(xbridge.OptionError, match=r"align an? \w+: it is not a function; try "):
        xbridge.aligned(fn)


class Later:
    """A function that is a coroutine's only when it is called."""

    async def __call__(self, x: Any) -> Any: ...


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (lambda x: map(abs, [x]), "lambda"),
        (lambda x: (y for y in [x]), "lambda"),
        (partial(filter, None), "partial"),
        (Later(), "Later"),
    ],
    ids=["map", "generator", "partial", "coroutine"],
)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_aligned__refuses_lazy_results(fn: Any, name: str) -> None:
    """A call whose result is an iterator or a coroutine raises, since its arrays would come later."""
    with pytest.raises(xbridge.OptionError, match=f"cannot align .*{name}.*: its results come later"):
        xbridge.aligned(fn)(A)


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


def test_align_back__plain_containers_need_only_numpy() -> None:
    """Aligning and restoring plain containers works with NumPy as the only library installed."""
    code = """
    import numpy as np, xbridge
    f = xbridge.aligned(lambda x: x + 1)
    print(f(np.ones(1)))
    restore = xbridge.align_back(np.ones(1))[1]
    print(restore([np.ones(1), "text"]))
    thing = object()
    print(restore(thing) is thing)
    """
    assert run(code) == (0, ["[2.]", "[array([1.]), 'text']", "True"])
