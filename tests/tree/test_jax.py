"""Trees of JAX's: what JAX was told of a class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax

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
