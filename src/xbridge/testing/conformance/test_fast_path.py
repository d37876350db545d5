"""The hot path does what the plan would have done, or leaves it to the plan; it remembers nothing.

A plan can be had for the asking: ``device="cpu"`` changes nothing about an array on the host, and takes the
long way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xbridge._api import asarray, to_backend, to_numpy
from xbridge._host.memory import native_dtype
from xbridge.backends import HOST
from xbridge.backends._registry import fast_converters, get
from xbridge.testing.conformance._cases import WHOLE, held, lay, of_its_own, of_the_host, telling
from xbridge.testing.conformance._probes import apart, home, poke, read, same_bits, spot, together
from xbridge.testing.samples.lookup import samples_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge._core.protocol import Array
    from xbridge.testing.samples.model import Sample


def alike(target: str, direct: Array, planned: Array, source: tuple[str, Array]) -> None:
    """Check that two results cannot be told apart."""
    module, (name, x) = get(target), source
    assert type(direct) is type(planned)
    assert module.array_info(direct) == module.array_info(planned)
    assert same_bits(read(target, direct), read(target, planned))
    assert spot(target, direct).writable is spot(target, planned).writable, "one may be written, one may not"
    shared = [together(spot(target, y), spot(name, x)) for y in (direct, planned)]
    assert shared[0] is shared[1], "one of them looks at the memory, one does not"
    assert shared[0] or apart(spot(target, direct), spot(name, x))


@of_its_own
def test_an_array_gets_to_the_host_as_it_would_with_a_plan(backend: str, sample: Sample) -> None:
    module, x = get(backend), sample.array
    planned = to_backend(x, HOST, device="cpu")
    alike(HOST, to_numpy(x), planned, (backend, x))
    if type(x) in module.fast_types:
        direct = module.fast_to_numpy(x)
        if direct is not None:
            assert type(direct) is np.ndarray or backend == HOST
            alike(HOST, direct, planned, (backend, x))
    assert asarray(x) is x


@of_the_host
def test_an_array_of_the_host_gets_here_as_it_would_with_a_plan(backend: str, sample: Sample) -> None:
    module, host = get(backend), sample.array
    planned = to_backend(host, backend, device=home(backend))
    alike(backend, to_backend(host, backend), planned, (HOST, host))
    if type(host) in get(HOST).fast_types:
        direct = module.fast_from_numpy(host)
        if direct is not None:
            alike(backend, direct, planned, (HOST, host))


def test_what_must_not_leave_is_left_to_the_plan(backend: str) -> None:
    module = get(backend)
    for what, make in samples_of(backend).refused.items():
        if backend != HOST and type(make()) in module.fast_types:
            assert module.fast_to_numpy(make()) is None, what
    for what, make in samples_of(HOST).refused.items():
        if backend != HOST and type(make()) in get(HOST).fast_types:
            assert module.fast_from_numpy(make()) is None, what


def test_every_plain_type_takes_the_hot_path(backend: str) -> None:
    to_numpy(lay(backend, next(iter(samples_of(backend).ways)), telling("float32", WHOLE)).array)
    assert set(get(backend).fast_types) <= set(fast_converters[HOST])
    assert set(get(HOST).fast_types) <= set(fast_converters[backend])


# -- nothing is remembered -----------------------------------------------------------------------


def _conversions(backend: str) -> list[tuple[str, Callable[[Array], Array]]]:
    module = get(backend)
    return [
        (HOST, to_numpy),
        (HOST, lambda x: to_numpy(x, copy=True)),
        (HOST, lambda x: to_backend(x, HOST, device="cpu")),
        (backend, lambda x: to_backend(x, backend)),
        (backend, lambda x: to_backend(x, backend, copy=True)),
        (backend, lambda x: to_backend(x, backend, grad="detach")),
        (backend, lambda x: asarray([x])),
        (backend, module.materialize),
    ]


def _a_few(backend: str) -> list[str]:
    """Enough dtypes for everything that can be pending."""
    return [word for word in ("float32", "complex64", "int16") if word in held(backend)]


def test_two_arrays_in_a_row_are_two(backend: str) -> None:
    for dtype in _a_few(backend):
        for target, convert in _conversions(backend):
            for way, known in samples_of(backend).ways.items():
                for turn in range(2 if known.takes(dtype, WHOLE) else 0):
                    x, values, *_ = lay(backend, way, telling(dtype, WHOLE, turn))
                    assert same_bits(read(target, convert(x)).reshape(WHOLE), values), (way, turn)
                    del x


def test_an_array_that_was_written_is_converted_anew(backend: str) -> None:
    for dtype in _a_few(backend):
        for target, convert in _conversions(backend):
            for way, known in samples_of(backend).ways.items():
                if known.takes(dtype, WHOLE) and known.writable and not known.tracked:
                    x, values, *_ = lay(backend, way, telling(dtype, WHOLE))
                    before = read(target, convert(x))
                    samples_of(backend).write(x)
                    after = read(target, convert(x)).reshape(WHOLE)
                    assert same_bits(after, read(backend, x)), way
                    assert not same_bits(after, values), way
                    assert same_bits(before.reshape(WHOLE), values), way


@of_the_host
def test_memory_of_the_host_that_was_written_is_converted_anew(backend: str, sample: Sample) -> None:
    host = sample.array
    for options in ({}, {"copy": True}, {"device": home(backend)}):
        to_backend(host, backend, **options)
        poke(spot(HOST, host), sample.values.dtype.name)
        assert same_bits(read(backend, to_backend(host, backend, **options)), read(HOST, host))
        poke(spot(HOST, host), sample.values.dtype.name)


@of_its_own
def test_asking_twice_gives_the_same_answers(backend: str, sample: Sample) -> None:
    module, x = get(backend), sample.array
    for ask in (
        module.array_info,
        module.memory_layout,
        lambda x: module.unsupported(x, leaving=True),
        lambda x: type(to_numpy(x)),
    ):
        assert ask(x) == ask(x)
    assert [module.owns(type(x)) for _ in range(2)] == [True, True]
    assert same_bits(to_numpy(x, copy=True), to_numpy(x, copy=True))
    assert module.devices() == module.devices()
    assert [module.unsupported_dtype(word, module.array_info(x).device) for word in held(backend)] == [
        None
    ] * len(held(backend))
    assert native_dtype(module.array_info(x).dtype) == sample.values.dtype
