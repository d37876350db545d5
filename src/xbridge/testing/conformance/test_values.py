"""Values: every conversion keeps every bit in its position, in both directions and for every layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xbridge import asarray, backend_of, to_backend, to_numpy
from xbridge.extend import HOST, get_backend, is_inexact, native_dtype
from xbridge.protocol import ArrayInfo
from xbridge.testing._gaps import promise
from xbridge.testing.conformance._cases import (
    FULL_SHAPE,
    common_dtypes,
    edge_values,
    for_host_arrays,
    for_own_arrays,
    make_sample,
    plain_array,
    swept_dtypes,
)
from xbridge.testing.conformance._probes import default_device, disjoint, memory_of, read, same_bits
from xbridge.testing.conformance.test_autograd import gradient_reaches
from xbridge.testing.samples.lookup import samples_of

if TYPE_CHECKING:
    from xbridge.protocol import HostArray
    from xbridge.testing.samples.model import Sample


@for_own_arrays
def test_the_samples_hold_their_values(backend: str, sample: Sample) -> None:
    assert same_bits(read(backend, sample.array), sample.values)


@for_own_arrays
def test_to_numpy_keeps_every_bit(backend: str, sample: Sample) -> None:
    host = to_numpy(sample.array)
    assert same_bits(read(HOST, host), sample.values)
    assert isinstance(host, np.ndarray)
    assert backend == HOST or type(host) is np.ndarray


@for_host_arrays
def test_from_numpy_keeps_every_bit(backend: str, sample: Sample) -> None:
    x = to_backend(sample.array, backend)
    assert backend_of(x) == backend
    assert same_bits(read(backend, x), sample.values)
    info = get_backend(backend).array_info(x)
    assert info[:4] == ArrayInfo(sample.values.dtype.name, default_device(backend), sample.values.shape)[:4]


@for_own_arrays
def test_a_copy_keeps_every_bit(backend: str, sample: Sample) -> None:
    module = get_backend(backend)
    for copied in (to_backend(sample.array, backend, copy=True), module.copy(sample.array)):
        assert module.array_info(copied)[:3] == module.array_info(sample.array)[:3]
        assert same_bits(read(backend, copied), sample.values)
    assert same_bits(read(HOST, to_numpy(sample.array, copy=True)), sample.values)


@for_own_arrays
def test_materialize_keeps_every_bit(backend: str, sample: Sample) -> None:
    module = get_backend(backend)
    done = module.materialize(sample.array)
    assert module.memory_layout(done).materialized
    assert same_bits(read(backend, done), sample.values)
    assert module.array_info(done)[:3] == module.array_info(sample.array)[:3]


def test_every_bit_pattern_of_a_small_dtype_converts_both_ways(backend: str) -> None:
    for word in swept_dtypes(backend):
        kind = native_dtype(word)
        if kind.itemsize > 2 or kind.kind == "b":
            continue
        values = np.arange(1 << 8 * kind.itemsize, dtype=f"u{kind.itemsize}").view(kind)
        assert same_bits(read(backend, to_backend(values.copy(), backend)), values), word
        assert same_bits(to_numpy(plain_array(backend, values)), values), word


# -- several arrays ------------------------------------------------------------------------------


def _three_arrays(name: str, dtype: str, shape: tuple[int, ...]) -> tuple[list[object], list[HostArray]]:
    """Return arrays of one dtype and shape in three layouts, and their values."""
    layouts = [layout for layout, case in samples_of(name).cases.items() if case.takes(dtype, shape)]
    chosen = [layouts[0], layouts[len(layouts) // 2], layouts[-1]]
    laid = [make_sample(name, layout, edge_values(dtype, shape, turn)) for turn, layout in enumerate(chosen)]
    return [sample.array for sample in laid], [sample.values for sample in laid]


def test_arrays_are_stacked_in_order(backend: str) -> None:
    module = get_backend(backend)
    for dtype in swept_dtypes(backend):
        for shape in (FULL_SHAPE, (), (2, 0)):
            arrays, values = _three_arrays(backend, dtype, shape)
            a, b, c = arrays
            flat = [asarray(arrays), asarray([a, (b), c], backend=backend), module.stack(arrays, (3,))]
            nested = [asarray([[a, b], [c, a]]), module.stack([a, b, c, a], (2, 2))]
            tall = np.stack(values)
            for stacked in flat:
                assert same_bits(read(backend, stacked), tall), (dtype, shape)
            square = np.stack([*values, values[0]]).reshape((2, 2, *shape))
            for stacked in nested:
                assert same_bits(read(backend, stacked), square), (dtype, shape)
            assert same_bits(to_numpy(asarray(arrays, backend=HOST)), tall), (dtype, shape)


def _numbered_arrays(name: str, dtype: str, count: int) -> tuple[list[object], list[HostArray]]:
    """Return `count` arrays that cycle through the layouts, and their values."""
    layouts = [layout for layout, case in samples_of(name).cases.items() if case.takes(dtype, FULL_SHAPE)]
    laid = [
        make_sample(name, layouts[turn % len(layouts)], edge_values(dtype, FULL_SHAPE, turn))
        for turn in range(count)
    ]
    return [sample.array for sample in laid], [sample.values for sample in laid]


def test_any_number_of_arrays_is_stacked(backend: str) -> None:
    for dtype in [word for word in ("float32", "complex64", "int16") if word in common_dtypes(backend)]:
        for count in (1, 2, 3, 17):
            arrays, values = _numbered_arrays(backend, dtype, count)
            for order in (slice(None), slice(None, None, -1)):
                tall = np.stack(values[order])
                for stacked in (asarray(arrays[order]), get_backend(backend).stack(arrays[order], (count,))):
                    assert same_bits(read(backend, stacked), tall), (dtype, count)
                    assert disjoint(memory_of(backend, stacked), memory_of(backend, arrays[order][0])), (
                        dtype,
                        count,
                    )


@promise("autograd")
def test_gradients_flow_from_a_stack_to_each_of_its_arrays(backend: str) -> None:
    module = get_backend(backend)
    dtype = next(
        word
        for word in ("float32", *filter(is_inexact, common_dtypes(backend)))
        if word in common_dtypes(backend)
    )
    for count in (1, 2, 3, 17):
        leaves = [
            module.require_grad(plain_array(backend, edge_values(dtype, FULL_SHAPE, turn)))
            for turn in range(count)
        ]
        bare = plain_array(backend, edge_values(dtype, FULL_SHAPE))
        for arrays in (leaves, [bare, *leaves], [*leaves, bare]):
            for stacked in (asarray(arrays), module.stack(arrays, (len(arrays),))):
                assert all(gradient_reaches(backend, stacked, leaf) for leaf in leaves), count
                assert not module.array_info(bare).requires_grad
