"""A call that is repeated does what the same call does when it is examined for the first time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import xbridge
from xbridge import aligned
from xbridge.errors import FOREIGN_ERRORS
from xbridge.functions import run

if TYPE_CHECKING:
    from collections.abc import Callable

torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
jnp = jax.numpy

NARROW = True
HOST = np.arange(3, dtype="float32")


def frozen() -> np.ndarray[Any, Any]:
    host = HOST.copy()
    host.flags.writeable = False
    return host


MAKERS: dict[str, tuple[Callable[[], Any], ...]] = {
    "numpy": (HOST.copy, frozen, lambda: HOST.copy()[::-1], lambda: np.array(["a", "b", "c"])),
    "torch": (
        lambda: torch.arange(3.0),
        lambda: torch.arange(3.0).requires_grad_(),
        lambda: torch.arange(6.0)[::2],
        lambda: torch.imag(torch.ones(3, dtype=torch.complex64).conj()),
        lambda: torch.ones(3, device="meta"),
    ),
    "jax": (lambda: jnp.arange(3.0), lambda: jnp.ones((3,))),
    "scalar": (lambda: np.float32(2), lambda: np.float32(3)),
    "int": (lambda: 2, lambda: 3),
    "float": (lambda: 0.5, lambda: 2.5),
    "none": (lambda: None,),
    "text": (lambda: "left", lambda: "right"),
}
"""Arguments by their type: each may be in the place of the others of its kind."""


def total(*xs: Any, a: Any = 0, b: Any = 0, c: Any = 0) -> Any:
    numbers = [x for x in (*xs, a, b, c) if x is not None and not isinstance(x, str)]
    return sum(numbers, 1)


def first(*xs: Any, **_: Any) -> Any:
    return xs[0]


def write(*xs: Any, **_: Any) -> Any:
    x: Any = next((x for x in xs if hasattr(x, "dtype")), [0])
    x[0] = 7
    return x


def pair(*xs: Any, a: Any = None, **named: Any) -> Any:
    return {"total": total(*xs, a=a, **named), "given": a, "types": str([type(x) for x in named.values()])}


BODIES = (total, first, write, pair)


def seen(x: Any, given: list[Any]) -> Any:
    """Return all that can be seen of a result, and which of the arrays that were given have its memory."""
    if isinstance(x, dict):
        return {key: seen(child, given) for key, child in x.items()}
    if not hasattr(x, "dtype"):
        return type(x), x
    device = str(getattr(x, "device", ""))
    facts: list[Any] = [type(x), str(x.dtype), device, bool(getattr(x, "requires_grad", False))]
    facts.append(getattr(getattr(x, "flags", None), "writeable", None))
    if device != "meta":
        facts.append(xbridge.to_list(x) if facts[1] != "<U1" else x.tolist())
        arrays = [y for y in given if isinstance(y, (np.ndarray, torch.Tensor)) and str(y.device) != "meta"]
        facts.append([xbridge.shares_memory(x, y) for y in arrays])
    return facts


def outcome(f: Callable[..., Any], makers: list[Callable[[], Any]], names: tuple[str, ...]) -> Any:
    given = [make() for make in makers]
    count = len(given) - len(names)
    try:
        result: Any = f(*given[:count], **dict(zip(names, given[count:], strict=True)))
    except FOREIGN_ERRORS as error:
        result = type(error), str(error)
    return seen(result, given), [seen(x, []) for x in given]


NAMES = ((), ("b",), ("b", "a"), ("c", "a", "b"))


@st.composite
def calls(draw: st.DrawFn) -> tuple[list[str], list[int], list[int], tuple[str, ...]]:
    """Draw the kinds of arguments, one of each kind for the first calls and for the last, and names."""
    kinds = draw(st.lists(st.sampled_from(list(MAKERS)), min_size=1, max_size=3))
    before, after = [[draw(st.integers(0, len(MAKERS[kind]) - 1)) for kind in kinds] for _ in range(2)]
    return kinds, before, after, draw(st.sampled_from(NAMES[: len(kinds)]))


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    *({"dtype": dtype} for dtype in ("float16", "nearest", "default", torch.float32)),
    *({"copy": True}, {"copy": False}, {"device": "cpu"}, {"grad": "keep"}, {"grad": "detach"}),
    *({"device": torch.device("cpu")}, {"vjp": lambda g, y, *xs: xs}),
)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax", None])
@given(calls(), st.sampled_from(BODIES), st.sampled_from(OPTIONS))
@example((["torch"], [0], [1], ()), total, {})
@example((["torch", "torch"], [0, 0], [0, 4], ()), total, {})
@example((["numpy", "torch"], [0, 0], [0, 1], ()), total, {})
@example((["numpy", "torch"], [0, 1], [0, 0], ()), total, {})
@example((["numpy", "float"], [0, 0], [2, 1], ("b",)), total, {})
@example((["numpy"], [0], [0], ()), write, {})
@example((["torch", "numpy"], [0, 0], [1, 0], ("b", "a")), total, {"vjp": lambda g, y, *xs: xs})
@example((["torch", "torch", "int"], [0, 0, 0], [0, 0, 0], ("b", "a")), pair, {"vjp": lambda g, y, *xs: xs})
@example((["none", "torch"], [0, 0], [0, 0], ()), first, {})
def test_aligned__repeated_call_does_what_the_first_one_does(
    library: str | None,
    call: tuple[list[str], list[int], list[int], tuple[str, ...]],
    body: Any,
    options: dict[str, Any],
) -> None:
    """A repeated call does what the first one does."""
    kinds, before, after, names = call
    f, new = (aligned(backend=library, **options)(body) for _ in range(2))
    for _ in range(2):
        outcome(f, [MAKERS[kind][i] for kind, i in zip(kinds, before, strict=True)], names)
    makers = [MAKERS[kind][i] for kind, i in zip(kinds, after, strict=True)]
    assert outcome(f, makers, names) == outcome(new, makers, names)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("make", [HOST.copy, lambda: torch.arange(3.0), lambda: jnp.arange(3.0)])
def test_aligned__repeated_call_is_not_planned_again(
    options: dict[str, Any], make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that is not tracked is cached, whatever its options are."""
    f = aligned(backend="numpy", **options)(lambda x: x + 1)
    if options == {"copy": False} and isinstance(make(), jax.Array):
        pytest.skip("JAX shares no memory that a function could write to")
    before = f(make())
    monkeypatch.setattr(run, "_call_planned", None)
    after = f(make())
    assert seen(after, []) == seen(before, [])


def test_aligned__transform_follows_a_repeated_call() -> None:
    """A transform follows a repeated call."""
    f = aligned(backend="jax")(lambda x, *, power=2: x**power)
    for _ in range(3):
        f(torch.ones(3), power=3)
    x = torch.arange(3.0)
    assert torch.func.grad(lambda x: f(x, power=3).sum())(x).tolist() == (3 * x**2).tolist()
    compiled = torch.compile(lambda x: f(x, power=3) + 1, fullgraph=True, backend="eager")
    assert compiled(x).tolist() == [1, 2, 9]
    g = aligned(backend="torch")(lambda x: x**2)
    for _ in range(3):
        g(jnp.ones(3))
    assert jax.grad(lambda x: g(x).sum())(jnp.arange(3.0)).tolist() == [0, 2, 4]
