"""Arguments that are not arrays: constants that differ in anything are other calls."""

from __future__ import annotations

import dataclasses
import decimal
import math
from typing import Any

import numpy as np
import pytest
from crossed import aligned, same

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")


@dataclasses.dataclass(frozen=True)
class Config:
    name: str
    scale: float = dataclasses.field(compare=False)


class Equal:
    """Objects that are equal whatever they hold, and cannot be pickled."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.own = lambda: scale

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)

    def __hash__(self) -> int:
        return 0


def of_config(c: Any) -> float:
    return float(c.scale)


def of_sign(c: Any) -> float:
    return 2.0 if "-" in repr(c) else 1.0


def of_type(c: Any) -> float:
    return 2.0 if "." in repr(c) else 1.0


CONSTANTS: dict[str, tuple[Any, tuple[Any, Any]]] = {
    "numbers": (of_type, (1, 1.0)),
    "booleans": (lambda c: 2.0 if c is True else 1.0, (1, True)),
    "keys of numbers": (of_type, ({1: 0}, {1.0: 0})),
    "sets": (of_type, (frozenset({1}), frozenset({1.0}))),
    "sets of tuples": (of_type, (frozenset({(1, (2,))}), frozenset({(1, (2.0,))}))),
    "dataclasses": (of_config, (Config("a", 1.0), Config("a", 2.0))),
    "objects": (of_config, (Equal(1.0), Equal(2.0))),
    "zeros": (of_sign, (0.0, -0.0)),
    "complex zeros": (of_sign, (0j, complex(0, -0.0))),
    "zeros in tuples": (of_sign, ((0, (0.0,)), (0, (-0.0,)))),
    "decimals": (of_sign, (decimal.Decimal(0), decimal.Decimal("-0"))),
    "ranges": (lambda c: float(c.stop), (range(1, 1), range(2, 2))),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CONSTANTS)
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside an array"])
def test_aligned__constants_that_compare_equal(case: str, beside: bool) -> None:
    """Constants that compare equal and are not the same are two calls, each with its own result."""
    scale, pair = CONSTANTS[case]
    assert pair[0] == pair[1]
    f = aligned(backend="jax")(lambda x, c: x * scale(c["c"]))
    x = torch.ones(2, requires_grad=True)
    for c in (*pair, *pair):
        given: Any = {"c": c, "x": x} if beside else {"c": c}
        (slope,) = torch.autograd.grad(f(x, given).sum(), x)
        same(slope, np.full(2, scale(c), "f4"))


@pytest.mark.parametrize(
    "make",
    [lambda: float("nan"), lambda: ("a", 1.0, None), lambda: frozenset({(1, 2)}), lambda: Config("a", 1)],
)
def test_aligned__constants_that_are_the_same(make: Any) -> None:
    """Constants that nothing tells apart are one call, which JAX compiles once."""
    traced = []

    def trace(x: Any, c: Any) -> Any:
        traced.append(c)
        return x

    f = aligned(backend="jax")(trace)
    for _ in range(3):
        f(torch.ones(2, requires_grad=True), make())
    assert len(traced) == 1


@pytest.mark.parametrize("c", [complex(1, math.nan), complex(math.nan, 1)])
def test_aligned__complex_constant_with_a_nan_keeps_its_other_part(c: complex) -> None:
    f = aligned(backend="jax")(lambda x, c: (x * c.real, x * c.imag))
    for found, part in zip(f(torch.ones(1, requires_grad=True), c), (c.real, c.imag), strict=True):
        same(found.detach(), np.full(1, part, "f4"))


@pytest.mark.slow
def test_aligned__constants_in_compiled_code() -> None:
    """A compiled program has constants of each kind that torch's compiler can follow."""
    f = aligned(backend="numpy", result=lambda x, c: x)(lambda x, c: x * of_sign(c))
    x = torch.ones(2)
    for c in (0.0, -0.0, frozenset({1.0}), frozenset({-1.0}), {1: 2}, {(-1,): 2}, (1, (2.0,)), len):
        torch._dynamo.reset()
        run = torch.compile(lambda x: f(x, c), fullgraph=True, backend="eager")  # noqa: B023 -- called here
        same(run(x), np.full(2, of_sign(c), "f4"))
