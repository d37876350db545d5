"""Trees with torch in them: what torch knows of containers, and a tree's arrays taken all at once."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("attrs")

import torch
from hypothesis import given
from hypothesis import strategies as st
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


def test_tree_to_numpy__what_torch_returns_is_a_container() -> None:
    """What torch returns is a container."""
    given = torch.ones(2, 3).max(0)
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
