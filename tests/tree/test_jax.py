"""Trees of JAX's: what JAX was told of a class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax

import xbridge
from xbridge import tree


@dataclass
class State:
    """A dataclass of which JAX knows that `name` is no child."""

    x: Any
    name: Any


def test_tree_to_numpy__class_is_flattened_as_it_is_registered_with_jax() -> None:
    """A class is flattened as it is registered with JAX."""
    jax.tree_util.register_dataclass(State, ["x"], ["name"])
    names = np.array([None])  # which no library but NumPy could hold
    made = tree.to_backend({"state": State([np.ones(2, "f4"), None], names)}, "jax")["state"]
    assert type(made) is State
    assert isinstance(made.x[0], jax.Array)
    assert made.x[1] is None
    assert made.name is names
    back = tree.to_numpy(made)
    assert back.x[0].tolist() == [1, 1]
    assert type(back.x[0]) is np.ndarray


def test_tree_to_numpy__partial_of_jax_is_a_container() -> None:
    """A partial of JAX is a container."""
    made = tree.to_numpy(jax.tree_util.Partial(max, jax.numpy.ones(2)))  # type: ignore[no-untyped-call] # theirs
    assert type(made) is jax.tree_util.Partial
    assert type(made.args[0]) is np.ndarray


def test_tree_to_backend__packed_sequence_says_that_its_lengths_need_int64() -> None:
    """A packed sequence says that its lengths need int64."""
    torch = pytest.importorskip("torch")
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2)])
    expected = r"at tree\[0\]\.batch_sizes: .* int64.*; try torch\.nn\.utils\.rnn\.pad_packed_sequence\(x\)$"
    with pytest.raises(xbridge.DTypeError, match=expected):
        tree.to_backend([packed], "jax", dtype="default")
    with jax.enable_x64(True):
        made = tree.to_backend([packed], "jax")[0]
    assert made.batch_sizes.tolist() == [1, 1]
