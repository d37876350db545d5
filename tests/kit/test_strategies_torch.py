"""What the test kit draws of torch: bits, flags and graphs are as they are said to be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from drawing import drawn, least
from hypothesis import given
from kit.test_samples import values_of
from rawmemory import bits, in_place, same_bits, touched

import xbridge
from xbridge._core.dtypes import DTYPES, is_inexact
from xbridge._registry.registry import get
from xbridge.testing._without import LAYOUTS, without
from xbridge.testing.samples.lookup import samples_of
from xbridge.testing.strategies import arrays, devices, dtypes, refusals, samples

torch = pytest.importorskip("torch")

from xbridge.testing.samples import torch as known  # noqa: E402 -- it imports torch

if TYPE_CHECKING:
    from rawmemory import Host
    from torch import Tensor

    from xbridge.testing.samples.model import LayoutCase, Sample

DTYPES_OF_TORCH = tuple(word for word in DTYPES if hasattr(torch, word))
TESTS = Path(__file__).parents[1] / "helpers"
SHAPES = [(), (1,), (3,), (2, 3), (2, 1, 3), (2, 3, 2, 2), (0,), (2, 0, 3)]


def laid(case: LayoutCase, word: str) -> list[tuple[Tensor, Host]]:
    """Tensors of a way in every shape, with what they hold."""
    found = []
    for shape in SHAPES:
        if case.takes(word, shape):
            values = values_of(word, shape)
            values = case.fold(values) if case.fold else values
            found.append((case.make(values.copy()), values))
    return found


@pytest.mark.parametrize("word", DTYPES_OF_TORCH)
@pytest.mark.parametrize("name", known.cases)
def test_every_way_holds_the_bits_that_were_laid_and_reads_them_back(name: str, word: str) -> None:
    case = known.cases[name]
    examples = laid(case, word)
    for tensor, values in examples:
        assert (str(tensor.dtype), tuple(tensor.shape)) == (f"torch.{word}", values.shape)
        assert same_bits(tensor, values)
        back = known.read(tensor)
        assert back.dtype == values.dtype
        assert same_bits(back, values)
        assert back.flags.carray
        assert not np.intersect1d(touched(back), touched(tensor)).size
        assert tensor.requires_grad == case.tracked
    assert examples or not is_inexact(word) or name in ("conj", "neg")


@pytest.mark.parametrize("name", ["strided", "offset", "transposed", "channels-last", "expanded"])
def test_the_base_of_a_view_is_an_ordinary_tensor_of_its_dtype(name: str) -> None:
    x = known.cases[name].make(values_of("float32", (2, 3, 2, 2)))
    assert x._base is not None
    assert (x._base.dtype, x._base._base) == (x.dtype, None)
    assert known.cases["contiguous"].make(values_of("float32", (2,)))._base is None


@pytest.mark.parametrize("name", known.cases)
def test_a_tensor_can_be_written_as_its_way_says_and_all_of_it_changes(name: str) -> None:
    case = known.cases[name]
    for word in ("bool", "int32", "float32", "complex64", "bfloat16"):
        for tensor, values in laid(case, word):
            if not case.writable:
                with pytest.raises(RuntimeError):
                    known.write(tensor)
                assert same_bits(tensor, values)
                continue
            known.write(tensor)
            assert (bits(tensor) != bits(values)).any(-1).all()
            if word == "bool":
                assert in_place(tensor).max(initial=0) <= 1


@pytest.mark.parametrize("name", [name for name, case in known.cases.items() if case.require_grad])
def test_a_tracked_tensor_is_a_new_leaf_over_the_same_memory(name: str) -> None:
    case = known.cases[name]
    assert case.require_grad
    for word in ("float32", "complex64"):
        for tensor, values in laid(case, word):
            leaf = case.require_grad(tensor)
            assert leaf.is_leaf
            assert leaf.requires_grad
            assert not tensor.requires_grad
            assert np.array_equal(touched(leaf), touched(tensor))
            assert same_bits(leaf, values)
            if values.size:
                with pytest.raises(RuntimeError):
                    known.write(leaf)


def one(name: str, word: str = "complex64", shape: tuple[int, ...] = (2, 3, 2, 2)) -> Any:
    """One tensor of a way."""
    case, values = known.cases[name], values_of(word, shape)
    return case.make(case.fold(values) if case.fold else values)


def test_every_layout_has_the_property_that_its_name_says() -> None:
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


def test_the_view_of_a_grad_shares_memory_with_the_grad_of_a_living_leaf() -> None:
    view = one("view of a grad")
    assert np.array_equal(touched(view), touched(view.leaf.grad))
    known.write(view)
    assert same_bits(view, view.leaf.grad)


def test_samples_have_graphs_even_if_gradients_are_off() -> None:
    with torch.no_grad():
        assert not one("non-leaf").is_leaf
        assert one("view of a leaf").requires_grad


def test_the_graph_shows_if_a_gradient_reaches_the_source() -> None:
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


@pytest.mark.parametrize("name", known.refused)
def test_what_must_be_refused_is_torchs_and_is_refused(name: str) -> None:
    x = known.refused[name]()
    assert xbridge.backend_of(x) == "torch"
    for options in ({}, {"copy": True}):
        with pytest.raises((xbridge.UnsupportedArrayError, xbridge.DTypeError), match="; try "):
            xbridge.to_backend(x, "numpy", **options)  # type: ignore[call-overload] # either option


def test_a_wrapper_computes_with_what_it_holds() -> None:
    assert (known.refused["a wrapper"]() + 1).tolist() == [2.0, 2.0]


# -- strategies ----------------------------------------------------------------------------------


@given(samples("torch", devices="cpu"))
def test_a_tensor_holds_its_values_and_is_tracked_and_writable_as_it_is_said(sample: Sample) -> None:
    tensor = sample.array
    assert same_bits(tensor, sample.values)
    assert tensor.requires_grad == sample.tracked
    if sample.writable:
        known.write(tensor)
        assert (bits(tensor) != bits(sample.values)).any(-1).all()
    elif sample.values.size:
        with pytest.raises(RuntimeError):
            known.write(tensor)


def test_everything_valid_is_drawn_where_nothing_is_asked() -> None:
    some = drawn(samples("torch", devices="cpu"), 1500)
    assert {sample.layout for sample in some} == set(known.cases)
    assert {str(sample.array.dtype) for sample in some} == {f"torch.{word}" for word in DTYPES_OF_TORCH}
    leaves = {sample.layout for sample in some if sample.array.requires_grad and sample.array.is_leaf}
    assert {"contiguous", "transposed", "conj", "neg", "leaf", "Parameter"} <= leaves


def test_tensors_that_require_grad_are_drawn_of_every_relation_to_a_graph() -> None:
    some = drawn(samples("torch", devices="cpu", requires_grad=True), 600)
    assert all(sample.array.requires_grad for sample in some)
    assert {sample.layout for sample in some} == {
        name for name, case in known.cases.items() if case.require_grad or case.tracked
    }
    assert not any(x.requires_grad for x in drawn(arrays("torch", requires_grad=False), 500))
    assert {sample.layout for sample in drawn(samples("torch", requires_grad=True, writable=True), 50)} == {
        "non-leaf"
    }


def test_tensors_that_autograd_or_inference_mode_restricts_are_drawn_only_on_request() -> None:
    some = drawn(arrays("torch", devices="cpu"), 400)
    assert not any(x.requires_grad or x.is_inference() for x in some)
    assert any(x.is_neg() for x in some)
    asked = drawn(arrays("torch", devices="cpu", requires_grad="any"), 100)
    assert {x.requires_grad for x in asked} == {True, False}
    assert least(arrays("torch", layouts="inference")).is_inference()
    assert least(arrays("torch", layouts="leaf")).requires_grad
    with without(["neg"]):
        assert not any(x.is_neg() for x in drawn(arrays("torch", devices="cpu"), 400))


def test_every_device_is_drawn_and_an_array_there_holds_its_values() -> None:
    assert set(drawn(devices("torch"))) == set(get("torch").devices())
    for device in get("torch").devices():
        for sample in drawn(samples("torch", devices=device), 100):
            assert xbridge.device_of(sample.array) == device
            assert same_bits(known.read(sample.array), sample.values)
            assert sample.array.requires_grad == sample.tracked


AWAY = """
from xbridge.testing import emulated
emulated.install()
from drawing import drawn
from rawmemory import same_bits
from xbridge.testing.samples.torch import read
from xbridge.testing.strategies import samples

some = drawn(samples("torch", devices="emu:0"), 300)
tensors = [sample.array for sample in some]
assert {str(x.device) for x in tensors} == {"emu:0"}
assert all(same_bits(read(sample.array), sample.values) for sample in some)
assert all(x.requires_grad == sample.tracked for x, sample in zip(tensors, some, strict=True))
for there in (
    lambda x: x.is_conj(),
    lambda x: x.is_neg(),
    lambda x: x.storage_offset() > 0,
    lambda x: 0 in x.stride() and x.numel(),
    lambda x: not x.is_contiguous(),
    lambda x: x.requires_grad and x.is_leaf,
    lambda x: x.requires_grad and not x.is_leaf,
    lambda x: type(x).__name__ == "Parameter",
    lambda x: x.is_inference(),
):
    assert any(map(there, tensors))
"""


def test_tensors_on_a_device_have_as_many_layouts() -> None:
    if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch has no backends in Python")
    run = subprocess.run([sys.executable, "-c", AWAY], cwd=TESTS, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_dtypes_are_those_that_torch_has() -> None:
    assert set(drawn(dtypes("torch"))) == set(DTYPES_OF_TORCH)
    some = drawn(arrays("torch", dtypes=torch.bfloat16, layouts="transposed"), 10)
    assert {x.dtype for x in some} == {torch.bfloat16}


def test_the_layouts_that_a_mark_may_name_without_their_library_are_those_of_the_libraries() -> None:
    backends = [name for name in xbridge.known_backends() if xbridge.is_available(name)]
    assert {layout for name in backends for layout in samples_of(name).cases} | {
        "backwards",
        "repeated",
    } >= LAYOUTS


def test_the_simplest_tensor_is_zero() -> None:
    x = least(arrays("torch"))
    assert (tuple(x.shape), x.dtype, x.item(), x.requires_grad) == ((), torch.float64, 0.0, False)
    assert type(x) is torch.Tensor
    leaf = least(arrays("torch", requires_grad=True))
    assert (tuple(leaf.shape), leaf.is_leaf) == ((), True)
    x = least(arrays("torch", shapes=(3, 4), dtypes="float32"), lambda x: x.isnan().any())
    assert np.count_nonzero(bits(x).view("u4")) == 1


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
def test_what_torch_cannot_have_is_refused_at_once(asked: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        arrays("torch", **asked)
    assert "; try " in str(caught.value)


def test_refusals_are_drawn_of_every_kind() -> None:
    assert {type(x).__name__ for x in drawn(refusals("torch"), 300)} >= {"Tensor", "FakeTensor", "Wrapper"}
