"""Measure the replaced converters as a multiple of the original ones, at the input that each typically gets.

Both calls of a row run in turns in one process, in blocks. A figure is the median of the blocks.
"""

import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from statistics import median
from typing import Any

import array_api_compat.numpy as numpy_xp
import array_api_compat.torch as torch_xp
import autoray_conversion
import gymnasium_array_conversion
import jax.numpy as jnp
import numpy as np
import pot_backend
import torch

BLOCKS, CALLS = 300, 20  # short blocks, which another program seldom interrupts

floats = np.arange(8, dtype="float32")
tensor = torch.arange(8.0)
immutable = jnp.arange(8.0)
batch = {"state": floats, "image": np.zeros((4, 3), "float32")}

gymnasium = (gymnasium_array_conversion.theirs.array_conversion, gymnasium_array_conversion.array_conversion)
autoray = (autoray_conversion.original_to, autoray_conversion.to)
nx = pot_backend.backend.TorchBackend()
pot_to = (nx._to_numpy, lambda x: pot_backend.to_numpy(nx, x))
pot_from = (nx._from_numpy, lambda x, **like: pot_backend.from_numpy(nx, x, **like))

ROWS: list[tuple[str, str, tuple[Callable[..., Any], Callable[..., Any]], Callable[[Any], Any]]] = [
    ("gymnasium", "NumPy to torch", gymnasium, lambda f: f(floats, torch_xp)),
    ("gymnasium", "torch to NumPy", gymnasium, lambda f: f(tensor, numpy_xp)),
    ("gymnasium", "a dict of two arrays to torch", gymnasium, lambda f: f(batch, torch_xp)),
    ("gymnasium", "a dict with a number to torch", gymnasium, lambda f: f({"x": floats, "r": 1.5}, torch_xp)),
    ("autoray", "NumPy to torch", autoray, lambda f: f(floats, "torch")),
    ("autoray", "NumPy to torch-float64", autoray, lambda f: f(floats, "torch-float64")),
    ("autoray", "NumPy to jax", autoray, lambda f: f(floats, "jax").block_until_ready()),
    ("autoray", "jax to NumPy", autoray, lambda f: f(immutable, "numpy")),
    ("autoray", "a dict of two arrays to torch", autoray, lambda f: f(batch, "torch")),
    ("POT", "torch to NumPy", pot_to, lambda f: f(tensor)),
    ("POT", "NumPy to torch, like a tensor", pot_from, lambda f: f(floats, type_as=tensor)),
    ("POT", "a number to torch, like a tensor", pot_from, lambda f: f(1.5, type_as=tensor)),
]


def duration(call: Callable[[], Any]) -> float:
    """Return the microseconds of one call, in a block of calls."""
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS * 1e6


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of the projects
    names = ("gymnasium", "autoray", "POT", "numpy", "torch", "jax")
    print("; ".join(f"{name} {version(name)}" for name in names))
    print("\n| project | call | before | after | after / before |\n|---|---|---|---|---|")
    for project, title, (before, after), call in ROWS:
        call(before), call(after)
        pairs = [(duration(lambda: call(before)), duration(lambda: call(after))) for _ in range(BLOCKS)]  # noqa: B023 -- called at once
        theirs, ours = (median(column) for column in zip(*pairs, strict=True))
        print(f"| {project} | {title} | {theirs:.1f} us | {ours:.1f} us | {ours / theirs:.2f} |")


if __name__ == "__main__":
    main()
