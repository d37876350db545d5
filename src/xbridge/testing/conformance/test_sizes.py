"""Sizes: results do not depend on the number of elements or axes.

Small arrays take short cuts: one block, one thread, one element checked. So every step runs here with an odd
number of elements that is larger than any library's block, and with five axes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from xbridge import to_backend, to_numpy
from xbridge.extend import CPU, HOST, get_backend
from xbridge.testing.conformance._cases import common_dtypes, edge_values, make_sample, plain_array
from xbridge.testing.conformance._probes import default_device, memory_of, planned, read, same_bits
from xbridge.testing.conformance.test_casts import same_values
from xbridge.testing.samples.lookup import samples_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xbridge.protocol import Array, MemoryLayout
    from xbridge.testing.samples.model import Sample

SHAPES = (((1 << 17) + 3,), (2, 1, 3, 2, 2))

_each_shape = pytest.mark.parametrize("shape", SHAPES, ids=("long", "deep"))


def _samples(name: str, dtype: str, shape: tuple[int, ...]) -> Iterator[Sample]:
    """Yield one array for each layout."""
    for layout, case in samples_of(name).cases.items():
        if case.takes(dtype, shape):
            yield make_sample(name, layout, edge_values(dtype, shape))


def _overlap(a: MemoryLayout, b: MemoryLayout) -> bool:
    """Return True if the address ranges of two arrays overlap."""
    if a.is_unallocated() or b.is_unallocated():
        return False
    (low, high), (other_low, other_high) = ([x.address + end for end in x.span()] for x in (a, b))
    return low < other_high and other_low < high


def _copies(backend: str, x: Array) -> Iterator[tuple[str, Array]]:
    """Yield every result that must be new memory on the host."""
    module = get_backend(backend)
    yield backend, module.copy(x)
    yield HOST, to_numpy(x, copy=True)
    for device in module.devices():
        if device != default_device(backend) and not module.unsupported_dtype(
            module.array_info(x).dtype, device
        ):
            moved = module.to_device(x, device)
            assert same_bits(read(backend, moved), read(backend, x)), device
            yield backend, module.to_device(moved, default_device(backend))


@_each_shape
def test_a_copy_of_any_size_is_complete(backend: str, shape: tuple[int, ...]) -> None:
    dtype = next(word for word in ("float32", *common_dtypes(backend)) if word in common_dtypes(backend))
    for sample in _samples(backend, dtype, shape):
        assert same_bits(read(HOST, to_numpy(sample.array)), sample.values), sample.layout
        for name, copied in _copies(backend, sample.array):
            assert same_bits(read(name, copied), sample.values), sample.layout
            assert not _overlap(memory_of(name, copied), memory_of(backend, sample.array)), sample.layout


@_each_shape
def test_a_cast_of_any_size_is_complete(backend: str, shape: tuple[int, ...]) -> None:
    pairs = (("float32", "float64"), ("int16", "int32"))
    for dtype, other in [pair for pair in pairs if set(pair) <= set(common_dtypes(backend))]:
        values = edge_values(dtype, shape)
        with np.errstate(invalid="ignore"):  # some machines warn of a signalling NaN
            there, x = values.astype(other), plain_array(backend, values)
        assert same_values(read(backend, get_backend(backend).astype(x, other)), there)


@_each_shape
def test_from_numpy_converts_memory_of_any_size(backend: str, shape: tuple[int, ...]) -> None:
    module = get_backend(backend)
    for sample in _samples(HOST, "float32", shape):
        host = sample.array
        if not module.unsupported_dtype("float32", CPU):
            with planned():
                plan = to_backend(host, backend, device=default_device(backend))
            direct = module.fast.from_numpy(host) if type(host) in get_backend(HOST).fast.types else None
            for x in (plan, to_backend(host, backend), *([] if direct is None else [direct])):
                assert same_bits(read(backend, x), sample.values), sample.layout
            if direct is not None:
                here = memory_of(HOST, host)
                shared = [_overlap(here, memory_of(backend, x)) for x in (plan, direct)]
                assert shared[0] is shared[1], sample.layout
