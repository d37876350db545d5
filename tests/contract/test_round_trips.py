"""A dtype that both libraries have goes there and back bit for bit, in any memory layout.

Values are known before an array is made of them, and are read by the means of the libraries.
"""

from __future__ import annotations

from itertools import permutations

import pytest
from inside import get_backend

import xbridge
from xbridge.testing.conformance._cases import FULL_SHAPE, common_dtypes, edge_values, plain_array
from xbridge.testing.conformance._probes import read, same_bits
from xbridge.testing.samples.model import Sample

HERE = [
    name
    for name in xbridge.known_backends()
    if xbridge.is_available(name) and "cpu" in get_backend(name).devices()
]
PAIRS = list(permutations(HERE, 2))


def check(source: str, target: str, sample: Sample) -> None:
    there = xbridge.to_backend(sample.array, target)
    back = xbridge.to_backend(there, source)
    assert xbridge.dtype_of(there) == xbridge.dtype_of(back) == sample.values.dtype.name
    assert same_bits(read(target, there), sample.values)
    assert same_bits(read(source, back), sample.values)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_to_backend__round_trip_of_every_common_dtype(source: str, target: str) -> None:
    """Edge values of each dtype that two libraries have survive the round trip."""
    for dtype in common_dtypes(source):
        if dtype in common_dtypes(target):
            values = edge_values(dtype, FULL_SHAPE)
            check(source, target, Sample(plain_array(source, values), values, "plain", False, True))
