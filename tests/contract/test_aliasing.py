"""What must hold for any array and tensor on the way between NumPy and torch.

Every promise is checked in memory (`rawmemory.py`): bits, addresses, what a write on one side does.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import planned
from rawmemory import bits, overlaps, same_bits, write
from strategies_torch import TORCH_DTYPES, tensors

import xbridge
from xbridge.testing.strategies import host_arrays

torch = pytest.importorskip("torch")


Asked: TypeAlias = "dict[str, Any]"

TARGETS = st.sampled_from(["numpy", "torch"])


def any_arrays() -> st.SearchStrategy[Any]:
    """Arrays of either library."""
    return host_arrays(dtypes=st.sampled_from(TORCH_DTYPES), nan="any") | tensors()


# -- memory --------------------------------------------------------------------------------------


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


@given(any_arrays(), TARGETS, st.sampled_from([None, True]))
def test_shares_memory__detects_conversions_that_share(source: Any, target: str, copy: bool | None) -> None:
    """`shares_memory` tells whether a conversion shared or copied."""
    result = xbridge.to_backend(source, target, copy=copy)
    assert xbridge.shares_memory(source, result) == overlaps(source, result)
    assert xbridge.shares_memory(result, source) == overlaps(source, result)
