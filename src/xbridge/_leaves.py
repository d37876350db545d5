"""What is inside a batch: the leaves of lists, tuples and dicts, and how to put others in their place."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from xbridge._registry import backend_for
from xbridge.errors import OptionError, UnsupportedArrayError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def flatten(tree: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The leaves in order, and what builds the same tree of as many others."""
    try:
        leaves, build = _taken(tree)
    except RecursionError:
        raise OptionError.because(
            f"find the leaves of a {type(tree).__name__}",
            "it never ends",
            "a batch that does not hold itself",
        ) from None
    return leaves, lambda others: build(iter(others))


def is_array(x: object) -> bool:
    """Whether a leaf is an array of some backend, and no number."""
    room = backend_for(type(x))
    return room is not None and not isinstance(x, room.scalars)


def _taken(tree: Any) -> tuple[list[Any], Callable[[Iterator[Any]], Any]]:
    if not _is_container(tree):
        return [tree], next
    kind = type(tree)
    branches = [_taken(branch) for branch in (tree.values() if kind is dict else tree)]

    def build(leaves: Iterator[Any]) -> Any:
        built = [make(leaves) for _, make in branches]
        if kind is dict:
            return dict(zip(tree, built, strict=True))
        return kind(built) if kind in (list, tuple) else kind(*built)

    return list(chain.from_iterable(leaves for leaves, _ in branches)), build


def _is_container(x: Any) -> bool:
    """Whether it is of a kind that can be built anew; another kind that holds an array is refused."""
    if type(x) in (list, tuple, dict) or (isinstance(x, tuple) and hasattr(x, "_fields")):
        return True
    if isinstance(x, (list, tuple, dict)) and any(map(is_array, x.values() if isinstance(x, dict) else x)):
        raise UnsupportedArrayError.because(
            f"look for arrays in a {type(x).__name__}",
            "it is neither a plain list, tuple or dict nor a named tuple",
            "list(x), tuple(x) or dict(x)",
        )
    return False
