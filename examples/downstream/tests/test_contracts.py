"""What a function promises, as a test without a reference."""

from functools import partial
from typing import Any

from hypothesis.extra.numpy import array_shapes
from spectra import softmax

from xbridge.testing import contract
from xbridge.testing.strategies import arrays

shapes = array_shapes(max_dims=3, max_side=6)  # with an axis, and with elements
numbers = partial(arrays, dtypes=["float32", "float64"], shapes=shapes, elements=(-9, 9))


@contract(numbers, dtype="kept", aliases=False, ulp=24, empty=False)
def test_softmax_keeps_its_contract(x: Any) -> Any:
    return softmax(x)
