"""Whatever is asked of whatever array: it is done as asked, or refused in the form of all refusals.

And nothing that is asked changes the array that it is asked of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import strategies as st

from xbridge._api import asarray, to_backend
from xbridge._core.devices import CPU
from xbridge._core.dtypes import DTYPES, UNNAMED
from xbridge._engine.verbs import to_list
from xbridge._inspect import backend_of, dtype_of
from xbridge.backends import HOST
from xbridge.backends._registry import get
from xbridge.errors import (
    CopyError,
    DTypeError,
    GradientError,
    UnsupportedArrayError,
    ValueLossError,
    XBridgeError,
)
from xbridge.testing.conformance._cases import held, of_its_own, try_on
from xbridge.testing.conformance._probes import apart, home, read, refusal_of, same_bits, spot, together
from xbridge.testing.samples.lookup import samples_of
from xbridge.testing.strategies._arrays import samples

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge._core.protocol import Array
    from xbridge.testing.samples.model import Sample

ASKED: list[dict[str, Any]] = [
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


@of_its_own
def test_no_conversion_changes_its_source(backend: str, sample: Sample) -> None:
    module, x = get(backend), sample.array
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
    calls += [lambda: module.fast_to_numpy(x), lambda: module.to_numpy(module.detach(module.materialize(x)))]
    for name in (backend, HOST):
        calls += [lambda name=name, asked=asked: to_backend(x, name, **asked) for asked in ASKED]  # type: ignore[misc] # their defaults
    for call in calls:
        refusal_of(call)
        assert (module.array_info(x), module.memory_layout(x), type(x)) == before
    assert same_bits(read(backend, x), sample.values)


def test_what_must_not_leave_is_refused_with_a_way_out(backend: str) -> None:
    module = get(backend)
    for what, make in samples_of(backend).refused.items():
        refused = module.unsupported(make(), leaving=True)
        errors = [refusal_of(to_list, make())]
        if backend != HOST:
            plainly = [asked for asked in ASKED if refused or not {"dtype", "device"} & set(asked)]
            errors += [refusal_of(to_backend, make(), HOST, **asked) for asked in plainly]
        for error in errors:
            assert isinstance(error, (UnsupportedArrayError, DTypeError)), f"{what}: {error!r}"
            if refused is not None:
                assert type(error) is refused.error, what
                assert str(error).endswith(f"{refused.reason}; try {refused.hint}"), what


def test_what_must_not_leave_stays_what_it_is_within_the_library(backend: str) -> None:
    module = get(backend)
    for what, make in samples_of(backend).refused.items():
        x = make()
        if module.unsupported(x, leaving=False) is None:
            assert to_backend(x, backend) is x, what
            assert asarray(x) is x, what
        else:
            assert refusal_of(to_backend, x, backend), what
        assert backend_of(x) == backend, what


def test_what_the_host_must_not_let_go_is_refused_here(backend: str) -> None:
    for what, make in samples_of(HOST).refused.items() if backend != HOST else ():
        for asked in ({}, {"copy": True}, {"grad": "detach"}):
            error = refusal_of(to_backend, make(), backend, **asked)
            assert isinstance(error, (UnsupportedArrayError, DTypeError)), what


def test_a_list_is_no_array(backend: str) -> None:
    for thing in ([1.0, 2.0], 3, "words", None, object(), b"bytes"):
        assert isinstance(refusal_of(to_backend, thing, backend), UnsupportedArrayError)


# -- any options ---------------------------------------------------------------------------------


class Asked(NamedTuple):
    """A conversion."""

    source: str
    target: str
    sample: Sample
    options: dict[str, Any]


@st.composite
def conversions(draw: st.DrawFn, backend: str) -> Asked:
    """Conversions within the library, into it and out of it, with any options together."""
    source, target = draw(st.sampled_from([(backend, backend), (backend, HOST), (HOST, backend)]))
    options = {
        "device": st.sampled_from([None, *get(target).devices()]),
        "dtype": st.sampled_from([None, *UNNAMED, *DTYPES]),
        "copy": st.sampled_from([None, True, False]),
        "grad": st.sampled_from([None, "keep", "detach"]),
    }
    return Asked(source, target, draw(samples(source)), draw(st.fixed_dictionaries({}, optional=options)))


def test_any_options_are_kept_to_or_refused(backend: str) -> None:
    try_on(conversions(backend), _check_options, "test_any_options_are_kept_to_or_refused")


def _check_options(conversion: Asked) -> None:
    source, target, sample, asked = conversion
    x, before = sample.array, get(source).array_info(sample.array)
    try:
        result = to_backend(x, target, **asked)
    except XBridgeError as error:
        _check_refusal(error, asked, tracked=before.requires_grad)
    else:
        _check_result(conversion, result)
    assert same_bits(read(source, x), sample.values), "the source was changed"
    assert get(source).array_info(x) == before


def _check_result(conversion: Asked, result: Array) -> None:
    source, target, (x, values, *_), asked = conversion
    info, given = get(target).array_info(result), get(source).array_info(x)
    near = home(target) if "host" in get(target).gaps and given.device == CPU else given.device
    near = CPU if get(target).host_only else near
    assert info.shape == values.shape
    assert info.device == (asked.get("device") or near)
    if asked.get("dtype") in (None, values.dtype.name):
        assert same_bits(read(target, result), values)
    elif asked["dtype"] not in UNNAMED:
        assert info.dtype == dtype_of(result) == asked["dtype"]
    if source != target or asked.get("grad") == "detach":
        assert not info.requires_grad
    elif asked.get("grad") == "keep" and given.requires_grad:
        assert info.requires_grad
    if info.device == given.device == CPU:
        places = spot(target, result), spot(source, x)
        assert asked.get("copy") is not True or apart(*places)
        assert asked.get("copy") is not False or together(*places)


def _check_refusal(error: XBridgeError, asked: dict[str, Any], *, tracked: bool) -> None:
    """An error is about something that was asked."""
    assert "; try " in str(error)
    assert not isinstance(error, CopyError) or asked.get("copy") is False
    assert not isinstance(error, GradientError) or (tracked and asked.get("grad") == "keep")
    assert not isinstance(error, ValueLossError) or asked.get("dtype") in UNNAMED


@of_its_own
def test_what_is_asked_for_and_there_is_never_refused(backend: str, sample: Sample) -> None:
    x, word = sample.array, sample.values.dtype.name
    for asked in ({"copy": True, "dtype": word, "device": home(backend)}, {"dtype": word, "grad": "detach"}):
        assert same_bits(read(backend, to_backend(x, backend, **asked)), sample.values)
        on_host: dict[str, Any] = {**asked, "device": "cpu"}
        assert same_bits(read(HOST, to_backend(x, HOST, **on_host)), sample.values)
    assert word in held(backend)
