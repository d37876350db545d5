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

import xbridge
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


@pytest.mark.parametrize("backend", ["jax", "numpy", "dask"])
@pytest.mark.parametrize("lengths", [(3, 1), (1, 3)])
def test_tree_to_torch__packed_sequence_that_comes_back_is_unpacked(
    backend: str, lengths: tuple[int, int]
) -> None:
    """Lengths and indices stay tensors of int64, which JAX does not have, so a layer takes them again."""
    if not xbridge.is_available(backend):
        pytest.skip(f"{backend} is not here")
    rows = [torch.ones(n, 2) for n in lengths]
    packed = torch.nn.utils.rnn.pack_sequence(rows, enforce_sorted=False)
    there = tree.to_backend([packed], backend)
    assert xbridge.backend_of(there[0].data) == backend
    (back,) = tree.to_torch(there)
    assert [x.dtype for x in back[1:]] == [torch.int64] * 3
    made, found = torch.nn.LSTM(2, 2)(back)[0], torch.nn.utils.rnn.unpack_sequence(back)
    assert made.data.shape == (4, 2)
    assert all(torch.equal(x, y) for x, y in zip(rows, found, strict=True))


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


def test_tree_to_torch__error_names_a_key_that_is_a_tensor() -> None:
    """An error below a dict names the key, also if keys compare element by element."""
    first, second = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    given = {first: A, second: np.array(["2020"], "M8[D]")}
    with pytest.raises(xbridge.DTypeError, match=r"^at tree\[Parameter"):
        tree.to_torch(given)

    def fail(_: object) -> None:
        raise KeyError

    with pytest.raises(KeyError) as caught:
        tree.map(fail, {first: 1, second: A})
    assert caught.value.__notes__[0].startswith("at tree[Parameter")
