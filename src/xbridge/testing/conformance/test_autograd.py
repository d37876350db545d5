"""History goes on within the library, ends where the library ends, and is never changed from outside."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pytest

from xbridge._api import asarray, to_backend, to_numpy
from xbridge._core.dtypes import is_inexact
from xbridge.backends import HOST
from xbridge.backends._registry import get
from xbridge.errors import CopyError, GradientError
from xbridge.testing._gaps import promise
from xbridge.testing.conformance._cases import (
    WHOLE,
    held,
    of_all_devices,
    of_the_host,
    sweep,
    sweep_away,
    swept,
    telling,
)
from xbridge.testing.conformance._probes import apart, read, refusal_of, same_bits, spot
from xbridge.testing.samples.lookup import samples_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xbridge._core.protocol import Array
    from xbridge.testing.samples.model import Sample


def _tracked(backend: str) -> Iterator[Sample]:
    return (sample for sample in _everywhere(backend, swept(backend)) if sample.tracked)


def _everywhere(backend: str, dtypes: tuple[str, ...]) -> Iterator[Sample]:
    return chain(sweep(backend, dtypes), sweep_away(backend))


def follows(backend: str, result: Array, source: Array) -> bool:
    """Whether a gradient of the result reaches the source, as far as anybody can tell."""
    reaches = getattr(samples_of(backend), "reaches", lambda *_: True)
    return get(backend).array_info(result).requires_grad and (result is source or reaches(result, source))


# -- where history goes on -----------------------------------------------------------------------


@promise("autograd")
def test_history_goes_on_through_every_step_within_the_library(backend: str) -> None:
    module = get(backend)
    assert module.is_grad_enabled(), "nothing is recorded, so no history can go on"
    assert list(_tracked(backend)), "the kit knows of no array with a history"
    for sample in _tracked(backend):
        x = sample.array
        here, kind = module.array_info(x).device, sample.values.dtype.name[:3]
        others = [
            word for word in held(backend) if word[:3] == kind and not module.unsupported_dtype(word, here)
        ]
        made = [to_backend(x, backend, copy=True), module.copy(x), asarray([x, x]), module.stack([x], (1,))]
        made += [to_backend(x, backend, dtype=word, grad=grad) for word in others for grad in (None, "keep")]
        made += [to_backend(x, backend, copy=True, grad="keep"), module.astype(x, others[0])]
        for device in module.devices():
            if module.unsupported_dtype(sample.values.dtype.name, device):
                continue
            made += [
                to_backend(x, backend, device=device),
                to_backend(x, backend, device=device, grad="keep"),
            ]
        assert all(follows(backend, result, x) for result in made), (sample.way, here)


@promise("autograd")
def test_requires_grad_makes_a_new_leaf_over_the_memory(backend: str) -> None:
    module = get(backend)
    trackable = {way for way, known in samples_of(backend).ways.items() if known.require_grad}
    assert trackable, "the kit knows of no array that can be tracked"
    for sample in _everywhere(backend, tuple(filter(is_inexact, swept(backend)))):
        dtype = sample.values.dtype.name
        if sample.tracked or sample.way not in trackable or not is_inexact(dtype):
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
            assert together_or_apart(backend, leaf, x, shares=shares), sample.way
            assert same_bits(read(backend, leaf), sample.values)
            assert not reaches_back(backend, leaf, x)


def together_or_apart(backend: str, leaf: Array, x: Array, *, shares: bool) -> bool:
    """Whether a leaf lies where it should."""
    return apart(spot(backend, leaf), spot(backend, x)) is not shares or 0 in spot(backend, x).shape


def reaches_back(backend: str, leaf: Array, x: Array) -> bool:
    """Whether a leaf has a history, where anybody can tell."""
    reaches = getattr(samples_of(backend), "reaches", None)
    return reaches is not None and bool(reaches(leaf, x))


@promise("autograd")
def test_a_leaf_is_made_of_memory_of_the_host_too(backend: str) -> None:
    for dtype in filter(is_inexact, swept(backend)):
        host = telling(dtype, WHOLE)
        leaf = asarray(host, backend=backend, requires_grad=True)
        assert get(backend).array_info(leaf).requires_grad
        assert same_bits(read(backend, leaf), host)


def test_a_new_leaf_over_a_history_has_to_be_asked_for(backend: str) -> None:
    for sample in _tracked(backend):
        x = sample.array
        # A leaf to which nothing changes is a leaf already.
        assert isinstance(refusal_of(asarray, x, requires_grad=True, copy=True), GradientError)
        refused = refusal_of(asarray, x, requires_grad=True)
        assert isinstance(refused, GradientError) or asarray(x, requires_grad=True) is x
        leaf = asarray(x, requires_grad=True, grad="detach")
        assert get(backend).array_info(leaf).requires_grad
        assert not reaches_back(backend, leaf, x)


# -- where it ends -------------------------------------------------------------------------------


@of_all_devices
def test_history_that_would_end_is_not_lost_unnoticed(backend: str, sample: Sample) -> None:
    x = sample.array
    if sample.tracked:
        assert isinstance(refusal_of(to_numpy, x, grad="keep"), GradientError)
        assert isinstance(refusal_of(to_backend, x, backend, grad="keep", dtype="bool"), GradientError) or (
            sample.values.dtype.kind == "c"
        )
    else:
        assert same_bits(read(HOST, to_numpy(x, grad="keep")), sample.values)


@of_all_devices
def test_detached_is_without_history_and_changes_nothing_that_has_one(backend: str, sample: Sample) -> None:
    module, x = get(backend), sample.array
    results = [to_backend(x, backend, grad="detach"), to_backend(x, backend, grad="detach", copy=True)]
    for result in results:
        assert not module.array_info(result).requires_grad
        assert same_bits(read(backend, result), sample.values)
        if sample.tracked:
            assert apart(spot(backend, result), spot(backend, x)) or not module.memory_layout(result).writable
            assert module.array_info(x).requires_grad
        assert not reaches_back(backend, result, x) or result is x
    if not sample.tracked:
        assert results[0] is x


@of_all_devices
def test_a_detached_step_is_the_same_memory_without_history(backend: str, sample: Sample) -> None:
    module, x = get(backend), sample.array
    bare = module.detach(x)
    assert module.array_info(bare) == module.array_info(x)._replace(requires_grad=False)
    assert module.array_info(x).requires_grad is sample.tracked
    assert spot(backend, bare)[:4] == spot(backend, x)[:4]
    if sample.tracked and sample.values.size and not (module.readonly or module.assumes_immutable):
        refused = refusal_of(to_backend, x, backend, grad="detach", copy=False)
        assert isinstance(refused, CopyError), "a write to the result would go past the history"
    else:
        shared = to_backend(x, backend, grad="detach", copy=False)
        assert spot(backend, shared)[:4] == spot(backend, x)[:4]
    assert same_bits(read(backend, bare), sample.values)


@of_the_host
def test_what_comes_from_the_host_has_no_history(backend: str, sample: Sample) -> None:
    for options in ({}, {"copy": True}, {"grad": "keep"}, {"grad": "detach"}):
        x = to_backend(sample.array, backend, **options)
        assert get(backend).array_info(x).requires_grad is False
        assert same_bits(read(backend, x), sample.values)


def test_gradients_are_refused_where_there_are_none(backend: str) -> None:
    module = get(backend)
    whole = np.arange(3, dtype="int32" if "int32" in held(backend) else held(backend)[0])
    with pytest.raises(GradientError, match="try "):
        asarray(whole, backend=backend, requires_grad=True)
    if not module.autograd:
        x = to_backend(telling("float32", WHOLE), backend)
        for require_grad in (module.require_grad, lambda x: asarray(x, requires_grad=True)):
            with pytest.raises(GradientError, match="try "):
                require_grad(x)
