"""What must hold for any array and tensor on the way between NumPy and torch.

Every promise is checked in memory (`rawmemory.py`): bits, addresses, what a write on one side does.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from inside import planned
from rawmemory import bits, in_place, overlaps, poke, same_bits, touched, write
from strategies_torch import tensors, torch_dtype

import xbridge
from xbridge.testing.strategies import host_arrays

torch = pytest.importorskip("torch")


Asked: TypeAlias = "dict[str, Any]"

DENSE = host_arrays(layouts=st.sampled_from(["C", "Fortran", "transposed"])) | tensors(
    layouts=["contiguous", "transposed", "channels-last"]
)
TARGETS = st.sampled_from(["numpy", "torch"])


def any_arrays() -> st.SearchStrategy[Any]:
    """Arrays of either library."""
    return host_arrays(nan="any") | tensors()


# -- memory --------------------------------------------------------------------------------------


@given(any_arrays(), TARGETS)
def test_to_backend__copy_true_shares_nothing(source: Any, target: str) -> None:
    """With `copy=True` the result has the same bits in memory of its own."""
    result = xbridge.to_backend(source, target, copy=True)
    assert same_bits(result, source)
    assert not overlaps(result, source)
    before = bits(result)
    poke(source)
    assert np.array_equal(bits(result), before)
    before = bits(source)
    with torch.no_grad():
        write(result)
    assert np.array_equal(bits(source), before)


@given(any_arrays(), TARGETS)
def test_to_backend__copy_false_shares_or_raises(source: Any, target: str) -> None:
    """With `copy=False` the result is the source's memory, and it raises only where the default copies."""
    usual = xbridge.to_backend(source, target)
    try:
        result = xbridge.to_backend(source, target, copy=False)
    except xbridge.CopyError:
        assert bits(source).size
        assert not overlaps(usual, source)
        return
    assert same_bits(result, source)
    assert np.array_equal(touched(usual), touched(result)) or not bits(source).size
    assert np.array_equal(touched(source), touched(result))
    before = bits(source)
    poke(source)
    assert same_bits(result, source)
    if is_writable(result) and not is_repeating(result):
        write(result)
        assert np.array_equal(bits(source), before)


def is_writable(x: Any) -> bool:
    """Whether its library lets anybody write to it here."""
    if isinstance(x, np.ndarray):
        return x.flags.writeable
    return not x.requires_grad and not x.is_inference()


def is_repeating(x: Any) -> bool:
    """Whether two elements have a byte in common."""
    return touched(x).size < bits(x).size


def steps(x: Any) -> list[int]:
    """The strides along which there is somewhere to go."""
    return [stride for stride, n in zip(in_place(x).strides, in_place(x).shape, strict=True) if n > 1]


@given(DENSE, TARGETS)
def test_to_backend__copy_keeps_axis_order(source: Any, target: str) -> None:
    """A copy of dense memory has its axes in the order of the source."""
    result = xbridge.to_backend(source, target, copy=True)
    if source.shape.count(0) == 0:
        assert steps(result) == steps(source)


@given(any_arrays(), TARGETS)
def test_to_backend__fast_path_equals_plan(source: Any, target: str) -> None:
    """The fast path gives the same result as the planned conversion, with the same sharing and flags."""
    direct = xbridge.to_backend(source, target)
    with planned():
        expected = xbridge.to_backend(source, target)
    assert type(expected) is type(direct)
    assert expected.dtype == direct.dtype
    assert same_bits(expected, direct)
    assert np.array_equal(touched(expected), touched(source)) == np.array_equal(
        touched(direct), touched(source)
    )
    assert is_writable(expected) == is_writable(direct)
    assert is_tracked(expected) == is_tracked(direct)


# -- protection ----------------------------------------------------------------------------------


@given(any_arrays(), st.booleans())
def test_to_numpy__writable_is_the_default_result_or_a_copy(source: Any, is_planned: bool) -> None:
    """With `writable=True` the result shares exactly if the default result is writable."""
    usual, before = xbridge.to_numpy(source), bits(source)
    with planned() if is_planned else nullcontext():
        result = xbridge.to_numpy(source, writable=True)
    assert result.flags.writeable
    assert same_bits(result, source)
    if usual.flags.writeable:
        assert overlaps(result, source) == overlaps(usual, source)
    else:
        write(result)
        assert np.array_equal(bits(source), before)


@given(any_arrays(), st.sampled_from([None, True, False]), st.sampled_from([None, "detach"]))
def test_asarray__leaf_is_not_writable_and_source_is_unchanged(
    source: Any, copy: bool | None, grad: str | None
) -> None:
    """A new leaf cannot be written in place, and its source stays as tracked as it was."""
    tracked = is_tracked(source)
    asked: Asked = {"backend": "torch", "copy": copy, "grad": grad, "requires_grad": True}
    try:
        leaf = xbridge.asarray(source, **asked)
    except (xbridge.CopyError, xbridge.GradientError):
        return
    assert leaf.is_leaf
    assert leaf.requires_grad
    assert same_bits(leaf, source)
    assert is_tracked(source) == tracked
    if tracked and grad is None:
        assert leaf is source
        assert copy is not True
        return
    assert leaf is not source
    if bits(leaf).size:
        with pytest.raises(RuntimeError):
            write(leaf)
    if tracked:
        assert not overlaps(leaf, source)


def is_tracked(x: Any) -> bool:
    """Whether autograd watches it."""
    return isinstance(x, torch.Tensor) and x.requires_grad


# -- shares_memory -------------------------------------------------------------------------------


@st.composite
def views_of_one_memory(draw: st.DrawFn) -> tuple[Any, Any]:
    """Two strided views of the same tensor, each in one of the libraries."""
    base = torch.zeros(160, dtype=torch_dtype(draw(st.sampled_from(["uint8", "int16", "float64"]))))

    def view() -> Any:
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        strides = [draw(st.integers(0, 13)) for _ in shape]
        tensor = base.as_strided(shape, strides, draw(st.integers(0, 40)))
        return draw(st.sampled_from([tensor, tensor.numpy()]))

    return view(), view()


@given(views_of_one_memory())
def test_shares_memory__agrees_with_bytes_and_numpy(views: tuple[Any, Any]) -> None:
    """`shares_memory` agrees with the bytes that two views reach and with `np.shares_memory`."""
    one, other = views
    event(f"shared: {overlaps(one, other)}")
    assert xbridge.shares_memory(one, other) == overlaps(one, other)
    assert xbridge.shares_memory(one, other) == np.shares_memory(np.asarray(one), np.asarray(other))


@given(any_arrays(), TARGETS, st.sampled_from([None, True]))
def test_shares_memory__detects_conversions_that_share(source: Any, target: str, copy: bool | None) -> None:
    """`shares_memory` tells whether a conversion shared or copied."""
    result = xbridge.to_backend(source, target, copy=copy)
    assert xbridge.shares_memory(source, result) == overlaps(source, result)
    assert xbridge.shares_memory(result, source) == overlaps(source, result)
