"""Who decides on which device arrays meet, and where results go from there."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from emulated.there import DEVICE, KIND

import xbridge


def inputs() -> dict[str, Any]:
    return {
        "numpy": np.arange(3, dtype="f4"),
        "torch": torch.arange(3.0),
        "there": torch.arange(3.0).to(KIND),
        "number": 2,
        "list": [0.0, 1.0, 2.0],
    }


@pytest.mark.parametrize("order", list(permutations(inputs())), ids=" ".join)
def test_align_back__meets_on_the_device_of_the_first_array(order: tuple[str, ...]) -> None:
    """The first array decides where arrays meet, unless a device is named; results go back."""
    given = inputs()
    first = next(name for name in order if name in ("numpy", "torch", "there"))
    own = next(name for name in order if name in ("torch", "there"))
    there = {"numpy": "cpu", "torch": "cpu", "there": DEVICE}
    for options, backend, device in (
        ({}, "numpy" if first == "numpy" else "torch", there[first]),
        ({"backend": "torch"}, "torch", there[own]),
        ({"like": given["there"]}, "torch", DEVICE),
        ({"like": given["torch"]}, "torch", "cpu"),
        ({"like": given["there"], "device": "cpu"}, "torch", "cpu"),
        ({"like": given["there"], "backend": "numpy"}, "numpy", "cpu"),
    ):
        arrays, restore = xbridge.align_back(*(given[name] for name in order), **options)
        for name, x in zip(order, arrays, strict=True):
            if name != "number":
                assert (xbridge.backend_of(x), xbridge.device_of(x)) == (backend, device)
                assert xbridge.to_list(x) == [0, 1, 2]
        for name in ("numpy", "torch", "there"):
            back = restore(arrays[order.index("list")], to=order.index(name))
            assert xbridge.device_of(back) == there[name]
            assert xbridge.to_list(back) == [0, 1, 2]


def test_tree__round_trip_to_the_device() -> None:
    """The arrays of a tree go to the device and back, and duplicates are moved once."""
    from xbridge import tree

    a = np.arange(3.0)
    made = tree.to_backend({"a": [a, a, "s"]}, "torch", device=KIND)
    assert made["a"][0].device == torch.device(DEVICE)
    assert made["a"][0] is made["a"][1]
    assert tree.to_numpy(made)["a"][0].tolist() == [0, 1, 2]
