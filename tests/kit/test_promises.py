"""Promises of a contract that one further call decides, with each library: each is broken, and kept."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from planted_contracts import softmax

import xbridge
from xbridge.testing import assert_contract
from xbridge.testing._matches import MismatchError

if TYPE_CHECKING:
    from collections.abc import Callable

X = np.linspace(-3, 3, 12).reshape(4, 3)
N = np.array([100, -128, 3], "int8")
NAMESPACES = {"numpy": "numpy", "torch": "torch", "jax": "jax.numpy", "dask": "dask.array"}

BROKEN: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "a mean of the batch": (lambda x, xp: x - x.mean(0), X, {"batched": True}, "depends on its batch"),
    "a dropped axis": (lambda x, xp: x.sum(-1), X, {"shape": "kept"}, "shape"),
    "a kept axis": (lambda x, xp: x[..., :1], X, {"shape": lambda s: s[:-1]}, "shape"),
    "a lost NaN": (lambda x, xp: xp.where(x > 0, x, 0 * xp.ones_like(x)), X, {"nan": "propagates"}, "NaN"),
    "a NaN that stays": (lambda x, xp: xp.sum(x), X, {"nan": "ignored"}, "NaN"),
    "a square that wraps around": (lambda x, xp: x * x, N, {"overflow": False}, "overflows"),
    "a modulus that wraps around": (lambda x, xp: xp.abs(x), N, {"overflow": False}, "overflows"),
    "a Python float": (lambda x, xp: float(x.sum()), X, {"dtype": "kept"}, "dtype"),
    "half of the digits near zero": (lambda x, xp: xp.log(1 + x * x), X, {"ulp": 4}, "is inaccurate"),
}
"""The fault -> the function of an array and a namespace, the array, the promise, and what is reported."""

KEPT: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "each element": (lambda x, xp: xp.exp(x), X, {"batched": True, "shape": "kept", "nan": "propagates"}),
    "in the graph": (lambda x, xp: xp.exp(x), X, {"aliases": False, "lazy": True, "differentiable": True}),
    "a reduction": (lambda x, xp: x.sum(-1), X, {"shape": lambda s: s[:-1], "nan": "propagates"}),
    "a sum without NaN": (lambda x, xp: xp.nansum(x), X, {"nan": "ignored"}),
    "small integers": (lambda x, xp: xp.clip(x, 0, 9), N, {"overflow": False}),
    "digits near zero": (lambda x, xp: xp.log1p(x * x), X, {"ulp": 4, "dtype": "kept"}),
    "an integer beside": (lambda x, xp: (x * 2, len(x)), X, {"dtype": "kept"}),
}
"""What is right -> the function, the array and the promises."""


def with_namespace(f: Any, library: str) -> Callable[[Any], Any]:
    """A function of an array, which computes in the library of the array."""
    xp = import_module(NAMESPACES[library])
    return lambda x: f(x, np if isinstance(x, np.ndarray) else xp)


def in_float32(values: Any, library: str) -> Any:
    """An array of a library, in float32 if it is floating."""
    pytest.importorskip(library)
    return xbridge.asarray(values.astype("f4") if values.dtype == "f8" else values, backend=library)


@pytest.mark.parametrize("library", NAMESPACES)
@pytest.mark.parametrize("fault", BROKEN)
def test_assert_contract__broken_promise_of_values(fault: str, library: str) -> None:
    """Each fault is found with every library, and the program of the message fails by itself."""
    f, values, promises, problem = BROKEN[fault]
    x = in_float32(values, library)
    tested = with_namespace(f, library)
    with pytest.raises(MismatchError) as caught:
        assert_contract(tested, x, empty=False, **promises)
    found = caught.value.finding
    assert found.problem == problem
    assert "does not fail" not in found.program
    with pytest.raises(AssertionError):
        exec(found.program, {"f": tested})


@pytest.mark.parametrize("library", NAMESPACES)
@pytest.mark.parametrize("name", KEPT)
def test_assert_contract__kept_promise_of_values(name: str, library: str) -> None:
    """No right function is blamed."""
    f, values, promises = KEPT[name]
    x = in_float32(values, library)
    assert_contract(with_namespace(f, library), x, empty=False, **promises)


def test_assert_contract__batches_of_the_standard() -> None:
    """Rows are taken as the standard allows it."""
    x = pytest.importorskip("array_api_strict").asarray(X)
    assert_contract(softmax, x, batched=True, shape="kept", nan="propagates", empty=False)


def test_assert_contract__default_device() -> None:
    """A tensor that is made without a device is found on a machine with one device."""
    torch = pytest.importorskip("torch")
    x = torch.tensor(X)
    for wrong in (lambda x: x + torch.arange(3), lambda x: torch.zeros(4)):
        assert_contract(wrong, x, layouts=False)
        with pytest.raises(MismatchError, match="a tensor is made on the default device") as caught:
            assert_contract(wrong, x, device="kept", layouts=False)
        with pytest.raises((AssertionError, RuntimeError)):
            exec(caught.value.finding.program, {"f": wrong})
        torch.set_default_device(None)
    assert_contract(lambda x: x + torch.arange(3, device=x.device), x, device="kept")
    assert_contract(np.sin, X, device="kept")
