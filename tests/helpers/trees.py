"""Trees for tests: containers of every kind, and a way to draw them."""

from __future__ import annotations

from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st

pytest.importorskip("attrs")

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Pair(NamedTuple):
    """A named tuple."""

    x: Any
    y: Any


@dataclass
class Sample:
    """A dataclass that computes one of its fields, and does not compare another."""

    x: Any
    y: Any = field(compare=False)
    made: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.made += 1


@dataclass(frozen=True)
class Frozen:
    """A dataclass that nobody writes."""

    x: Any
    y: Any


@dataclass(frozen=True, slots=True)
class Slotted:
    """A dataclass that nobody writes, without a dict."""

    x: Any
    y: Any


@dataclass(slots=True)
class Open:
    """A dataclass without a dict, one field of which may never have been set."""

    x: Any
    y: Any
    later: Any = field(init=False)


@attrs.define
class Defined:
    """An attrs class with slots."""

    x: Any
    y: Any


@attrs.frozen(slots=False)
class FrozenDefined:
    """An attrs class with a dict, which nobody writes."""

    x: Any
    y: Any


class Names(dict[Any, Any]):
    """A dict of somebody's."""


class RecordRow(list[Any]):
    """A list of somebody's."""


PAIRS: dict[str, Callable[[Any, Any], Any]] = {
    "list": lambda x, y: [x, y],
    "tuple": lambda x, y: (x, y),
    "dict": lambda x, y: {"b": x, "a": y},
    "dict of unlike keys": lambda x, y: {(1, "z"): x, 0: y},
    "OrderedDict": lambda x, y: OrderedDict(b=x, a=y),
    "defaultdict": lambda x, y: defaultdict(list, {"b": x, "a": y}),
    "subclass of dict": lambda x, y: Names(b=x, a=y),
    "UserDict": lambda x, y: UserDict({"b": x, "a": y}),
    "subclass of list": lambda x, y: RecordRow([x, y]),
    "UserList": lambda x, y: UserList([x, y]),
    "deque": lambda x, y: deque([x, y], maxlen=7),
    "named tuple": Pair,
    "Counter": lambda x, y: Counter({"b": x, "a": y}),
    "dataclass": Sample,
    "frozen dataclass": Frozen,
    "frozen dataclass with slots": Slotted,
    "dataclass with slots": Open,
    "attrs class": Defined,
    "frozen attrs class": FrozenDefined,
}
"""Containers of two things."""


def children(x: Any) -> list[Any] | None:
    """What a container of the tests holds, in order, by looking; None for a leaf."""
    if isinstance(x, (dict, UserDict)):
        return list(x.values())
    if isinstance(x, (list, tuple, deque, UserList)):
        return list(x)
    if isinstance(x, (Sample, Frozen, Slotted, Open, Defined, FrozenDefined)):
        return [x.x, x.y]
    return None


def leaves(x: Any) -> Iterator[Any]:
    """What stands in a tree, in order."""
    inside = children(x)
    if inside is None:
        yield x
    else:
        for child in inside:
            yield from leaves(child)


def form(x: Any) -> Any:
    """All of a tree but its leaves, to be compared."""
    inside = children(x)
    if inside is None:
        return "leaf"
    extra: list[Any] = [getattr(x, "maxlen", None), getattr(x, "default_factory", None)]
    if isinstance(x, (dict, UserDict)):
        extra += list(x)
    return [type(x), extra, *map(form, inside)]


def trees(arrays: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Trees of arrays and of what is none. A tree that is not an array is a container."""
    others = ["text", b"bytes", None, 3, 2.5, True, 1j, np.str_("text"), {1, 2}]
    drawn = st.recursive(
        arrays | st.sampled_from(others),
        lambda inner: st.one_of(
            st.lists(inner, max_size=10),
            st.dictionaries(st.integers() | st.text(max_size=2), inner, max_size=10),
            *(st.builds(make, inner, inner) for make in PAIRS.values()),
        ),
        max_leaves=20,
    )
    return drawn.filter(lambda tree: type(tree) not in set(map(type, others)))
