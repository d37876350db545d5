"""Trees with torch in them: what torch knows of containers, and a tree's arrays taken all at once."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from inside import direct, get_backend

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
ODD = {
    "read-only": READONLY,
    "backwards": A[::-1],
    "expanded": np.broadcast_to(A[:1], (3,)),
    "Fortran order": np.ones((2, 3), order="F"),
    "every second": np.arange(6.0)[::2],
    "foreign bytes": np.arange(3, dtype=">f8"),
    "unaligned": np.frombuffer(bytearray(17), "f8", count=2, offset=1),
    "half": np.arange(3, dtype="f2"),
    "0-d": np.array(2.5),
    "empty": np.zeros((0, 3)),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_shares_memory__array_is_converted_in_a_tree_as_it_is_alone(odd: Any) -> None:
    """An array is converted in a tree as it is alone."""
    alone = xbridge.to_backend(odd, "torch")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = tree.to_backend([A, odd, "s"], "torch")
    assert made[1].dtype == alone.dtype
    assert made[1].tolist() == odd.tolist()
    shares = [xbridge.shares_memory(x, y) for x, y in zip(made[:2], [A, odd], strict=True)]
    assert shares == [True, xbridge.shares_memory(alone, odd)]


@given(
    trees(
        st.sampled_from(
            [A, A[1:], READONLY, np.ones(2, "i4"), torch.ones(2), torch.nn.Parameter(torch.ones(1))]
        )
    )
)
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


def test_tree_to_backend__tensors_go_to_torch_as_they_are() -> None:
    """Tensors go to torch as they are."""
    w = torch.ones(2, requires_grad=True)
    made = tree.to_backend([w, {"x": w, "a": A}], "torch")
    assert made[0] is w
    assert made[1]["x"] is w


def test_tree_to_numpy__tensor_that_requires_grad_leaves_as_a_read_only_view() -> None:
    """A tensor that requires grad leaves as a read-only view."""
    w = torch.ones(2, requires_grad=True)
    assert not tree.to_numpy({"w": w})["w"].flags.writeable
    with pytest.raises(xbridge.GradientError, match=r"^at tree\['w'\]: "):
        tree.to_numpy({"w": w}, grad="keep")


def test_tree_to_backend__plain_arrays_are_taken_all_at_once_and_others_one_by_one() -> None:
    """Plain arrays are taken all at once and others one by one."""
    fast_from_numpy_many: Any = get_backend("torch").fast.from_numpy_many
    assert fast_from_numpy_many([A, A[1:]])[1].data_ptr() == A[1:].ctypes.data
    assert fast_from_numpy_many([A, READONLY]) is None
    assert fast_from_numpy_many([A, np.array(["s"])]) is None
    with torch.inference_mode():
        assert not fast_from_numpy_many([A])[0].is_inference()
        assert not tree.to_backend([A], "torch")[0].is_inference()


def test_tree_to_backend__what_is_taken_at_once_and_alone_is_the_same_and_a_policy_switches_off_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is taken at once and alone is the same and a policy switches off both."""
    taken: list[int] = []
    fast_from_numpy_many: Any = get_backend("torch").fast.from_numpy_many

    def counted(hosts: list[Any]) -> Any:
        taken.append(len(hosts))
        return fast_from_numpy_many(hosts)

    backend: Any = get_backend("torch")
    monkeypatch.setattr(backend, "fast", replace(backend.fast, from_numpy_many=counted))
    assert xbridge.to_backend(A, "torch").tolist() == A.tolist()
    many = [A[:1] for _ in range(80)]
    for _ in range(2):
        tree.to_backend(many, "torch")
        with xbridge.policy(copies="allow"):
            assert not direct["torch"]
            tree.to_backend(many, "torch")
    tree.to_backend(many, "torch", copy=True)
    tree.to_backend(many, "numpy")
    tree.to_numpy([torch.ones(2) for _ in many])
    assert taken == [80, 80]


def test_tree_to_backend__wrong_option_is_refused_though_an_equal_one_was_learned() -> None:
    """A wrong option is refused though an equal one was learned."""
    for _ in range(2):
        tree.to_backend([A], "torch", copy=True)
    with pytest.raises(xbridge.OptionError, match="copy=1"):
        tree.to_backend([A], "torch", copy=1)  # type: ignore[arg-type]
    with pytest.raises(xbridge.DTypeError):
        tree.to_backend([A], "torch", dtype=[])


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
