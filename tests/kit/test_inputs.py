"""What is drawn to be handed to xbridge: whatever is an array, whole conversions, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drawing import drawn
from hypothesis import given
from hypothesis import strategies as st
from inside import get_backend

import xbridge
from xbridge.testing.strategies import (
    array_likes,
    conversions,
    refusals,
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


@given(conversions())
def test_conversions__succeed_or_raise_with_a_suggestion(call: Any) -> None:
    """A drawn conversion returns an array of the target, or raises with a suggestion."""
    refused = None
    try:
        result = xbridge.to_backend(call.array, call.target, **call.options)
    except xbridge.XBridgeError as error:
        refused = str(error)
    assert "; try " in refused if refused else xbridge.backend_of(result) == call.target


@pytest.mark.slow
def test_conversions__every_option_is_drawn() -> None:
    """Conversions are drawn with each value of every option, and to the given targets."""
    some = drawn(conversions(backends="numpy", targets=st.just("numpy")), 1000)
    assert {call.target for call in some} == {"numpy"}
    asked = {(word, value) for call in some for word, value in call.options.items()}
    assert {("copy", None), ("copy", True), ("copy", False)} <= asked
    assert {("grad", None), ("grad", "keep"), ("grad", "detach")} <= asked
    assert {
        ("device", None),
        ("device", "cpu"),
        ("dtype", None),
        ("dtype", "default"),
        ("dtype", "nearest"),
    } <= asked
    assert len({word for option, word in asked if option == "dtype"}) > 10


def test_refusals__many_kinds_of_numpy_arrays() -> None:
    """Many kinds of arrays are drawn, and the backend supports none of them."""
    assert len({repr(type(x)) + repr(x) for x in drawn(refusals("numpy"), 500)}) > 10
    for x in drawn(refusals("numpy"), 50):
        assert get_backend("numpy").unsupported(x, leaving=True)
