"""A batch is to `transfer` and `prefetch` what it is to `xbridge.tree`."""

from __future__ import annotations

from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gate import PATIENCE, Gate
from toylib import Toy, make_backend

import xbridge
from xbridge import tree

if TYPE_CHECKING:
    from collections.abc import Callable


A, COMPLEX = np.arange(3.0), np.array([1j])
Point = namedtuple("Point", "x y")  # noqa: PYI024 -- as people write them


@dataclass(frozen=True)
class Sample:
    """A batch as an object."""

    x: Any
    name: str


class Mine(dict[str, Any]):
    """A dict that may mean more."""


def transferred(batch: Any) -> Any:
    return xbridge.transfer(batch, "numpy", dtype="float32").result()


def prefetched(batch: Any) -> Any:
    (made,) = xbridge.prefetch([batch], "numpy", dtype="float32")
    return made


both = pytest.mark.parametrize("carried", [transferred, prefetched])


@both
@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: {"x": [x, "text"], 3: (x, None), "none": []},
        lambda x: Point(x, 1),
        lambda x: Sample(x, "a"),
        lambda x: Mine(x=x),
        lambda x: deque([x, 3], maxlen=4),
        lambda x: OrderedDict(b=x, a=None),
        lambda x: [Sample(Mine(x=[x]), "b")],
    ],
)
def test_transfer__accepts_every_tree(make: Callable[[Any], Any], carried: Callable[[Any], Any]) -> None:
    """A batch can be any tree that `xbridge.tree` converts."""
    made = carried(make(A))

    assert type(made) is type(make(A))
    found: list[Any] = []
    tree.map(found.append, made)
    assert {(x.dtype, tuple(x)) for x in found} == {(np.dtype(np.float32), tuple(A))}


@both
@pytest.mark.parametrize(
    ("batch", "way"),
    [
        ([A, COMPLEX], r"tree\[1\]"),
        ({"a": A, "b": (A, {3: COMPLEX})}, r"tree\['b'\]\[1\]\[3\]"),
        ([A, [A], COMPLEX, COMPLEX], r"tree\[2\]"),
        (Point(A, [COMPLEX]), r"tree\.y\[0\]"),
    ],
    ids=str,
)
def test_transfer__error_names_the_path(batch: Any, way: str, carried: Callable[[Any], Any]) -> None:
    """An error names the path of the array in the batch."""
    with pytest.raises(xbridge.DTypeError, match=f"^at {way}: cannot convert a numpy complex128") as told:
        carried(batch)
    assert told.value.__cause__ is None


def test_transfer__batch_changed_meanwhile(own_registry: None) -> None:
    """A batch that is modified during the transfer arrives as it was at the call."""
    gate = Gate()
    xbridge.register_backend("toylib", make_backend(to_numpy=lambda x: np.asarray(gate)))
    batch: Any = {"label": np.ones(1), "image": [np.zeros(1)], "rows": [[A], [A, A]], "slow": Toy(A)}
    under_way = xbridge.transfer([batch], "numpy")
    assert gate.reading.wait(PATIENCE)
    batch["target"] = batch.pop("label")
    batch["image"].append(A)
    batch["rows"][0] = None
    gate.opened.set()

    (made,) = under_way.result()
    assert list(made) == ["label", "image", "rows", "slow"]
    assert (made["label"].tolist(), made["image"][0].tolist()) == ([1], [0])
    assert [len(row) for row in made["rows"]] == [1, 2]
