"""Options: each is followed, or an error of xbridge is raised; the source never changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import strategies as st

from xbridge import asarray, backend_of, dtype_of, to_backend, to_list
from xbridge.errors import (
    CopyError,
    DTypeError,
    GradientError,
    UnsupportedArrayError,
    ValueLossError,
    XBridgeError,
)
from xbridge.extend import CPU, DTYPES, HOST, get_backend
from xbridge.testing.conformance._cases import common_dtypes, for_own_arrays, run_examples
from xbridge.testing.conformance._probes import (
    default_device,
    disjoint,
    error_of,
    memory_of,
    read,
    same_bits,
    same_memory,
)
from xbridge.testing.samples.lookup import samples_of
from xbridge.testing.strategies._arrays import samples

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge.protocol import Array
    from xbridge.testing.samples.model import Sample

_UNNAMED = ("default", "nearest")
"""Values of `dtype` for which the array and the target decide."""

OPTIONS: list[dict[str, Any]] = [
    {},
    {"copy": True},
    {"copy": False},
    {"grad": "detach"},
    {"grad": "keep"},
    {"device": "cpu"},
    {"dtype": "default"},
    {"dtype": "nearest"},
    {"dtype": "float32"},
    {"dtype": "int8", "copy": True},
    {"dtype": "bool"},
    {"device": "nowhere"},
]


@for_own_arrays
def test_a_conversion_does_not_change_its_source(backend: str, sample: Sample) -> None:
    module, x = get_backend(backend), sample.array
    before = module.array_info(x), module.memory_layout(x), type(x)
    calls: list[Callable[[], object]] = [
        lambda: to_list(x),
        lambda: asarray([x, x]),
        lambda: module.stack([x, x], (2,)),
    ]
    calls += [
        lambda: asarray(x, requires_grad=True),
        lambda: module.materialize(x),
        lambda: module.detach(x),
        lambda: module.copy(x),
    ]
    calls += [lambda: module.fast.to_numpy(x), lambda: module.to_numpy(module.detach(module.materialize(x)))]
    for name in (backend, HOST):
        calls += [lambda name=name, options=options: to_backend(x, name, **options) for options in OPTIONS]  # type: ignore[misc] # their defaults
    for call in calls:
        error_of(call)
        assert (module.array_info(x), module.memory_layout(x), type(x)) == before
    assert same_bits(read(backend, x), sample.values)


def test_unsupported_arrays_raise_with_a_hint(backend: str) -> None:
    module = get_backend(backend)
    for what, make in samples_of(backend).refused.items():
        refused = module.unsupported(make(), leaving=True)
        errors = [error_of(to_list, make())]
        if backend != HOST:
            plainly = [options for options in OPTIONS if refused or not {"dtype", "device"} & set(options)]
            errors += [error_of(to_backend, make(), HOST, **options) for options in plainly]
        for error in errors:
            assert isinstance(error, (UnsupportedArrayError, DTypeError)), f"{what}: {error!r}"
            if refused is not None:
                assert type(error) is refused.error, what
                assert str(error).endswith(f"{refused.reason}; try {refused.hint}"), what


def test_unsupported_arrays_stay_unchanged_within_the_library(backend: str) -> None:
    module = get_backend(backend)
    for what, make in samples_of(backend).refused.items():
        x = make()
        if module.unsupported(x, leaving=False) is None:
            assert to_backend(x, backend) is x, what
            assert asarray(x) is x, what
        else:
            assert error_of(to_backend, x, backend), what
        assert backend_of(x) == backend, what


def test_unsupported_host_arrays_raise(backend: str) -> None:
    for what, make in samples_of(HOST).refused.items() if backend != HOST else ():
        for options in ({}, {"copy": True}, {"grad": "detach"}):
            error = error_of(to_backend, make(), backend, **options)
            assert isinstance(error, (UnsupportedArrayError, DTypeError)), what


def test_to_backend_refuses_objects_that_are_not_arrays(backend: str) -> None:
    for thing in ([1.0, 2.0], 3, "words", None, object(), b"bytes"):
        assert isinstance(error_of(to_backend, thing, backend), UnsupportedArrayError)


# -- any options ---------------------------------------------------------------------------------


class Conversion(NamedTuple):
    """A conversion of a sample."""

    source: str
    target: str
    sample: Sample
    options: dict[str, Any]


@st.composite
def conversions(draw: st.DrawFn, backend: str) -> Conversion:
    """Draw conversions within the library, into it and out of it, with any options together."""
    source, target = draw(st.sampled_from([(backend, backend), (backend, HOST), (HOST, backend)]))
    options = {
        "device": st.sampled_from([None, *get_backend(target).devices()]),
        "dtype": st.sampled_from([None, *_UNNAMED, *DTYPES]),
        "copy": st.sampled_from([None, True, False]),
        "grad": st.sampled_from([None, "keep", "detach"]),
    }
    return Conversion(
        source, target, draw(samples(source)), draw(st.fixed_dictionaries({}, optional=options))
    )


def test_any_options_are_followed_or_raise(backend: str) -> None:
    run_examples(conversions(backend), _check_options, "test_any_options_are_followed_or_raise")


def _check_options(conversion: Conversion) -> None:
    source, target, sample, options = conversion
    x, before = sample.array, get_backend(source).array_info(sample.array)
    try:
        result = to_backend(x, target, **options)
    except XBridgeError as error:
        _check_refusal(error, options, tracked=before.requires_grad)
    else:
        _check_result(conversion, result)
    assert same_bits(read(source, x), sample.values), "the source was changed"
    assert get_backend(source).array_info(x) == before


def _check_result(conversion: Conversion, result: Array) -> None:
    source, target, (x, values, *_), options = conversion
    info, given = get_backend(target).array_info(result), get_backend(source).array_info(x)
    near = (
        default_device(target) if "host" in get_backend(target).gaps and given.device == CPU else given.device
    )
    near = CPU if get_backend(target).host_only else near
    assert info.shape == values.shape
    assert info.device == (options.get("device") or near)
    if options.get("dtype") in (None, values.dtype.name):
        assert same_bits(read(target, result), values)
    elif options["dtype"] not in _UNNAMED:
        assert info.dtype == dtype_of(result) == options["dtype"]
    if source != target or options.get("grad") == "detach":
        assert not info.requires_grad
    elif options.get("grad") == "keep" and given.requires_grad:
        assert info.requires_grad
    if info.device == given.device == CPU:
        places = memory_of(target, result), memory_of(source, x)
        assert options.get("copy") is not True or disjoint(*places)
        assert options.get("copy") is not False or same_memory(*places)


def _check_refusal(error: XBridgeError, options: dict[str, Any], *, tracked: bool) -> None:
    """Assert that an error follows from an option."""
    assert "; try " in str(error)
    assert not isinstance(error, CopyError) or options.get("copy") is False
    assert not isinstance(error, GradientError) or (tracked and options.get("grad") == "keep")
    assert not isinstance(error, ValueLossError) or options.get("dtype") in _UNNAMED


@for_own_arrays
def test_supported_options_never_raise(backend: str, sample: Sample) -> None:
    x, word = sample.array, sample.values.dtype.name
    for options in (
        {"copy": True, "dtype": word, "device": default_device(backend)},
        {"dtype": word, "grad": "detach"},
    ):
        assert same_bits(read(backend, to_backend(x, backend, **options)), sample.values)
        on_host: dict[str, Any] = {**options, "device": "cpu"}
        assert same_bits(read(HOST, to_backend(x, HOST, **on_host)), sample.values)
    assert word in common_dtypes(backend)
