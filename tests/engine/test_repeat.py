"""Functions that repeat a call: what they find, what they decline, and whose errors they raise."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from inside import cached, forget_calls
from toylib import Toy, make_backend

import xbridge
from xbridge import tree

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[Any], Any]


def call_aligned(x: Any) -> Any:
    return xbridge.aligned(backend="toylib")(lambda y: y)(x)  # the backend is known when it is decorated


def misspelt(_: object) -> Any:
    raise NameError("name 'fast' is not defined")


def toys(**changes: Any) -> Any:
    own: Any = {"fast_to_numpy": lambda x: x.data, "fast_from_numpy": Toy, "plan_state": lambda: None}
    return make_backend(**{**own, "assumes_immutable": False, **changes})


TO: dict[str, Call] = {
    "to_backend": lambda x: xbridge.to_backend(x, "toylib"),
    "asarray, dtype": lambda x: xbridge.asarray(x, backend="toylib", dtype="float32"),
    "number": lambda x: xbridge.asarray(1.5, backend="toylib"),
    "align": lambda x: xbridge.align(x, backend="toylib"),
    "tree": lambda x: tree.to_backend([x], "toylib"),
    "aligned": call_aligned,
}
FROM: dict[str, Call] = {
    "to_numpy": lambda x: xbridge.to_numpy(Toy(x)),
    "to_numpy, dtype": lambda x: xbridge.to_numpy(Toy(x), dtype="float32"),
    "tree": lambda x: tree.to_numpy({"x": Toy(x)}),
    "align": lambda x: xbridge.align(np.ones(2), Toy(x)),
}


@pytest.mark.parametrize(
    ("word", "call"), [*product(["from_numpy"], TO.values()), *product(["to_numpy"], FROM.values())]
)
def test_repeat__error_of_a_backend_reaches_the_caller(word: str, call: Call, own_registry: None) -> None:
    """A fault in a fast function is seen at the first call, with its traceback."""
    xbridge.register_backend("toylib", toys(**{f"fast_{word}": misspelt}))
    with pytest.raises(NameError, match="fast") as caught:
        call(np.ones(2))
    assert caught.traceback[-1].name == "misspelt"


def test_repeat__error_after_the_first_call_reaches_the_caller(own_registry: None) -> None:
    """A converter that fails later is not replaced by a plan in silence."""
    works = [True]
    xbridge.register_backend("toylib", toys(fast_from_numpy=lambda x: Toy(x) if works[0] else misspelt(x)))
    for _ in range(3):
        xbridge.to_backend(np.ones(2), "toylib", copy=True)
    works.clear()
    works.append(False)
    with pytest.raises(NameError):
        xbridge.to_backend(np.ones(2), "toylib", copy=True)


def test_repeat__none_names_no_backend_before_and_after_others_were_used() -> None:
    """Only `asarray` takes None for the library of the array itself."""
    x, none = np.ones(2), cast("Any", None)
    assert xbridge.asarray(x, backend=None) is x
    for convert in (xbridge.to_backend, tree.to_backend, xbridge.unsafe_share):
        with pytest.raises(xbridge.UnknownBackendError, match="backend by None"):
            convert(x, none)


@pytest.mark.parametrize(
    "options", [{}, {"dtype": "float32"}, {"copy": True, "requires_grad": False}], ids=str
)
def test_repeat__like_is_part_of_the_call(options: dict[str, Any], own_registry: None) -> None:
    """A call with `like` is another one than the same call without it, in any order."""
    xbridge.register_backend("toylib", toys(require_grad=lambda x: x, detach=lambda x: x, gaps={}))
    x, like = np.ones(2), Toy(np.ones(1))
    for _ in range(3):
        assert type(xbridge.asarray(x, **options)) is np.ndarray
        assert type(xbridge.asarray(x, like=like, **options)) is Toy


def test_repeat__value_that_a_cached_cast_would_lose_is_an_error() -> None:
    """A cached cast on the host declines an array whose value it would lose, and the plan says so."""
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    forget_calls()
    with jax.enable_x64(True):
        fits, lost = (jax.numpy.asarray([x, 2.0]) for x in (1.0, 1e300))
        for _ in range(2):
            assert xbridge.to_backend(fits, "torch", dtype="default").dtype == torch.float32
        with pytest.raises(xbridge.ValueLossError, match="does not fit float32"):
            xbridge.to_backend(lost, "torch", dtype="default")


def test_repeat__ignores_backends_without_plan_state(own_registry: None) -> None:
    """Calls of a backend without `plan_state` are planned each time."""
    xbridge.register_backend("toylib", make_backend())
    for _ in range(2):
        assert isinstance(xbridge.to_backend(np.ones(2), "toylib", copy=True), Toy)
    assert not cached


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: xbridge.to_backend(x, "toylib", dtype="float64").data,
        lambda x: tree.to_backend([x], "toylib", dtype="float64")[0].data,
        lambda x: xbridge.to_numpy(Toy(x), dtype="float64"),
    ],
    ids=["to it", "tree to it", "from it"],
)
def test_repeat__ignores_plans_made_while_tracing(convert: Call, own_registry: None) -> None:
    """A plan made while a compiler traces is not cached."""
    tracing = [True]
    verbs: Any = {"is_tracing": lambda: tracing[0], "untraced": lambda fn: fn}
    xbridge.register_backend("toylib", toys(gaps={}, **verbs))
    locked = np.arange(4.0)
    locked.flags.writeable = False
    assert not np.shares_memory(convert(locked), locked)
    tracing[0] = False
    for _ in range(3):
        assert np.shares_memory(convert(locked), locked)
    assert cached


def test_repeat__ignores_transfers(own_registry: None) -> None:
    """A conversion that moves to another device calls `to_device` each time."""
    moved: list[str] = []
    places = (xbridge.Device("cpu"), xbridge.Device("toy:0"))

    def move(x: Toy, device: xbridge.Device, /) -> Toy:
        moved.append(device)
        return x

    xbridge.register_backend("toylib", toys(devices=lambda: places, to_device=move))
    for options in ({}, {"copy": True}, {"dtype": "float32"}):
        for _ in range(3):
            xbridge.to_backend(np.ones(2), "toylib", device="toy:0", **options)
    assert moved == ["toy:0"] * 9


def test_repeat__ignores_plans_that_depend_on_alignment(own_registry: None) -> None:
    """Sharing that depends on the address of an array is decided in each call."""
    jax = pytest.importorskip("jax")
    xbridge.register_backend("toylib", toys(gaps={}, assumes_immutable=True))
    raw = np.zeros(64, "f4")
    start = -raw.ctypes.data % 64 // 4
    aligned, odd = raw[start : start + 16], raw[start + 1 : start + 17]
    for x in (aligned, aligned):
        assert isinstance(xbridge.to_backend(Toy(x), "jax", copy=False), jax.Array)
    with pytest.raises(xbridge.CopyError):
        xbridge.to_backend(Toy(odd), "jax", copy=False)
