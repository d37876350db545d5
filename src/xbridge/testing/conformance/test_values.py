"""Values: every conversion keeps every bit in its position, in both directions and for every layout.

The fast path agrees with the plan, or declines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from xbridge import asarray, backend_of, record, to_backend, to_numpy
from xbridge.extend import HOST, get_backend, is_inexact, native_dtype
from xbridge.protocol import ArrayInfo
from xbridge.testing._parametrize import promise
from xbridge.testing.conformance._cases import (
    FULL_SHAPE,
    common_dtypes,
    default_device,
    disjoint,
    edge_values,
    for_all_arrays,
    for_host_arrays,
    for_own_arrays,
    memory_of,
    plain_array,
    read,
    same_bits,
    same_memory,
    same_values,
    swept_dtypes,
)
from xbridge.testing.conformance.test_autograd import gradient_reaches
from xbridge.testing.samples.lookup import make_sample, samples_of

if TYPE_CHECKING:
    from xbridge.protocol import Array, HostArray
    from xbridge.testing.samples import Sample


@for_all_arrays
def test_to_numpy_keeps_every_bit(backend: str, sample: Sample) -> None:
    assert same_bits(read(backend, sample.array), sample.values), "the sample holds other values"
    host = to_numpy(sample.array)
    assert same_bits(read(HOST, host), sample.values)
    assert isinstance(host, np.ndarray)
    assert backend == HOST or type(host) is np.ndarray


@for_host_arrays
def test_from_numpy_keeps_every_bit(backend: str, sample: Sample) -> None:
    for options in ({}, {"copy": True}, {"grad": "keep"}, {"grad": "detach"}):
        x = to_backend(sample.array, backend, **options)
        assert backend_of(x) == backend
        assert same_bits(read(backend, x), sample.values)
        info = get_backend(backend).array_info(x)._replace(native_byteorder=True)
        assert info == ArrayInfo(sample.values.dtype.name, default_device(backend), sample.values.shape)


def test_every_bit_pattern_of_a_small_dtype_converts_both_ways(backend: str) -> None:
    for word in swept_dtypes(backend):
        kind = native_dtype(word)
        if kind.itemsize > 2 or kind.kind == "b":
            continue
        values = np.arange(1 << 8 * kind.itemsize, dtype=f"u{kind.itemsize}").view(kind)
        assert same_bits(read(backend, to_backend(values.copy(), backend)), values), word
        assert same_bits(to_numpy(plain_array(backend, values)), values), word


@pytest.mark.parametrize("shape", [((1 << 17) + 3,), (2, 1, 3, 2, 2)], ids=("long", "deep"))
def test_arrays_of_any_size_are_complete(backend: str, shape: tuple[int, ...]) -> None:
    """Neither more elements than a library's block nor many axes lead to another result."""
    module = get_backend(backend)
    pairs = (("float32", "float64"), ("int16", "int32"), ("bool", "bool"))
    for dtype, other in [pair for pair in pairs if set(pair) <= set(common_dtypes(backend))]:
        values = edge_values(dtype, shape)
        with np.errstate(invalid="ignore"):  # some machines warn of a signalling NaN
            wide, x = values.astype(other), plain_array(backend, values)
        assert same_values(read(backend, module.astype(x, other)), wide), dtype
        assert same_bits(read(backend, module.copy(x)), values), dtype
        assert same_bits(to_numpy(x, copy=True), values), dtype
        for device in module.devices():
            moved = x if module.unsupported_dtype(dtype, device) else module.to_device(x, device)
            assert same_bits(read(backend, module.to_device(moved, default_device(backend))), values), device
        for layout, case in samples_of(HOST).cases.items():
            if case.takes(dtype, shape):
                host = make_sample(HOST, layout, values)
                assert same_bits(read(backend, to_backend(host.array, backend)), host.values), layout


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
            for count in (1, 18):
                many = (arrays * 6)[:count]
                for stacked in (asarray(many), module.stack(many, (count,))):
                    assert same_bits(read(backend, stacked), np.stack((values * 6)[:count])), (dtype, count)
                    assert disjoint(memory_of(backend, stacked), memory_of(backend, a)), (dtype, count)


@promise("autograd")
def test_gradients_flow_from_a_stack_to_each_of_its_arrays(backend: str) -> None:
    module = get_backend(backend)
    dtype = min(filter(is_inexact, common_dtypes(backend)), key=lambda word: word != "float32")
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


# -- the fast path: it agrees with the plan, which a record asks for, or declines -----------------


def assert_same_result(target: str, direct: Array, expected: Array, source: tuple[str, Array]) -> None:
    """Assert that a direct and a planned result have the same type, values, memory and flags."""
    module, (name, x) = get_backend(target), source
    assert type(direct) is type(expected)
    assert module.array_info(direct) == module.array_info(expected)
    assert same_bits(read(target, direct), read(target, expected))
    assert memory_of(target, direct).writable is memory_of(target, expected).writable, (
        "only one of them is writable"
    )
    shared = [same_memory(memory_of(target, y), memory_of(name, x)) for y in (direct, expected)]
    assert shared[0] is shared[1], "only one of them shares the memory"
    assert shared[0] or disjoint(memory_of(target, direct), memory_of(name, x))


@for_own_arrays
def test_the_fast_path_to_numpy_agrees_with_the_plan(backend: str, sample: Sample) -> None:
    fast, x = get_backend(backend).fast, sample.array
    with record():
        expected, copied = to_backend(x, HOST), to_backend(x, HOST, copy=True)
    assert_same_result(HOST, to_numpy(x), expected, (backend, x))
    assert asarray(x) is x
    if type(x) not in fast.types:
        return
    if (direct := fast.to_numpy(x)) is not None:
        assert type(direct) is np.ndarray  # also of a subclass, such as a memmap
        plain = expected.view(np.ndarray) if backend == HOST else expected
        assert_same_result(HOST, direct, plain, (backend, x))
    if fast.copy_to_numpy and (made := fast.copy_to_numpy(x)) is not None:
        assert_same_result(HOST, made, copied, (backend, x))
        assert made.strides == copied.strides
        assert not memory_of(HOST, direct).writable


@for_host_arrays
def test_the_fast_path_from_numpy_agrees_with_the_plan(backend: str, sample: Sample) -> None:
    module, host = get_backend(backend), sample.array
    with record():
        expected = to_backend(host, backend, device=default_device(backend))
    assert_same_result(backend, to_backend(host, backend), expected, (HOST, host))
    if type(host) in get_backend(HOST).fast.types:
        direct = module.fast.from_numpy(host)
        if direct is not None:
            assert_same_result(backend, direct, expected, (HOST, host))


@for_host_arrays
def test_fresh_host_memory_is_shared(backend: str, sample: Sample) -> None:
    module, fresh = get_backend(backend), sample.array.astype(sample.values.dtype, subok=False)
    made = module.fast.from_fresh and module.fast.from_fresh(fresh)
    if made is not None:
        assert_same_result(backend, made, module.from_numpy(fresh), (HOST, fresh))
        assert disjoint(memory_of(backend, made), memory_of(HOST, fresh)) is (fresh.size == 0)


def test_the_fast_path_declines_unsupported_arrays(backend: str) -> None:
    module = get_backend(backend)
    for what, make in samples_of(backend).refused.items():
        if backend != HOST and type(make()) in module.fast.types:
            assert module.fast.to_numpy(make()) is None, what
            assert not module.fast.resolve_to_numpy or module.fast.resolve_to_numpy(make()) is None, what
    for what, make in samples_of(HOST).refused.items():
        if backend != HOST and type(make()) in get_backend(HOST).fast.types:
            assert module.fast.from_numpy(make()) is None, what
