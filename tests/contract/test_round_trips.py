"""A dtype that both libraries have goes there and back bit for bit, in any memory layout.

Values are known before an array is made of them, and are read by the means of the libraries.
"""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xbridge
from xbridge.backends._registry import get
from xbridge.testing.conformance._cases import common_dtypes
from xbridge.testing.conformance._probes import read, same_bits
from xbridge.testing.strategies import samples

HERE = [
    name for name in xbridge.known_backends() if xbridge.is_available(name) and "cpu" in get(name).devices()
]
SHAPES = st.sampled_from([(), (5,), (2, 3), (0, 2), (2, 3, 2)])
"""Few, because JAX compiles what it does for each of them."""


@pytest.mark.parametrize(("source", "target"), list(permutations(HERE, 2)))
@settings(max_examples=settings().max_examples // 2, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_an_array_comes_back_from_every_library_bit_for_bit(
    source: str, target: str, data: st.DataObject
) -> None:
    both = st.sampled_from([word for word in common_dtypes(source) if word in common_dtypes(target)])
    sample = data.draw(samples(source, dtypes=both, devices="cpu", shapes=SHAPES))
    there = xbridge.to_backend(sample.array, target)
    back = xbridge.to_backend(there, source)
    assert xbridge.dtype_of(there) == xbridge.dtype_of(back) == sample.values.dtype.name
    assert same_bits(read(target, there), sample.values)
    assert same_bits(read(source, back), sample.values)
