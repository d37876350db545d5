"""Signals to test with."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from xbridge import Device
from xbridge.testing.strategies import arrays


def signals(backend: str, device: Device, **asked: Any) -> st.SearchStrategy[Any]:
    """Signals of a library on a device, in whatever layout the library has; `asked` as for `arrays`."""
    return arrays(
        backend,
        dtypes=["float32", "float64"],
        shapes=array_shapes(min_dims=1, max_dims=3, max_side=6),
        devices=device,
        elements=(-9, 9),
        **asked,
    )
