"""Arrays whose cast to another dtype every library must agree on.

What a NaN or a number out of range becomes as an integer is left open by every standard, and so is what
overflows a float8. Here such casts get small numbers; all others get any bits, and float64 gets numbers
beside the ties of the narrower dtypes, where rounding twice is not rounding once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from inside import DTYPES, category
from strategies import host_dtype

from xbridge.testing.conformance._cases import edge_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rawmemory import Host

    Shape: TypeAlias = tuple[int, ...]

COUNT = 96


def pairs_of(dtypes: Sequence[str]) -> list[tuple[str, str]]:
    """Every cast that keeps the imaginary part."""
    real = {"int", "float"}
    return [
        (source, target)
        for source in dtypes
        for target in dtypes
        if not (category(source) == "complex" and category(target) in real)
    ]


def castable(source: str, target: str, rng: np.random.Generator, shape: Shape = (COUNT,)) -> Host:
    """A dense array of the source dtype that is good for a cast to the target."""
    if not DTYPES[target].rounds_as_numpy or (category(source) == "float" and category(target) == "int"):
        return _small_numbers(source, target, rng, shape)
    if source == "float64" and category(target) == "float":
        return np.where(
            rng.random(shape) < 0.5, edge_values(source, shape, turn(rng)), _ties(target, rng, shape)
        )
    return edge_values(source, shape, turn(rng))


def turn(rng: np.random.Generator) -> int:
    """Which of many values `edge_values` makes."""
    return int(rng.integers(1 << 16))


def _small_numbers(source: str, target: str, rng: np.random.Generator, shape: Shape) -> Host:
    signed = not ("uint" in source + target or "e8m0" in source + target)
    numbers = rng.uniform(-60 if signed else 1, 60, shape)
    return numbers.astype(host_dtype(source))


def _ties(target: str, rng: np.random.Generator, shape: Shape) -> Host:
    """Numbers a little beside the middle of two neighbours in the target dtype."""
    lower = edge_values(target, shape, turn(rng))
    code = f"u{lower.itemsize}"
    upper = (lower.view(code) + np.ones(shape, code)).view(lower.dtype)
    with np.errstate(all="ignore"):
        middle = (lower.astype("float64") + upper.astype("float64")) / 2
        beside: Host = np.nextafter(middle, rng.choice([-np.inf, np.inf], shape))
        return beside
