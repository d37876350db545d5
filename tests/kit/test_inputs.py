"""What is drawn to be handed to `asarray`: whatever is an array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drawing import drawn
from hypothesis import given
from hypothesis import strategies as st

import xbridge
from xbridge.testing.strategies import (
    array_likes,
)

# -- what is handed to xbridge -------------------------------------------------------------------


@given(array_likes())
def test_array_likes__accepted_by_asarray(x: Any) -> None:
    """Every drawn array-like is accepted by `asarray`."""
    xbridge.asarray(x)


@pytest.mark.slow
def test_array_likes__every_sort_is_drawn() -> None:
    """Scalars, sequences, buffers and objects with an array protocol are drawn."""
    some = drawn(array_likes(backends="numpy"), 1000)
    found = {type(x).__name__ for x in some}
    assert {"bool", "int", "float", "complex", "list", "tuple", "ndarray", "float32", "memoryview"} <= found
    assert {"array", "DLPackOnly", "InterfaceOnly", "MethodOnly"} <= found
    exporter = next(x for x in some if type(x).__name__ == "InterfaceOnly")
    assert repr(exporter).startswith("InterfaceOnly(array(")
    assert any(isinstance(x, list) and len(x) == 2 and isinstance(x[0], np.ndarray) for x in some)


def test_array_likes__shape() -> None:
    """The last axes of an array-like have the requested shape."""
    for x in drawn(array_likes(backends=st.just("numpy"), shapes=(2, 3))):
        if type(x).__name__ != "array":
            assert xbridge.asarray(x).shape[-2:] == (2, 3)
