"""Arrays whose cast to another dtype every library must agree on.

What a NaN or a number out of range becomes as an integer is left open by every standard, and so is what
overflows a float8. Here such casts get small numbers; all others get any bits, and float64 gets numbers
beside the ties of the narrower dtypes, where rounding twice is not rounding once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from hypothesis import strategies as st
from inside import DTYPES, category
from strategies import host_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rawmemory import Host

    Shape: TypeAlias = tuple[int, ...]

COUNT = 96


def seeds() -> st.SearchStrategy[np.random.Generator]:
    """Sources of bits, each told by a small number."""
    return st.integers(0, 2**16).map(np.random.default_rng)


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


def contents(word: str, shape: Shape, rng: np.random.Generator) -> Host:
    """A dense native array of any bits that are values of the dtype."""
    dtype = host_dtype(word)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    parts = 2 if dtype.kind == "c" else 1
    part = np.dtype(f"f{dtype.itemsize // 2}") if parts == 2 else dtype
    code = np.dtype(f"u{part.itemsize}")
    count = int(np.prod(shape, dtype=int)) * parts
    drawn = rng.integers(0, np.iinfo(code).max, count, code, endpoint=True)
    special = np.array(_specials(part), code)
    drawn = np.where(rng.random(count) < 0.4, rng.choice(special, count), drawn)
    return drawn.view(dtype).reshape(shape)


def _specials(part: np.dtype[Any]) -> list[int]:
    """Bit patterns at the ends of a dtype's ranges."""
    sign = 1 << 8 * part.itemsize - 1
    ends = [0, 1, sign - 1, sign, sign + 1, 2 * sign - 1]
    if part.kind in "iu":
        return ends
    with np.errstate(all="ignore"):
        infinity = int(np.array(np.inf).astype(part).view(f"u{part.itemsize}"))
    around = [infinity - 1, infinity, infinity + 1, infinity ^ sign]
    return [*ends, *(pattern % (2 * sign) for pattern in around)]
