"""The module: its types are its own, and its functions follow the options or refuse them."""

from __future__ import annotations

import array
import inspect
from functools import partial
from itertools import product, starmap
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from xbridge import Device, array_namespace, asarray, backend_of, dtype_of, to_backend, to_list
from xbridge.errors import DTypeError, UnsupportedArrayError
from xbridge.extend import CPU, DTYPES, HOST, backend_for, get_backend
from xbridge.protocol import Backend
from xbridge.testing._parametrize import promise
from xbridge.testing.conformance._cases import (
    FULL_SHAPE,
    SHAPES,
    common_dtypes,
    edge_values,
    error_of,
    for_own_arrays,
    plain_array,
    read,
    same_bits,
)
from xbridge.testing.samples.lookup import samples_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge.testing.samples import Sample

VERBS = [name for name, verb in vars(Backend).items() if inspect.isfunction(verb) and name[0] != "_"]


class UnknownType:
    """A type of no registered library."""


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_accepts_the_arguments_of_the_protocol(backend: str, verb: str) -> None:
    asked = list(inspect.signature(getattr(Backend, verb)).parameters.values())[1:]
    args = [None for each in asked if each.kind is each.POSITIONAL_ONLY]
    options = {each.name: None for each in asked if each.kind is each.KEYWORD_ONLY}
    found = inspect.signature(getattr(get_backend(backend), verb))
    try:
        found.bind(*args, **options)
    except TypeError as error:
        pytest.fail(
            f"{backend}.{verb}{found} does not take {inspect.signature(getattr(Backend, verb))}: {error}"
        )


def test_array_types_and_host_casts_are_declared(backend: str) -> None:
    module = get_backend(backend)
    assert module.array_types, "no type of array is named"
    assert all(wide in DTYPES and narrow in DTYPES for wide, narrow in module.host_casts)


def test_the_samples_cover_a_common_dtype(backend: str) -> None:
    case = samples_of(backend)
    assert case.cases
    for name, layout in case.cases.items():
        assert any(starmap(layout.takes, product(common_dtypes(backend), (FULL_SHAPE, *SHAPES)))), name
    assert all(callable(make) for make in case.refused.values())


# -- ownership of types --------------------------------------------------------------------------


def test_the_declared_types_are_owned(backend: str) -> None:
    module = get_backend(backend)
    for cls in (*module.array_types, *module.fast.types, *module.scalar_types):
        assert module.owns(cls) is True
        assert backend_for(cls) is module
    assert not {*module.array_types, *module.fast.types} & set(module.scalar_types)


def test_other_types_are_not_owned(backend: str) -> None:
    module = get_backend(backend)
    others = {
        UnknownType,
        Device,
        ModuleType,
        FunctionType,
        memoryview,
        array.array,
        object,
        type,
        type(None),
    }
    others |= {int, bool, float, complex, str, bytes, list, tuple, dict}
    others |= set() if backend == HOST else set(get_backend(HOST).fast.types)
    x = plain_array(backend, edge_values("float32", (2,)))
    others |= {type(getattr(x, word, None)) for word in ("dtype", "device", "shape", "strides", "flags")}
    assert [cls for cls in others if module.owns(cls) is not False] == []


def test_without_a_compiler_nothing_is_traced(backend: str) -> None:
    module = get_backend(backend)
    assert module.is_tracing() is False
    assert module.untraced(lambda *args: args)(1, module) == (1, module)
    assert type(module.is_grad_enabled()) is bool


# -- its namespace ----------------------------------------------------------------------------------


@promise("namespace")
def test_the_namespace_makes_arrays_of_the_library(backend: str) -> None:
    module = get_backend(backend)
    xp = array_namespace(plain_array(backend, edge_values("float32", (2,))))
    words = ("asarray", "ones", "zeros", "reshape", "sum", "astype", "permute_dims", "bool", "float32")
    assert [word for word in words if not hasattr(xp, word)] == [], "it is not an array API namespace"
    made = {
        "bool": (xp.asarray([True, False]), [True, False]),
        module.default_dtype("int", CPU): (xp.asarray([1, -2]), [1, -2]),
        module.default_dtype("float", CPU): (xp.asarray([0.5, -2.0]), [0.5, -2.0]),
        "float32": (xp.ones((2,), dtype=xp.float32), [1.0, 1.0]),
    }
    for dtype, (x, values) in made.items():
        assert backend_of(x) == backend
        assert dtype_of(x) == dtype
        assert read(backend, x).tolist() == values
    turned = xp.permute_dims(xp.astype(xp.asarray([[0.5, 0.0, 2.0]]), xp.bool), (1, 0))
    assert dtype_of(turned) == "bool"
    assert read(backend, turned).tolist() == [[True], [False], [True]]
    grown = xp.sum(xp.reshape(xp.zeros((2, 3), dtype=xp.float32), (6,)))
    assert backend_of(grown) == backend
    assert read(backend, grown).shape == ()
    assert read(backend, grown)[()] == 0


# -- options -------------------------------------------------------------------------------------

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
        partial(to_list, x),
        partial(asarray, [x, x]),
        partial(asarray, x, requires_grad=True),
        partial(module.stack, [x, x], (2,)),
        *(
            partial(verb, x)
            for verb in (module.materialize, module.detach, module.copy, module.fast.to_numpy)
        ),
        lambda: module.to_numpy(module.detach(module.materialize(x))),
        *(partial(to_backend, x, name, **options) for name in (backend, HOST) for options in OPTIONS),
    ]
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
