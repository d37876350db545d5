"""What the test kit draws of torch: bits, flags and graphs are as they are said to be."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from drawing import drawn, least
from inside import DTYPES
from kit.test_samples import laid, one_of
from rawmemory import same_bits, touched

import xbridge
from xbridge.testing._without import LAYOUTS, without
from xbridge.testing.samples.lookup import samples_of
from xbridge.testing.strategies import arrays, samples

torch = pytest.importorskip("torch")

from xbridge.testing.samples import torch as known  # noqa: E402 -- it imports torch

DTYPES_OF_TORCH = tuple(word for word, it in DTYPES.items() if hasattr(torch, word) and not it.is_packed)


@pytest.mark.parametrize("name", [name for name, case in known.cases.items() if case.require_grad])
def test_torch_samples__require_grad_makes_a_leaf(name: str) -> None:
    """`require_grad` returns a new leaf over the same memory."""
    case = known.cases[name]
    assert case.require_grad
    for word in ("float32", "complex64"):
        for tensor, values in laid(case, (word,)):
            leaf = case.require_grad(tensor)
            assert leaf.is_leaf
            assert leaf.requires_grad
            assert not tensor.requires_grad
            assert np.array_equal(touched(leaf), touched(tensor))
            assert same_bits(leaf, values)
            if values.size:
                with pytest.raises(RuntimeError):
                    known.write(leaf)


one = partial(one_of, known, shape=(2, 3, 2, 2))


def test_torch_samples__layouts_are_what_they_are_called() -> None:
    """Each layout has the strides, pending operation or place in a graph that its name promises."""
    assert one("contiguous").is_contiguous()
    assert one("transposed").stride() == (1, 2, 6, 12)
    assert one("channels-last").is_contiguous(memory_format=torch.channels_last)
    assert not one("channels-last").is_contiguous()
    assert one("strided").stride()[-1] == 2
    assert one("offset").storage_offset() > 0
    assert one("expanded").stride()[::2] == (0, 0)
    assert one("unfolded").stride() == (1, 1, 1, 1)
    assert one("conj").is_conj()
    assert one("neg", "float32").is_neg()
    assert one("shared memory").is_shared()
    assert not one("contiguous").is_shared()
    assert one("inference").is_inference()
    assert one("leaf").is_leaf
    assert type(one("Parameter")) is torch.nn.Parameter
    assert not one("non-leaf").is_leaf
    assert one("view of a leaf")._base.is_leaf
    assert not one("view of a leaf").is_leaf


def test_reaches__follows_the_graph() -> None:
    """`reaches` tells whether a gradient of one tensor flows back to another."""
    leaf, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    middle = leaf * 2
    result = (middle + other) * middle
    assert known.reaches(result, leaf)
    assert known.reaches(result, middle)
    assert known.reaches(leaf, leaf)
    assert not known.reaches(middle, other)
    assert not known.reaches(result, torch.ones(2, requires_grad=True))
    assert not known.reaches(leaf, result)
    assert not known.reaches(result.detach(), leaf)
    assert not known.reaches(result, torch.ones(2))
    assert not known.reaches(middle.detach().requires_grad_(), leaf)


# -- strategies ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_samples__everything_of_torch_is_drawn_by_default() -> None:
    """Without options, every layout and dtype of torch is drawn, and leaves of many layouts."""
    some = drawn(samples("torch", devices="cpu"), 1500)
    assert {sample.layout for sample in some} == set(known.cases)
    assert {str(sample.array.dtype) for sample in some} == {f"torch.{word}" for word in DTYPES_OF_TORCH}
    leaves = {sample.layout for sample in some if sample.array.requires_grad and sample.array.is_leaf}
    assert {"contiguous", "transposed", "conj", "neg", "leaf", "Parameter"} <= leaves


@pytest.mark.slow
def test_samples__requires_grad() -> None:
    """requires_grad= selects tensors by whether they are tracked, with every place in a graph."""
    some = drawn(samples("torch", devices="cpu", requires_grad=True), 600)
    assert all(sample.array.requires_grad for sample in some)
    assert {sample.layout for sample in some} == {
        name for name, case in known.cases.items() if case.require_grad or case.tracked
    }
    assert not any(x.requires_grad for x in drawn(arrays("torch", requires_grad=False), 500))
    assert {sample.layout for sample in drawn(samples("torch", requires_grad=True, writable=True), 50)} == {
        "non-leaf"
    }


@pytest.mark.slow
def test_arrays__restricted_tensors_only_on_request() -> None:
    """Tensors that require grad or belong to inference mode are drawn only on request."""
    some = drawn(arrays("torch", devices="cpu"), 200)
    assert not any(x.requires_grad or x.is_inference() for x in some)
    assert any(x.is_neg() for x in some)
    asked = drawn(arrays("torch", devices="cpu", requires_grad="any"), 100)
    assert {x.requires_grad for x in asked} == {True, False}
    assert least(arrays("torch", layouts="inference")).is_inference()
    assert least(arrays("torch", layouts="leaf")).requires_grad
    with without(["neg"]):
        assert not any(x.is_neg() for x in drawn(arrays("torch", devices="cpu"), 200))


def test_without__knows_the_layouts_of_all_libraries() -> None:
    """Each layout that can be left out while its library is missing is a layout of some library."""
    for library in ("array_api_strict", "dask", "jax"):
        pytest.importorskip(library)
    backends = [name for name in xbridge.known_backends() if xbridge.is_available(name)]
    assert {layout for name in backends for layout in samples_of(name).cases} | {
        "backwards",
        "repeated",
    } >= LAYOUTS


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ({"writable": False}, xbridge.OptionError, "torch has none"),
        ({"dtypes": "int8", "requires_grad": True}, xbridge.GradientError, "int8"),
        ({"layouts": "conj", "dtypes": "float32"}, xbridge.OptionError, "conj"),
        ({"layouts": "leaf", "requires_grad": False}, xbridge.OptionError, "leaf"),
        ({"layouts": "reversed"}, xbridge.OptionError, "the layouts are contiguous, "),
        ({"devices": "meta"}, xbridge.DeviceError, "meta"),
        ({"devices": "nothing:3"}, xbridge.DeviceError, "nothing:3"),
        ({"dtypes": torch.complex32}, xbridge.DTypeError, "complex32"),
    ],
    ids=repr,
)
def test_arrays__refuse_impossible_options_of_torch(asked: Any, error: type[Exception], words: str) -> None:
    """Options that torch cannot meet are refused as soon as the strategy is made."""
    with pytest.raises(error, match=words) as caught:
        arrays("torch", **asked)
    assert "; try " in str(caught.value)
