"""Assertions about tensors: pending operations, coarse dtypes, history and the traces of a change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import xbridge
from xbridge.testing import (
    assert_close,
    assert_independent,
    assert_same,
    assert_shares_memory,
    assert_unchanged,
)

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

Z = np.array([1 + 2j, complex(-0.0, 0.0), complex(np.nan, np.inf)])


@pytest.mark.parametrize(
    ("tensor", "values"),
    [
        (torch.from_numpy(Z), Z),
        (torch.from_numpy(Z).conj(), Z.conj()),
        (torch.from_numpy(Z).conj().imag, -Z.imag),
        (torch.from_numpy(Z)[::2], Z[::2]),
        (torch.ones(1).expand(3), np.ones(3, "f4")),
        (torch.ones(3, requires_grad=True), np.ones(3, "f4")),
        (torch.tensor(1.5), np.float32(1.5)),
    ],
)
def test_assert_same__tensors_and_their_values(tensor: Tensor, values: np.ndarray) -> None:
    """A tensor equals its values in NumPy, whatever its strides, pending operations and graph."""
    assert_same(tensor, values, check_backend=False)
    assert_same(values, tensor, check_backend=False)
    with pytest.raises(AssertionError, match="differ in backend:"):
        assert_same(tensor, values)
    with pytest.raises(AssertionError, match="values"):
        assert_same(tensor, -values, check_backend=False)


def test_assert_same__check_grad() -> None:
    """Whether tensors require grad is compared only with check_grad=True."""
    leaf, plain = torch.ones(3, requires_grad=True), torch.ones(3)
    assert_same(leaf, plain)
    assert_same(leaf, leaf * 1, check_grad=True)
    with pytest.raises(AssertionError, match=r"differ in grad:\n.*on cpu, requires grad\n"):
        assert_same(leaf, plain, check_grad=True)


def test_assertions__bfloat16_tensors() -> None:
    """Tensors of bfloat16 are compared like those of any dtype, and shown with their bits."""
    one, other = torch.tensor([1.0, 0.0]).bfloat16(), torch.tensor([1.0, -0.0]).bfloat16()
    with pytest.raises(AssertionError, match=r"\(1,\)  0 +-0 +different zeros: 0x0000 and 0x8000"):
        assert_same(one, other)
    assert_close(one, other)
    assert_close(one * 1.01, one, check_dtype=True)
    with pytest.raises(AssertionError, match="largest relative error"):
        assert_close(one * 1.05, one)
    assert_same(one, np.array([1, 0]), check_backend=False, check_dtype=False)


def test_assert_shares_memory__tensors_and_numpy_arrays() -> None:
    """A tensor over the memory of a NumPy array shares it, as far as both overlap."""
    a = np.zeros(6, np.float32)
    t = torch.from_numpy(a)
    assert_shares_memory(a, t)
    assert_shares_memory(t[4:], a[::2])
    assert_shares_memory(t.requires_grad_()[1:], a)
    assert_independent(t[::2], a[1::2])
    assert_independent(t, t.clone())
    assert_independent(t[:0], a)
    with pytest.raises(AssertionError, match=r"memory in common:\n  torch float32 .*\n  numpy float32 "):
        assert_independent(t, a)
    with pytest.raises(AssertionError, match="no memory in common"):
        assert_shares_memory(t, a.copy())


@pytest.mark.parametrize("refused", [torch.zeros(2, device="meta"), torch.eye(2).to_sparse()])
def test_assertions__refuse_tensors_without_dense_memory(refused: Tensor) -> None:
    """Tensors on the meta device and sparse tensors are refused with a suggestion."""
    for check in (assert_same, assert_close, assert_shares_memory, assert_independent):
        with pytest.raises(xbridge.UnsupportedArrayError, match=r"^cannot \w+ a torch float32 array: .+"):
            check(refused, refused)


def swap(t: Tensor) -> None:
    t.data = torch.ones(3)


def free(t: Tensor) -> None:
    t.untyped_storage().resize_(0)


CHANGES = {
    "a value": (lambda t: t[0].fill_(2), r"version: 0 became 1\nthe arrays differ in 1 of 3 values:"),
    "a write of the same value": (lambda t: t.mul_(1), "version: 0 became 1$"),
    "the memory": (swap, r"address: \d+ became \d+$"),
    "requires_grad": (lambda t: t.requires_grad_(), "requires_grad: False became True"),
    "the strides": (lambda t: t.as_strided_((3,), (0,)), r"strides: \(4,\) became \(0,\)"),
    "the shape": (lambda t: t.resize_(1), r"differ in shape:"),
    "the storage": (free, "cannot look at the memory of a torch tensor: its storage was freed"),
}


@pytest.mark.parametrize(("change", "what"), CHANGES.values(), ids=CHANGES)
def test_assert_unchanged__reports_changes_of_tensors(change: Callable[[Tensor], object], what: str) -> None:
    """Writes that restore the value, new memory, strides and requires_grad are changes too."""
    tensor = torch.ones(3)
    with (
        pytest.raises(AssertionError, match=rf"(?s)^array 0 was changed:\n.*{what}"),
        assert_unchanged(tensor),
    ):
        change(tensor)


def test_assert_unchanged__new_grad_fn() -> None:
    """An in-place operation in the graph is a change, even if it keeps every value."""
    leaf = torch.ones(3, requires_grad=True)
    result = leaf * 2
    with pytest.raises(AssertionError, match=r"grad_fn: .*Mul.* became .*Add"), assert_unchanged(result):
        result.add_(0)


def test_assert_unchanged__reading_passes() -> None:
    """Operations that only read a tensor do not change it."""
    leaf = torch.ones(3, requires_grad=True)
    with torch.inference_mode():
        inference = torch.ones(3)
    with assert_unchanged(leaf, leaf * 2, leaf.detach().conj(), inference, torch.ones(3).bfloat16()):
        (leaf * 2).sum()
        xbridge.to_numpy(leaf)
