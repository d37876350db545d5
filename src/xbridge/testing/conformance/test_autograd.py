"""Gradients: a graph is kept within the library, ends outside of it, and is never changed by xbridge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xbridge import asarray, to_backend
from xbridge.errors import CopyError
from xbridge.extend import get_backend, is_inexact
from xbridge.testing._parametrize import promise
from xbridge.testing.conformance._cases import (
    disjoint,
    error_of,
    for_all_arrays,
    for_own_arrays,
    memory_of,
    read,
    same_bits,
    sweep_everywhere,
    swept_dtypes,
)
from xbridge.testing.samples.lookup import dtypes_of, samples_of

if TYPE_CHECKING:
    from xbridge.protocol import Array
    from xbridge.testing.samples import Sample


def gradient_reaches(backend: str, result: Array, source: Array) -> bool:
    """Return True if a gradient of the result reaches the source, or the samples cannot find out."""
    reaches = getattr(samples_of(backend), "reaches", lambda *_: True)
    return get_backend(backend).array_info(result).requires_grad and (
        result is source or reaches(result, source)
    )


# -- within the library --------------------------------------------------------------------------


@promise("autograd")
def test_gradients_flow_through_every_step_within_the_library(backend: str) -> None:
    module = get_backend(backend)
    assert module.is_grad_enabled(), "gradients are not recorded"
    tracked = [sample for sample in sweep_everywhere(backend, swept_dtypes(backend)) if sample.tracked]
    assert tracked, "no sample requires grad"
    for sample in tracked:
        x, dtype = sample.array, sample.values.dtype.name
        here = module.array_info(x).device
        others = [word for word in dtypes_of(module, here) if word[:3] == dtype[:3]]
        made = [to_backend(x, backend, copy=True), module.copy(x), asarray([x, x]), module.stack([x], (1,))]
        made += [to_backend(x, backend, dtype=word, grad=grad) for word in others for grad in (None, "keep")]
        made += [to_backend(x, backend, copy=True, grad="keep"), module.astype(x, others[0])]
        there = [device for device in module.devices() if not module.unsupported_dtype(dtype, device)]
        made += [to_backend(x, backend, device=device, grad=g) for device in there for g in (None, "keep")]
        assert all(gradient_reaches(backend, result, x) for result in made), (sample.layout, here)


@promise("autograd")
def test_requires_grad_makes_a_new_leaf_over_the_memory(backend: str) -> None:
    module = get_backend(backend)
    trackable = {layout for layout, case in samples_of(backend).cases.items() if case.require_grad}
    assert trackable, "no sample can require grad"
    for sample in sweep_everywhere(backend, tuple(filter(is_inexact, swept_dtypes(backend)))):
        dtype = sample.values.dtype.name
        if sample.tracked or sample.layout not in trackable or not is_inexact(dtype):
            continue
        x = sample.array
        made = [
            asarray(x, requires_grad=True),
            asarray(x, requires_grad=True, copy=True),
            module.require_grad(x),
        ]
        for leaf, shares in zip(made, (True, False, True), strict=True):
            assert leaf is not x
            assert module.array_info(leaf).requires_grad
            assert not module.array_info(x).requires_grad, "the array itself was changed"
            apart = disjoint(memory_of(backend, leaf), memory_of(backend, x))
            assert apart is not shares or not sample.values.size, sample.layout
            assert same_bits(read(backend, leaf), sample.values)
            assert not has_graph(backend, leaf, x)


def has_graph(backend: str, leaf: Array, x: Array) -> bool:
    """Return True if the samples find a graph from the leaf to the array."""
    reaches = getattr(samples_of(backend), "reaches", None)
    return reaches is not None and bool(reaches(leaf, x))


@for_own_arrays
def test_only_what_a_graph_holds_is_followed(backend: str, sample: Sample) -> None:
    follows = get_backend(backend).follows
    if follows is not None:
        assert follows(sample.array) is sample.tracked


# -- out of the library --------------------------------------------------------------------------


@for_all_arrays
def test_grad_detach_ends_the_graph_and_keeps_its_source(backend: str, sample: Sample) -> None:
    module, x = get_backend(backend), sample.array
    results = [to_backend(x, backend, grad="detach"), to_backend(x, backend, grad="detach", copy=True)]
    for result in results:
        assert not module.array_info(result).requires_grad
        assert same_bits(read(backend, result), sample.values)
        if sample.tracked:
            assert (
                disjoint(memory_of(backend, result), memory_of(backend, x))
                or not module.memory_layout(result).writable
            )
            assert module.array_info(x).requires_grad
        assert not has_graph(backend, result, x) or result is x
    assert sample.tracked or results[0] is x


@for_all_arrays
def test_detach_returns_the_same_memory_without_a_graph(backend: str, sample: Sample) -> None:
    module, x = get_backend(backend), sample.array
    bare = module.detach(x)
    assert module.array_info(bare) == module.array_info(x)._replace(requires_grad=False)
    assert module.array_info(x).requires_grad is sample.tracked
    assert memory_of(backend, bare)[:4] == memory_of(backend, x)[:4]
    if sample.tracked and sample.values.size and not (module.readonly or module.assumes_immutable):
        refused = error_of(to_backend, x, backend, grad="detach", copy=False)
        assert isinstance(refused, CopyError), "autograd would not see a write to the result"
    else:
        shared = to_backend(x, backend, grad="detach", copy=False)
        assert memory_of(backend, shared)[:4] == memory_of(backend, x)[:4]
    assert same_bits(read(backend, bare), sample.values)
