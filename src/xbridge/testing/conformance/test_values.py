"""Every value arrives, bit for bit, in its place, whichever way it goes and however it lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xbridge._api import asarray, to_backend, to_numpy
from xbridge._core.devices import CPU
from xbridge._core.dtypes import DTYPES, category, is_inexact
from xbridge._core.protocol import ArrayInfo
from xbridge._engine.verbs import to_list
from xbridge._host.memory import native_dtype
from xbridge._inspect import backend_of, dtype_of
from xbridge.backends import HOST
from xbridge.backends._registry import get
from xbridge.errors import DTypeError
from xbridge.testing._gaps import promise
from xbridge.testing.conformance._cases import (
    WHOLE,
    held,
    lay,
    of_its_own,
    of_the_host,
    plain,
    swept,
    telling,
)
from xbridge.testing.conformance._probes import apart, home, read, refusal_of, same_bits, spot
from xbridge.testing.conformance.test_autograd import follows
from xbridge.testing.samples.lookup import samples_of

if TYPE_CHECKING:
    from xbridge._core.protocol import HostArray
    from xbridge.testing.samples.model import Sample


@of_its_own
def test_the_kit_reads_what_it_laid(backend: str, sample: Sample) -> None:
    assert same_bits(read(backend, sample.array), sample.values)


@of_its_own
def test_numpy_gets_every_value(backend: str, sample: Sample) -> None:
    host = to_numpy(sample.array)
    assert same_bits(read(HOST, host), sample.values)
    assert isinstance(host, np.ndarray)
    assert backend == HOST or type(host) is np.ndarray


@of_the_host
def test_the_library_gets_every_value_of_the_host(backend: str, sample: Sample) -> None:
    x = to_backend(sample.array, backend)
    assert backend_of(x) == backend
    assert same_bits(read(backend, x), sample.values)
    info = get(backend).array_info(x)
    assert info[:4] == ArrayInfo(sample.values.dtype.name, home(backend), sample.values.shape)[:4]


@of_the_host
def test_what_came_from_the_host_goes_back_unchanged(backend: str, sample: Sample) -> None:
    assert same_bits(read(HOST, to_numpy(to_backend(sample.array, backend))), sample.values)


@of_its_own
def test_what_came_to_the_host_goes_back_unchanged(backend: str, sample: Sample) -> None:
    assert same_bits(read(backend, to_backend(to_numpy(sample.array), backend)), sample.values)


@of_its_own
def test_a_copy_has_every_value(backend: str, sample: Sample) -> None:
    module = get(backend)
    for copied in (to_backend(sample.array, backend, copy=True), module.copy(sample.array)):
        assert module.array_info(copied)[:3] == module.array_info(sample.array)[:3]
        assert same_bits(read(backend, copied), sample.values)
    assert same_bits(read(HOST, to_numpy(sample.array, copy=True)), sample.values)


@of_its_own
def test_what_is_pending_is_done_and_nothing_else(backend: str, sample: Sample) -> None:
    module = get(backend)
    done = module.materialize(sample.array)
    assert module.memory_layout(done).materialized
    assert same_bits(read(backend, done), sample.values)
    assert module.array_info(done)[:3] == module.array_info(sample.array)[:3]


@of_its_own
def test_a_list_has_every_number(backend: str, sample: Sample) -> None:
    for x in (sample.array, to_backend(sample.array, backend, copy=True)):
        assert repr(to_list(x)) == repr(sample.values.tolist())


def test_every_pattern_of_small_dtypes_crosses_both_ways(backend: str) -> None:
    for word in swept(backend):
        kind = native_dtype(word)
        if kind.itemsize > 2 or kind.kind == "b":
            continue
        values = np.arange(1 << 8 * kind.itemsize, dtype=f"u{kind.itemsize}").view(kind)
        assert same_bits(read(backend, to_backend(values.copy(), backend)), values), word
        assert same_bits(to_numpy(plain(backend, values)), values), word


def test_a_dtype_that_the_library_lacks_is_refused(backend: str) -> None:
    module, host = get(backend), get(HOST)
    lacked = [word for word in DTYPES if module.unsupported_dtype(word, CPU)]
    for word in [word for word in lacked if not host.unsupported_dtype(word, CPU)]:
        values = np.zeros(3, native_dtype(word))
        assert isinstance(refusal_of(to_backend, values, backend), DTypeError), word
    x = plain(backend, telling("float32", (3,)))
    for word in lacked:
        for given in (x, np.ones(3)):
            assert isinstance(refusal_of(to_backend, given, backend, dtype=word), DTypeError), word


# -- several arrays ------------------------------------------------------------------------------


def _three(name: str, dtype: str, shape: tuple[int, ...]) -> tuple[list[object], list[HostArray]]:
    """Arrays of one dtype and shape, that lie in three ways, and what they hold."""
    ways = [way for way, known in samples_of(name).ways.items() if known.takes(dtype, shape)]
    chosen = [ways[0], ways[len(ways) // 2], ways[-1]]
    laid = [lay(name, way, telling(dtype, shape, turn)) for turn, way in enumerate(chosen)]
    return [sample.array for sample in laid], [sample.values for sample in laid]


def test_arrays_are_stacked_in_order(backend: str) -> None:
    module = get(backend)
    for dtype in swept(backend):
        for shape in (WHOLE, (), (2, 0)):
            arrays, values = _three(backend, dtype, shape)
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


def _many(name: str, dtype: str, count: int) -> tuple[list[object], list[HostArray]]:
    """So many arrays that lie in one way after the other, and what they hold."""
    ways = [way for way, known in samples_of(name).ways.items() if known.takes(dtype, WHOLE)]
    laid = [lay(name, ways[turn % len(ways)], telling(dtype, WHOLE, turn)) for turn in range(count)]
    return [sample.array for sample in laid], [sample.values for sample in laid]


def test_any_number_of_arrays_is_stacked(backend: str) -> None:
    for dtype in [word for word in ("float32", "complex64", "int16") if word in held(backend)]:
        for count in (1, 2, 3, 17):
            arrays, values = _many(backend, dtype, count)
            for order in (slice(None), slice(None, None, -1)):
                tall = np.stack(values[order])
                for stacked in (asarray(arrays[order]), get(backend).stack(arrays[order], (count,))):
                    assert same_bits(read(backend, stacked), tall), (dtype, count)
                    assert apart(spot(backend, stacked), spot(backend, arrays[order][0])), (dtype, count)


@promise("autograd")
def test_the_history_of_every_array_in_a_stack_goes_on(backend: str) -> None:
    module = get(backend)
    dtype = next(word for word in ("float32", *filter(is_inexact, held(backend))) if word in held(backend))
    for count in (1, 2, 3, 17):
        leaves = [module.require_grad(plain(backend, telling(dtype, WHOLE, turn))) for turn in range(count)]
        bare = plain(backend, telling(dtype, WHOLE))
        for arrays in (leaves, [bare, *leaves], [*leaves, bare]):
            for stacked in (asarray(arrays), module.stack(arrays, (len(arrays),))):
                assert all(follows(backend, stacked, leaf) for leaf in leaves), count
                assert not module.array_info(bare).requires_grad


def test_arrays_of_the_host_are_stacked_in_order(backend: str) -> None:
    for dtype in swept(backend):
        arrays, values = _three(HOST, dtype, WHOLE)
        assert same_bits(read(backend, asarray(arrays, backend=backend)), np.stack(values)), dtype
        own = plain(backend, values[0])
        mixed = asarray([arrays[1], own, arrays[2]], backend=backend, device=home(backend))
        assert same_bits(read(backend, mixed), np.stack([values[1], values[0], values[2]])), dtype


def test_numbers_become_arrays_of_the_default_dtypes(backend: str) -> None:
    module = get(backend)
    numbers: dict[str, list[complex]] = {
        "bool": [True, False],
        "int": [1, -2, 100],
        "float": [0.5, -1.25],
        "complex": [1 + 2j, -3j],
    }
    for kind in dict.fromkeys(map(category, held(backend))):
        default = module.default_dtype(kind, CPU)
        x = asarray(numbers[kind], backend=backend)
        assert dtype_of(x) == default
        assert same_bits(read(backend, x), np.array(numbers[kind], native_dtype(default)))
