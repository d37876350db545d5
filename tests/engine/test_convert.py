"""Plans of arrays: why there is new memory, and which step makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from toylib import make_backend

import xbridge
from xbridge.protocol import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable


def of_torch(dtype: str) -> Any:
    """A tensor of torch of a dtype."""
    torch = pytest.importorskip("torch")
    return torch.ones(3, dtype=getattr(torch, dtype))


def readonly() -> Any:
    """An array of NumPy's that cannot be written."""
    x = np.ones(3, "int8")
    x.flags.writeable = False
    return x


STEPS: dict[str, tuple[Callable[[], Any], str, dict[str, Any], list[str]]] = {
    "a cast that the host does sooner": (
        lambda: np.ones(3, "float32"),
        "torch",
        {"dtype": "float64"},
        ["numpy to_numpy", "numpy astype float64", "torch from_numpy"],
    ),
    "a cast of read-only memory by the target": (
        readonly,
        "torch",
        {"dtype": "int16"},
        ["numpy to_numpy", "torch from_numpy", "torch astype int16"],
    ),
    "a cast for a target without axis orders": (
        lambda: np.ones(3, "int8"),
        "jax",
        {"dtype": "float16"},
        ["numpy to_numpy", "numpy astype float16 C", "jax from_numpy"],
    ),
    "a check on the host": (
        lambda: of_torch("int64"),
        "toylib",
        {"dtype": "default"},
        ["torch to_numpy", "numpy check_cast int32", "numpy astype int32", "toylib from_numpy"],
    ),
    "a check and a cast of what the target lacks": (
        lambda: of_torch("float64"),
        "toylib",
        {"dtype": "nearest"},
        ["torch check_cast float32", "torch astype float32", "torch to_numpy", "toylib from_numpy"],
    ),
}


@pytest.mark.usefixtures("own_registry")
@pytest.mark.parametrize("name", STEPS)
def test_explain__lists_casts_and_checks_in_order(name: str) -> None:
    """A plan names the library of each cast and check, in the order they run."""
    pytest.importorskip("torch")
    make, target, options, expected = STEPS[name]
    pytest.importorskip(target.replace("toylib", "torch"))
    poor = Unsupported(xbridge.DTypeError, "it is a toy", "dtype='float32'")
    toys = make_backend(
        unsupported_dtype=lambda dtype, device: poor if dtype == "float64" else None,
        default_dtype=lambda category, device: f"{category}32",
    )
    xbridge.register_backend("toylib", toys)
    plan = xbridge.explain(make(), target, **options)
    assert [f"{step.backend} {step.action}" for step in plan.steps] == expected
