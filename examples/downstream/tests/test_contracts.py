"""What a function promises, as a test without a reference."""

from functools import partial
from typing import Any

from spectra import softmax

from xbridge.testing import contract
from xbridge.testing.strategies import arrays

numbers = partial(arrays, dtypes=["float32", "float64"], elements=(-9, 9))


@contract(numbers, dtype="kept", aliases=False, ulp=24, empty=False)
def test_softmax_keeps_its_contract(x: Any) -> Any:
    return softmax(x)
