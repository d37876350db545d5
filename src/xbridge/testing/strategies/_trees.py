"""Strategy of nested containers, as `xbridge.tree` takes them."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from hypothesis import strategies as st

from xbridge.errors import OptionError


class Pair(NamedTuple):
    """A named tuple."""

    first: Any
    second: Any


@dataclass
class Batch:
    """A dataclass."""

    inputs: Any
    targets: Any


@dataclass(frozen=True)
class FrozenBatch:
    """A dataclass whose fields cannot be assigned."""

    inputs: Any
    targets: Any


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Strategy of nested containers.

    Parameters
    ----------
    leaves : strategy
        The leaves, such as ``arrays("torch")``, or ``arrays("torch") | st.none() | st.text()``.

    Returns
    -------
    SearchStrategy of container
        Lists, tuples, named tuples, deques, dataclasses, and dicts with strings and integers as keys, up to
        three deep, empty ones included. A leaf may be in a tree twice, as tied weights are. The root is a
        container. It shrinks to an empty list.

    Raises
    ------
    OptionError
        The leaves are not a strategy.

    Examples
    --------
    >>> from hypothesis import find
    >>> from hypothesis import strategies as st
    >>> find(trees(st.integers()), lambda tree: type(tree) is list and len(tree) > 1)
    [0, 0]
    """
    if not isinstance(leaves, st.SearchStrategy):
        reason = f"the leaves are not a strategy but of type {type(leaves).__name__}"
        raise OptionError.build("draw trees", reason, "trees(arrays('numpy'))")
    return _tree(leaves, 2)


@st.composite
def _tree(draw: st.DrawFn, leaves: st.SearchStrategy[Any], depth: int) -> Any:
    """Draw a container, with others inside down to a depth."""
    inner = leaves | _tree(leaves, depth - 1) if depth else leaves
    items = st.lists(inner, max_size=3)
    named = st.dictionaries(st.text("01ab", max_size=2) | st.integers(0, 2), inner, max_size=3)
    kinds = (
        items,
        named,
        items.map(tuple),
        items.map(deque),
        named.map(OrderedDict),
        named.map(lambda children: defaultdict(list, children)),
        *(st.builds(cls, inner, inner) for cls in (Pair, Batch, FrozenBatch)),
        leaves.map(lambda leaf: [leaf, leaf]),
    )
    return draw(draw(st.sampled_from(kinds)))
