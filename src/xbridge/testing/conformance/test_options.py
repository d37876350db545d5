"""Options: each is followed, or an error of xbridge is raised; the source never changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xbridge import asarray, to_backend, to_list
from xbridge.errors import (
    DTypeError,
    UnsupportedArrayError,
)
from xbridge.extend import HOST, get_backend
from xbridge.testing.conformance._cases import for_own_arrays
from xbridge.testing.conformance._probes import (
    error_of,
    read,
    same_bits,
)
from xbridge.testing.samples.lookup import samples_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge.testing.samples.model import Sample

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


def test_unsupported_arrays_raise_with_a_reason(backend: str) -> None:
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
                hint = f"; try {refused.hint}" if refused.hint else ""
                assert str(error).endswith(f"{refused.reason}{hint}"), what
