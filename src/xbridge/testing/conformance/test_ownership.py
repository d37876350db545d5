"""New memory: it is writable, has no other owner and keeps no source alive.

`test_memory` has the promises for shared memory.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING
from weakref import ref

import pytest

from xbridge import asarray, to_backend, to_numpy
from xbridge.errors import type_of
from xbridge.extend import HOST, get_backend
from xbridge.testing.conformance._cases import (
    common_dtypes,
    edge_values,
    for_own_arrays,
    plain_array,
)
from xbridge.testing.conformance._probes import read, refused_write, same_bits
from xbridge.testing.samples.lookup import samples_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from xbridge import Device
    from xbridge.protocol import Array
    from xbridge.testing.samples.model import Sample

    Step: TypeAlias = Callable[[Array], Array]


def _steps(backend: str, dtype: str) -> Iterator[tuple[str, str, Step]]:
    """Yield each step that makes new memory of a host array: the backend of the result, a label, the step."""
    module = get_backend(backend)
    yield backend, "copy", module.copy
    yield backend, "copy=True", lambda x: to_backend(x, backend, copy=True)
    yield backend, "stack", lambda x: module.stack([x], (1,))
    yield backend, "asarray of two", lambda x: asarray([x, x])
    yield HOST, "copy=True on the host", lambda x: to_numpy(x, copy=True)
    wider = "complex128" if dtype.startswith("complex") else "float64"
    if wider in common_dtypes(backend) and wider != dtype:
        yield backend, "astype", lambda x: module.astype(x, wider)
        yield backend, "dtype=", lambda x: to_backend(x, backend, dtype=wider)
        yield HOST, "dtype= on the host", lambda x: to_numpy(x, dtype=wider)
    for device in module.devices()[1:]:
        if not module.unsupported_dtype(dtype, device):
            yield from _moves(backend, device)


def _moves(backend: str, device: Device) -> Iterator[tuple[str, str, Step]]:
    """Yield the moves to another device and back."""
    module = get_backend(backend)
    yield backend, f"move to {device}", lambda x: to_backend(x, backend, device=device)
    yield HOST, f"move from {device}", lambda x: to_numpy(module.to_device(x, device))


def _can_write(name: str) -> bool:
    """Return True if a library has writable arrays."""
    return any(case.writable for case in samples_of(name).cases.values())


# -- permission to write -------------------------------------------------------------------------


@for_own_arrays
def test_new_memory_is_writable(backend: str, sample: Sample) -> None:
    x, module = sample.array, get_backend(backend)
    steps = [*_steps(backend, sample.values.dtype.name)]
    if not module.memory_layout(x).materialized:
        steps += [(backend, "materialize", module.materialize), (HOST, "to_numpy", to_numpy)]
    for name, step, make in steps:
        made = make(x)
        if _can_write(name) and not get_backend(name).array_info(made).requires_grad:
            assert not refused_write(name, made), f"{step}: new memory is writable"
    assert same_bits(read(backend, x), sample.values), "the source follows a write to the result"


# -- lifetime ------------------------------------------------------------------------------------


def _dtype(backend: str) -> str:
    return "float32" if "float32" in common_dtypes(backend) else common_dtypes(backend)[0]


def _still_alive(sources: dict[str, ref[Array]]) -> list[str]:
    gc.collect()
    return [step for step, source in sources.items() if source() is not None]


def test_new_memory_does_not_keep_its_source_alive(backend: str) -> None:
    values = edge_values(_dtype(backend), (64,))
    sources, made = {}, []
    for _, step, make in _steps(backend, values.dtype.name):
        x = plain_array(backend, values)
        if not type(x).__weakrefoffset__:
            pytest.skip(f"{type_of(x)} has no weak references")
        sources[step] = ref(x)
        made.append(make(x))
        del x
    assert _still_alive(sources) == []


def test_a_deleted_view_releases_its_source(backend: str) -> None:
    module, values = get_backend(backend), edge_values(_dtype(backend), (64,))
    views: list[tuple[str, str, Step]] = [
        (backend, "to_numpy", module.to_numpy),
        (backend, "to_numpy", to_numpy),
        (backend, "detach", module.detach),
        (HOST, "to_backend", lambda host: to_backend(host, backend)),
        (HOST, "from_numpy", module.from_numpy),
    ]
    if backend != HOST:
        views += [
            (backend, "fast_to_numpy", module.fast.to_numpy),
            (HOST, "fast_from_numpy", module.fast.from_numpy),
        ]
    sources = {}
    for name, step, look in views:
        x = plain_array(name, values)
        if type(x).__weakrefoffset__:
            sources[step] = ref(x)
        look(x)
        del x
    assert _still_alive(sources) == []
