"""Find the arrays in a tree.

`xbridge.tree` knows every container. If optree, which it needs, is not installed, this module takes plain
lists, tuples and dicts apart.
"""

from __future__ import annotations

from collections import UserDict, UserList, deque
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from xbridge._leaves import PLAIN_TYPES, crosses, is_text, together
from xbridge.backends._registry import are_arrays
from xbridge.errors import MissingLibraryError, OptionError, UnsupportedArrayError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from xbridge._leaves import ArrayFn, TreeLike

    _Way = tuple[Any, Any] | None
    """To a container, and the key of a child of it; None to the tree itself."""

_CONTAINERS = (list, dict, deque, UserDict, UserList)
_FIELDS = ("_fields", "__dataclass_fields__", "__attrs_attrs__")
"""What a named tuple, a dataclass and an attrs class have."""


@cache
def walker() -> type[TreeLike]:
    """What takes a tree apart here."""
    try:
        from xbridge.tree.flatten import TreeSpec  # noqa: PLC0415 -- optree may be missing
    except MissingLibraryError:
        return Plain
    return TreeSpec


class Plain:
    """A tree of plain lists, tuples, named tuples and dicts, taken apart without optree.

    Parameters
    ----------
    tree : tree
        Any container, or a leaf.
    """

    leaves: list[Any]
    """In order."""

    def __init__(self, tree: Any) -> None:
        try:
            found, self._build = _taken(tree, None)
        except RecursionError:
            raise OptionError.build(
                f"find the leaves of a {type(tree).__name__}",
                "it has no end, or it is nested too deep",
                "a batch that does not hold itself",
            ) from None
        self.leaves = [x for x, _ in found]
        self._ways = [way for _, way in found]

    def unflatten(self, leaves: list[Any]) -> Any:
        """A tree of the same form with other leaves."""
        return self._build(iter(leaves))

    def name_of(self, leaf: Any) -> str:
        """The way to the first place where a leaf stands, as Python would write it."""
        way = next(way for way, x in zip(self._ways, self.leaves, strict=True) if x is leaf)
        names: list[str] = []
        while way is not None:
            way, key = way
            names.insert(0, f"[{key!r}]")
        return "".join(["tree", *names])


class TreeArrays:
    """A tree, and the arrays in it, each once.

    Parameters
    ----------
    tree : tree
        Any container, or a leaf. A leaf that is neither text nor a number stands for an array.
    """

    def __init__(self, tree: object) -> None:
        walk = (Plain if are_arrays(type(tree)) else walker())(tree)
        self.alone = len(walk.leaves) == 1 and walk.leaves[0] is tree and not is_text(tree)
        self.walk, leaves = walk, walk.leaves
        arrays = leaves if self.alone else (x for x in leaves if crosses(type(x)) and not is_text(x))
        self.arrays = list({id(x): x for x in arrays}.values())

    def map(self, carry: ArrayFn) -> Any:
        """The tree with arrays in place of arrays."""
        done = carry(self.arrays) if self.alone else together(self.walk, carry, self.arrays)
        made = dict(zip(map(id, self.arrays), done, strict=True))
        return self.walk.unflatten([made.get(id(x), x) for x in self.walk.leaves])


def _taken(tree: Any, way: _Way) -> tuple[list[tuple[Any, _Way]], Callable[[Iterator[Any]], Any]]:
    """The leaves of a tree as it is now with the ways to them, and what makes one like it of others."""
    if not _is_container(tree):
        return [(tree, way)], next
    kind, children = type(tree), list(tree.values() if type(tree) is dict else _items(tree))
    keys = list(tree) if kind is dict else range(len(children))
    branches = [_taken(child, (way, key)) for key, child in zip(keys, children, strict=True)]

    def build(leaves: Iterator[Any]) -> Any:
        return _container(kind, keys, [make(leaves) for _, make in branches])

    return list(chain.from_iterable(found for found, _ in branches)), build


def _items(x: Any) -> Iterator[Any]:
    """What a list or a tuple holds, past its class."""
    base: Any = list if isinstance(x, list) else tuple
    found: Iterator[Any] = base.__iter__(x)
    return found


def _container(kind: type[Any], keys: Iterable[Any], children: list[Any]) -> Any:
    if kind is dict:
        return dict(zip(keys, children, strict=True))
    return children if kind is list else tuple.__new__(kind, children)


def _is_container(x: Any) -> bool:
    """Whether it is of a kind that can be built anew here; what only optree can is refused."""
    kind = type(x)
    if kind in (list, tuple, dict):
        return True
    if kind.__bases__ == (tuple,) and hasattr(kind, "_fields") and not kind.__dictoffset__:
        return True
    opened = issubclass(kind, _CONTAINERS) or any(hasattr(kind, word) for word in _FIELDS)
    opened = opened or (
        issubclass(kind, tuple) and not all(type(child) in PLAIN_TYPES for child in _items(x))
    )
    if opened and not are_arrays(kind):
        raise UnsupportedArrayError.build(
            f"look for arrays in a {kind.__name__}",
            "optree is not installed, and it is neither a plain list, tuple or dict nor a named tuple",
            "pip install 'xbridge-array[tree]'",
        )
    return False
