"""Mistakes that are usually hidden on a machine without a GPU, made on purpose: these tests see them.

Each function is one of `spectra` with a mistake that NumPy, and torch on the CPU, accept. The strict
companions among the libraries do not: `array_api_strict` has devices other than the CPU, and arrays of
`numpy_readonly` cannot be written. With the other libraries, an assertion is needed to see the mistake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from array_api_compat import array_namespace
from hypothesis import given
from hypothesis import strategies as st
from signals import signals
from spectra import softmax

from xbridge import asarray
from xbridge.testing import assert_close, assert_unchanged

if TYPE_CHECKING:
    from xbridge import Device


def forgetful_lowpass(x: Any, /, *, keep: int) -> Any:
    """Make the mask on the default device."""
    xp = array_namespace(x)
    spectrum = xp.fft.rfft(x)
    waves = xp.arange(spectrum.shape[-1])
    return xp.fft.irfft(xp.where(waves < keep, spectrum, xp.zeros_like(spectrum)), n=x.shape[-1])


def detouring_softmax(x: Any, /) -> Any:
    """Let NumPy do it."""
    return array_namespace(x).asarray(softmax(np.asarray(x)))


def hasty_softmax(x: Any, /) -> Any:
    """Save memory, in the caller's array."""
    xp = array_namespace(x)
    x -= xp.max(x, axis=-1, keepdims=True)
    return xp.exp(x) / xp.sum(xp.exp(x), axis=-1, keepdims=True)


def rough_softmax(x: Any, /) -> Any:
    """Work in single precision, whatever was given."""
    xp = array_namespace(x)
    return xp.astype(softmax(xp.astype(x, xp.float32)), x.dtype)


@pytest.mark.xbridge(needs="device")
@given(data=st.data())
def test_a_forgotten_device_fails_where_there_is_another(
    backend: str, device: Device, data: st.DataObject
) -> None:
    x = data.draw(signals(backend, device))
    with pytest.raises((ValueError, RuntimeError), match="device"):
        forgetful_lowpass(x, keep=2)


@pytest.mark.xbridge(needs="device")
@given(data=st.data())
def test_a_detour_through_numpy_fails_where_there_is_another_device(
    backend: str, device: Device, data: st.DataObject
) -> None:
    x = data.draw(signals(backend, device))
    with pytest.raises((RuntimeError, TypeError), match="device"):
        detouring_softmax(x)


@pytest.mark.xbridge(only="numpy_readonly")
@given(data=st.data())
def test_a_write_in_place_fails_on_a_read_only_library(
    backend: str, device: Device, data: st.DataObject
) -> None:
    x = data.draw(signals(backend, device))
    with assert_unchanged(x), pytest.raises(ValueError, match="read-only"):
        hasty_softmax(x)


@pytest.mark.xbridge(skip="numpy_readonly")
def test_a_write_in_place_is_reported_on_every_other(backend: str, device: Device) -> None:
    x = asarray([1.0, 2.0], backend=backend, device=device)
    with pytest.raises(AssertionError, match="array 0 was changed"), assert_unchanged(x):
        hasty_softmax(x)


@pytest.mark.xbridge(needs="float64")
def test_a_loss_of_precision_is_reported(backend: str, device: Device) -> None:
    x = asarray([0.1, 0.7], backend=backend, device=device, dtype="float64")
    with pytest.raises(AssertionError, match="the arrays differ in 2 of 2 values"):
        assert_close(rough_softmax(x), softmax(x), rtol=1e-9, atol=0)
