"""Gradients flow through, for the libraries that have them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from signals import signals
from spectra import softmax

from xbridge import Device


@pytest.mark.xbridge(needs="grad")
@given(data=st.data())
def test_gradients_flow_through(backend: str, device: Device, data: st.DataObject) -> None:
    x = data.draw(signals(backend, device, requires_grad=True))
    assert softmax(x).requires_grad
