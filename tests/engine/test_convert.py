"""Plans of arrays: why there is new memory, and which step makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pytest
from inside import get_backend
from toylib import gaps, make_backend

import xbridge
from xbridge._engine import convert
from xbridge._engine.source import resolve_source
from xbridge._plan.reasons import Kind
from xbridge._plan.steps import Options
from xbridge.protocol import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable


NO_WRITES = "a compiler would make its read-only array writable"
OUTSIDE = "convert outside of compiled code"


def tracked() -> Any:
    """A tensor of torch that requires grad."""
    return pytest.importorskip("torch").ones(3, requires_grad=True)


def of_torch(dtype: str) -> Any:
    """A tensor of torch of a dtype."""
    torch = pytest.importorskip("torch")
    return torch.ones(3, dtype=getattr(torch, dtype))


def readonly() -> Any:
    """An array of NumPy's that cannot be written."""
    x = np.ones(3, "int8")
    x.flags.writeable = False
    return x


WHY: dict[str, tuple[Callable[[], Any], str, Options, tuple[str, str, str, str]]] = {
    "bytes": (
        lambda: np.ones(3, ">f4"),
        "numpy",
        Options(dtype="float32"),
        (
            "astype float32",
            "byte_order",
            "its bytes are not in the order of float32",
            "native byte order from the start",
        ),
    ),
    "pending": (
        lambda: of_torch("complex64").conj(),
        "numpy",
        Options(),
        ("materialize", "pending", "an operation is still pending on it", "compute it once"),
    ),
    "compiled, with a graph": (
        tracked,
        "numpy",
        Options(compiled=True),
        ("copy", "compiled", NO_WRITES, OUTSIDE),
    ),
    "compiled, read-only": (
        readonly,
        "fours",
        Options(compiled=True),
        ("copy", "compiled", NO_WRITES, OUTSIDE),
    ),
    "a graph": (
        tracked,
        "toylib",
        Options(),
        (
            "copy C",
            "requires_grad",
            "it requires grad, and toylib has no read-only arrays",
            "compute it without gradients, if none are needed",
        ),
    ),
    "no sharing": (
        lambda: np.ones(3),
        "toylib",
        Options(),
        ("from_numpy", "no_sharing", "it is a toy", "it is a toy"),
    ),
}


@pytest.mark.usefixtures("own_registry")
@pytest.mark.parametrize("name", WHY)
def test_copy_reason__has_kind_message_and_advice(name: str) -> None:
    """Each step that allocates says why, as a kind, a message and a suggestion."""
    make, target, options, (action, kind, message, advice) = WHY[name]
    missing = gaps("readonly", "axis_order", *(["sharing"] if name == "no sharing" else []))
    xbridge.register_backend("toylib", make_backend(assumes_immutable=False, gaps=missing))
    xbridge.register_backend("fours", make_backend("fours", assumes_immutable=False, gaps={}), roots=())
    plan = convert.plan(resolve_source(make()), get_backend(target), options)
    (step,) = (step for step in plan.steps if step.copy_reason)
    assert step.action == action
    assert step.copy_reason == (kind, message, (advice,))
    assert kind in get_args(Kind)


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
