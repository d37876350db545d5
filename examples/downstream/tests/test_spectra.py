"""What the functions promise, on every library and device that is here.

`backend` is the name of a library, `device` a place of its arrays (one that is not its default, where there
is one), `xp` its array API namespace. Every test runs once for each library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from signals import signals
from spectra import lowpass, softmax, standardise

from xbridge import asarray, device_of, dtype_of, to_numpy
from xbridge.testing import assert_close, assert_unchanged
from xbridge.testing.strategies import arrays

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from xbridge import Device

FUNCTIONS = [standardise, softmax, lambda x: lowpass(x, keep=2)]
NAMES = ["standardise", "softmax", "lowpass"]


@given(data=st.data())
def test_softmax_ignores_a_shift(backend: str, data: st.DataObject) -> None:
    x = data.draw(arrays(backend, dtypes="float64", shapes=(2, 3), elements=(-9, 9)))
    with assert_unchanged(x):
        assert_close(softmax(x + 1), softmax(x))


@pytest.mark.parametrize("function", FUNCTIONS, ids=NAMES)
@given(data=st.data())
def test_a_result_is_where_and_what_its_input_is(
    backend: str, device: Device, function: Callable[[Any], Any], data: st.DataObject
) -> None:
    x = data.draw(signals(backend, device))
    with assert_unchanged(x):
        y = function(x)
    assert (y.shape, dtype_of(y), device_of(y)) == (x.shape, dtype_of(x), device_of(x))


@pytest.mark.parametrize("function", FUNCTIONS, ids=NAMES)
@given(data=st.data())
def test_every_library_gives_what_numpy_gives(
    backend: str, device: Device, function: Callable[[Any], Any], data: st.DataObject
) -> None:
    x = data.draw(signals(backend, device))
    assert_close(function(x), function(to_numpy(x, copy=True)), check_backend=False, atol=1e-4)


@given(data=st.data())
def test_a_standardised_signal_has_mean_0_and_deviation_1_or_is_zero(
    backend: str, device: Device, xp: ModuleType, data: st.DataObject
) -> None:
    x = data.draw(signals(backend, device))
    y = standardise(x)
    mean, spread = xp.mean(y, axis=-1), xp.std(y, axis=-1)
    assert_close(mean, xp.zeros_like(mean), atol=1e-2)
    assert_close(spread, xp.where(spread < 0.5, xp.zeros_like(spread), xp.ones_like(spread)), atol=1e-2)


@given(data=st.data(), number=st.sampled_from([0.1, -1e9, 0.0]))
def test_a_constant_signal_becomes_zero(
    backend: str, device: Device, data: st.DataObject, number: float
) -> None:
    x = data.draw(signals(backend, device))
    zero = x - x
    assert_close(standardise(zero + number), zero, rtol=0, atol=0)


def test_softmax_of_the_largest_numbers_is_finite(backend: str, device: Device, xp: ModuleType) -> None:
    x = asarray([3e38, 3e38, 0.0], backend=backend, device=device, dtype="float32")
    assert_close(softmax(x), xp.asarray([0.5, 0.5, 0.0], dtype=x.dtype, device=x.device))


@given(data=st.data())
def test_a_filter_changes_nothing_the_second_time(backend: str, device: Device, data: st.DataObject) -> None:
    x = data.draw(signals(backend, device))
    once = lowpass(x, keep=2)
    assert_close(lowpass(once, keep=2), once, atol=1e-4)
    assert_close(lowpass(x, keep=x.shape[-1]), x, atol=1e-4)


@pytest.mark.xbridge(needs="grad")
@given(data=st.data())
def test_gradients_flow_through(backend: str, device: Device, data: st.DataObject) -> None:
    x = data.draw(signals(backend, device, requires_grad=True))
    for function in FUNCTIONS:
        assert function(x).requires_grad


@pytest.mark.xbridge(only="numpy")
def test_the_filter_keeps_the_slow_wave(backend: str) -> None:
    time = np.arange(64) / 64
    slow, fast = np.sin(2 * np.pi * time), np.sin(2 * np.pi * 20 * time)
    assert_close(lowpass(slow + fast, keep=10), slow)
