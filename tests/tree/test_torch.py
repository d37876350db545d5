"""Trees with torch in them: what torch knows of containers, and a tree's arrays taken all at once."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import xbridge

pytest.importorskip("torch")
pytest.importorskip("attrs")

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence
from trees import form, leaves, trees

from xbridge import tree

A = np.arange(6.0)
READONLY = np.arange(3.0)
READONLY.setflags(write=False)


ANY = [A, A[1:], READONLY, np.ones(2, "i4"), torch.ones(2), torch.nn.Parameter(torch.ones(1))]


@given(trees(st.sampled_from(ANY)))
def test_tree_to_backend__there_and_back_gives_the_same_values_in_the_same_form(given: Any) -> None:
    """There and back gives the same values in the same form."""
    there = tree.to_backend(given, "torch")
    back = tree.to_numpy(there)
    assert form(there) == form(back) == form(given)
    for x, y, z in zip(leaves(given), leaves(there), leaves(back), strict=True):
        if isinstance(x, (np.ndarray, torch.Tensor)):
            assert isinstance(y, torch.Tensor)
            assert isinstance(z, np.ndarray)
            assert z.tolist() == x.tolist()
        else:
            assert x is y is z


def test_tree_to_numpy__state_dict_keeps_its_metadata_and_loads_again() -> None:
    """A state dict keeps its metadata and loads again."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    state = model.state_dict()
    host = tree.to_numpy(state, copy=True)
    assert type(host) is OrderedDict
    assert list(host) == list(state)
    assert host._metadata == state._metadata  # type: ignore[attr-defined]
    back = tree.to_backend(host, "torch")
    other = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    other.load_state_dict(back)
    assert all(bool((x == y).all()) for x, y in zip(model.parameters(), other.parameters(), strict=True))


def packed() -> PackedSequence:
    return pack_sequence([torch.ones(2), torch.ones(3) * 2], enforce_sorted=False)


def test_tree_to_numpy__packed_sequence_stays_one_and_its_form_keeps_its_dtypes() -> None:
    """A packed sequence stays one and its form keeps its dtypes."""
    given = packed()
    host = tree.to_numpy(given)
    assert type(host) is PackedSequence
    assert all(type(x) is np.ndarray for x in host)
    back = tree.to_backend([host], "torch", dtype="float64")[0]
    assert [x.dtype for x in back] == [torch.float64, torch.int64, torch.int64, torch.int64]
    padded, lengths = pad_packed_sequence(back, batch_first=True)
    assert padded.tolist() == [[1, 1, 0], [2, 2, 2]]
    assert lengths.tolist() == [2, 3]
    plain = pack_sequence([torch.ones(2)])
    assert tree.to_numpy(plain).sorted_indices is None


def test_tree_map__map_leaves_the_form_of_a_packed_sequence_alone() -> None:
    """`map` leaves the form of a packed sequence alone."""
    given = packed()
    made = tree.map(lambda x: x * 0, given)
    assert made.data.tolist() == [0] * 5
    assert made.batch_sizes is given.batch_sizes
    assert made.sorted_indices is given.sorted_indices


def test_tree_to_numpy__error_names_the_part_of_a_packed_sequence() -> None:
    """An error names the part of a packed sequence."""
    bad = packed()._replace(unsorted_indices=torch.ones(2).to_sparse())
    with pytest.raises(xbridge.UnsupportedArrayError, match=r"^at tree\[0\]\.unsorted_indices: "):
        tree.to_numpy([bad])


def test_tree_to_numpy__what_torch_returns_is_a_container() -> None:
    """What torch returns is a container."""
    given = torch.ones(2, 3).max(0)
    assert tree.to_backend([given], "torch")[0] is given
    made = tree.to_numpy(given)
    assert type(made) is torch.return_types.max
    assert made.values.tolist() == [1, 1, 1]
    assert isinstance(made.indices, np.ndarray)


def test_tree_to_backend__size_and_a_module_are_leaves() -> None:
    """A size and a module are leaves."""

    @dataclass(eq=False)
    class Model(torch.nn.Module):
        x: Any

        def __new__(cls, *_: object) -> Any:
            made = super().__new__(cls)
            torch.nn.Module.__init__(made)
            return made

    given = [torch.Size([1, 2]), torch.nn.Linear(1, 1), Model(A)]
    made = tree.to_backend([A, given], "torch", scalars=True)[1]
    assert all(x is y for x, y in zip(made, given, strict=True))
