"""Arrays whose cast to another dtype every library must agree on.

What a NaN or a number out of range becomes as an integer is left open by every standard, and so is what
overflows a float8. Here such casts get small numbers; all others get any bits, and float64 gets numbers
beside the ties of the narrower dtypes, where rounding twice is not rounding once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from strategies import contents, host_dtype

from xbridge._dtypes import category

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rawmemory import Host
    from strategies import Shape

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
    if target.startswith("float8") or (category(source) == "float" and category(target) == "int"):
        return _small_numbers(source, target, rng, shape)
    if source == "float64" and category(target) == "float":
        return np.where(rng.random(shape) < 0.5, contents(source, shape, rng), _ties(target, rng, shape))
    return contents(source, shape, rng)


def _small_numbers(source: str, target: str, rng: np.random.Generator, shape: Shape) -> Host:
    signed = not ("uint" in source + target or "e8m0" in source + target)
    numbers = rng.uniform(-60 if signed else 1, 60, shape)
    return numbers.astype(host_dtype(source))


def _ties(target: str, rng: np.random.Generator, shape: Shape) -> Host:
    """Numbers a little beside the middle of two neighbours in the target dtype."""
    lower = contents(target, shape, rng)
    code = f"u{lower.itemsize}"
    upper = (lower.view(code) + np.ones(shape, code)).view(lower.dtype)
    with np.errstate(all="ignore"):
        middle = (lower.astype("float64") + upper.astype("float64")) / 2
        beside: Host = np.nextafter(middle, rng.choice([-np.inf, np.inf], shape))
        return beside
