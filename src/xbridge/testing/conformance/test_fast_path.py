"""The fast path: it agrees with the plan, which a record asks for, or declines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xbridge import asarray, record, to_backend, to_numpy
from xbridge.extend import HOST, get_backend
from xbridge.testing.conformance._cases import (
    for_host_arrays,
    for_own_arrays,
)
from xbridge.testing.conformance._probes import (
    default_device,
    disjoint,
    memory_of,
    read,
    same_bits,
    same_memory,
)
from xbridge.testing.samples import samples_of

if TYPE_CHECKING:
    from xbridge.protocol import Array
    from xbridge.testing.samples import Sample


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
    module, x = get_backend(backend), sample.array
    with record():
        expected = to_backend(x, HOST)
    assert_same_result(HOST, to_numpy(x), expected, (backend, x))
    if type(x) in module.fast.types:
        direct = module.fast.to_numpy(x)
        if direct is not None:
            assert type(direct) is np.ndarray  # also of a subclass, such as a memmap
            plain = expected.view(np.ndarray) if backend == HOST else expected
            assert_same_result(HOST, direct, plain, (backend, x))
    assert asarray(x) is x


@for_own_arrays
def test_a_fast_copy_is_that_of_the_plan(backend: str, sample: Sample) -> None:
    module, x = get_backend(backend), sample.array
    made = (
        module.fast.copy_to_numpy(x) if module.fast.copy_to_numpy and type(x) in module.fast.types else None
    )
    if made is not None:
        with record():
            expected = to_backend(x, HOST, copy=True)
        assert_same_result(HOST, made, expected, (backend, x))
        assert made.strides == expected.strides
        assert not memory_of(HOST, module.fast.to_numpy(x)).writable


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
    for what, make in samples_of(HOST).refused.items():
        if backend != HOST and type(make()) in get_backend(HOST).fast.types:
            assert module.fast.from_numpy(make()) is None, what
