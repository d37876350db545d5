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
from xbridge.testing._gaps import promise
from xbridge.testing.conformance._cases import common_dtypes, edge_values, make_sample, plain_array
from xbridge.testing.conformance._probes import (
    default_device,
    memory_of,
    planned,
    read,
    refused_write,
    same_bits,
)
from xbridge.testing.conformance.test_casts import same_values
from xbridge.testing.samples.lookup import samples_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xbridge.protocol import Array, MemoryLayout
    from xbridge.testing.samples.model import Sample

SHAPES = (((1 << 17) + 3,), (2, 1, 3, 2, 2))

_each_shape = pytest.mark.parametrize("shape", SHAPES, ids=("long", "deep"))


def _samples(backend: str, shape: tuple[int, ...]) -> Iterator[Sample]:
    """Yield one array for each layout, of a common dtype."""
    dtype = next(word for word in ("float32", *common_dtypes(backend)) if word in common_dtypes(backend))
    for layout, case in samples_of(backend).cases.items():
        if case.takes(dtype, shape):
            yield make_sample(backend, layout, edge_values(dtype, shape))


def _disjoint_spans(a: MemoryLayout, b: MemoryLayout) -> bool:
    """Return True if the address ranges of two arrays do not overlap, or one has no address."""
    if a.is_unallocated() or b.is_unallocated():
        return True
    (low, high), (other_low, other_high) = ([x.address + end for end in x.span()] for x in (a, b))
    return high <= other_low or other_high <= low


def _copies(backend: str, x: Array) -> list[tuple[str, Array]]:
    """Return every result that must be new memory on the host."""
    module = get_backend(backend)
    made = [(backend, module.copy(x)), (backend, to_backend(x, backend, copy=True))]
    made += [(HOST, to_numpy(x, copy=True))]
    word = module.array_info(x).dtype
    for device in module.devices():
        if device != default_device(backend) and not module.unsupported_dtype(word, device):
            made += [(backend, module.to_device(module.to_device(x, device), default_device(backend)))]
            made += [(HOST, to_numpy(to_backend(x, backend, device=device)))]
    return made


@_each_shape
def test_a_copy_of_any_size_is_complete(backend: str, shape: tuple[int, ...]) -> None:
    for sample in _samples(backend, shape):
        for name, copied in _copies(backend, sample.array):
            assert same_bits(read(name, copied), sample.values), sample.layout
            assert _disjoint_spans(memory_of(name, copied), memory_of(backend, sample.array)), sample.layout


@_each_shape
def test_a_move_of_any_size_is_complete(backend: str, shape: tuple[int, ...]) -> None:
    module = get_backend(backend)
    for device in module.devices():
        for sample in _samples(backend, shape):
            if device != default_device(backend) and not module.unsupported_dtype(
                sample.values.dtype.name, device
            ):
                assert same_bits(read(backend, module.to_device(sample.array, device)), sample.values), (
                    sample.layout
                )


@_each_shape
def test_a_cast_of_any_size_is_complete(backend: str, shape: tuple[int, ...]) -> None:
    pairs = (("float32", "float64"), ("int16", "int32"))
    for dtype, other in [pair for pair in pairs if set(pair) <= set(common_dtypes(backend))]:
        values = edge_values(dtype, shape)
        with np.errstate(invalid="ignore"):  # some machines warn of a signalling NaN
            there, x = values.astype(other), plain_array(backend, values)
        assert same_values(read(backend, get_backend(backend).astype(x, other)), there)
        assert same_values(read(backend, to_backend(values, backend, dtype=other)), there)
        assert same_values(to_numpy(x, dtype=other), there)


@promise("host")
@_each_shape
def test_to_numpy_shares_memory_of_any_size(backend: str, shape: tuple[int, ...]) -> None:
    module = get_backend(backend)
    for sample in _samples(backend, shape):
        x = sample.array
        assert same_bits(read(HOST, to_numpy(x)), sample.values), sample.layout
        views = [module.fast.to_numpy(x)] if type(x) in module.fast.types else []
        views += [to_numpy(x)] if module.memory_layout(x).materialized else []
        for host in [view for view in views if view is not None]:
            assert same_bits(read(HOST, host), sample.values), sample.layout
            assert memory_of(HOST, host)[:3] == memory_of(backend, x)[:3], sample.layout


@_each_shape
def test_from_numpy_converts_memory_of_any_size(backend: str, shape: tuple[int, ...]) -> None:
    module = get_backend(backend)
    for sample in _samples(HOST, shape):
        host = sample.array
        if not module.unsupported_dtype(sample.values.dtype.name, CPU):
            with planned():
                expected = to_backend(host, backend, device=default_device(backend))
            for x in (expected, to_backend(host, backend)):
                assert same_bits(read(backend, x), sample.values), sample.layout
            direct = module.fast.from_numpy(host) if type(host) in get_backend(HOST).fast.types else None
            if direct is not None:
                assert same_bits(read(backend, direct), sample.values), sample.layout
                here, there, plan = (
                    memory_of(HOST, host),
                    memory_of(backend, direct),
                    memory_of(backend, expected),
                )
                disjoint = _disjoint_spans(here, there) and _disjoint_spans(here, plan)
                assert here[:3] == there[:3] or disjoint, sample.layout


@_each_shape
def test_read_only_memory_of_any_size_is_never_written(backend: str, shape: tuple[int, ...]) -> None:
    values = edge_values(
        "float32" if "float32" in common_dtypes(backend) else common_dtypes(backend)[0], shape
    )
    host = values.copy()
    host.flags.writeable = False
    if backend != HOST:
        refused_write(backend, to_backend(host, backend))
        assert same_bits(host, values)
    assert not refused_write(HOST, to_numpy(host, copy=True))
    assert same_bits(host, values)
