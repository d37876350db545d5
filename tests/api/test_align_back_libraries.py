"""Who decides where arrays of NumPy, torch and JAX meet, in every order."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest

import xbridge

torch = pytest.importorskip("torch")

NAMES = [name for name in ("numpy", "torch", "jax") if xbridge.is_available(name)]
DEVICES = [
    "cpu",
    pytest.param("cuda:0", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


def inputs(device: str) -> dict[str, Any]:
    """One of each, torch's on a device."""
    a = np.arange(3, dtype="f4")
    found = {name: xbridge.asarray(a, backend=name) for name in NAMES}
    found["torch"] = torch.from_numpy(a.copy()).to(device)
    return {**found, "number": 2, "list": [1.0, 2.0, 3.0]}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("order", [("number", *order, "list") for order in permutations(NAMES)], ids=" ".join)
def test_align_back__backend_overrides_like_overrides_first(order: tuple[str, ...], device: str) -> None:
    """`backend` takes precedence over `like`, and `like` over the first array, in every order."""
    given = inputs(device)
    first = next(name for name in order if name in NAMES)
    for options, winner in [
        ({}, first),
        *(({"like": given[name]}, name) for name in NAMES),
        *(({"like": given[first], "backend": name}, name) for name in NAMES),
    ]:
        arrays, restore = xbridge.align_back(*(given[name] for name in order), **options)
        for name, x in zip(order, arrays, strict=True):
            if name == "number":
                assert x == 2
                continue
            assert xbridge.backend_of(x) == winner
            assert xbridge.device_of(x) == (device if winner == "torch" else "cpu")
            assert xbridge.to_list(x) == [[0, 1, 2], [1, 2, 3]][name == "list"]
        result = arrays[order.index(first)]
        for name in NAMES:
            back = restore(result, to=order.index(name), dtype=True)
            assert xbridge.backend_of(back) == name
            assert xbridge.device_of(back) == xbridge.device_of(given[name])
            assert xbridge.dtype_of(back) == "float32"
        assert xbridge.backend_of(restore(result)) == first


@pytest.mark.skipif("jax" not in NAMES, reason="JAX is not installed")
def test_aligned__casts_results_if_target_lacks_dtype() -> None:
    """With `dtype="default"` a result is cast to a dtype that the caller's library has."""
    x = xbridge.asarray([3.0, 1.0], backend="jax")
    made = xbridge.aligned(backend="numpy", dtype="default")(np.argsort)(x)
    assert (xbridge.backend_of(made), xbridge.dtype_of(made)) == ("jax", "int32")
    assert xbridge.to_list(made) == [1, 0]
    with pytest.raises(xbridge.DTypeError, match=r"^at the result of argsort: .*JAX has no int64"):
        xbridge.aligned(backend="numpy")(np.argsort)(x)
