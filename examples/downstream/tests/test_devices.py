"""A result is on the device of the input, and has its dtype."""

from hypothesis import given
from hypothesis import strategies as st
from signals import signals
from spectra import softmax

from xbridge import Device, device_of, dtype_of
from xbridge.testing import assert_unchanged


@given(data=st.data())
def test_a_softmax_is_where_and_what_its_input_is(backend: str, device: Device, data: st.DataObject) -> None:
    x = data.draw(signals(backend, device))
    with assert_unchanged(x):
        y = softmax(x)
    assert (y.shape, dtype_of(y), device_of(y)) == (x.shape, dtype_of(x), device_of(x))
