"""Signals to test with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from xbridge.testing.strategies import arrays

if TYPE_CHECKING:
    from xbridge import Device


def signals(backend: str, device: Device, **asked: Any) -> st.SearchStrategy[Any]:
    """Signals of a library on a device, in whatever layout the library has; `asked` as for `arrays`."""
    return arrays(
        backend,
        dtypes=st.sampled_from(["float32", "float64"]),
        shapes=array_shapes(min_dims=1, max_dims=3, max_side=6),
        devices=device,
        elements=(-9, 9),
        **asked,
    )
