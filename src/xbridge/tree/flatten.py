"""Take a tree apart into its leaves, and build another tree of the same form.

Dicts, lists and tuples, of which nearly all trees consist, take no call of their own. A container that holds
only leaves is taken and built whole. So is one of many such dicts, lists or tuples, such as a list of
samples. Otherwise the walk would take longer than the conversion.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import chain, islice
from operator import is_
from typing import TYPE_CHECKING, Any, TypeAlias

from xbridge.errors import Chained, OptionError, UnsupportedArrayError, XBridgeError
from xbridge.tree.containers import PLAIN, find

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from xbridge.tree.containers import Container

    LeafFn: TypeAlias = Callable[[Any], Any]

Leaf: TypeAlias = Any
"""An object that is not taken apart."""

Tree: TypeAlias = Any
"""A container of containers, down to leaves; or a leaf."""

_Rows: TypeAlias = "Collection[Any]"
_Opened: TypeAlias = "tuple[Container, Any, Collection[Any], Any, _Rows, bool]"
"""A container: its kind, the object, its children, what else is known of it, copies of its children if they
are plain and hold only leaves, and whether all children are leaves."""

_LONGEST = 2000
"""How long a way is looked through for a container that stands in itself."""


class TreeSpec:
    """A tree taken apart, as it is at this moment: what is done to its containers later changes nothing here.

    Parameters
    ----------
    tree : tree
        Any container, or a leaf.
    """

    leaves: list[Any]
    """In order."""
    kinds: set[type]
    """The types of the leaves."""

    def __init__(self, tree: Tree) -> None:
        self.leaves = []
        self.kinds = set()
        self._tree = tree
        self._nodes = dict(PLAIN)
        self._opened: list[_Opened] = []
        try:
            self._look((tree,))
            if type(tree) in self._nodes:
                self._take(tree)
            else:
                self.leaves.append(tree)
        except RecursionError:
            raise _endless(tree) from None

    @property
    def is_leaf(self) -> bool:
        """The tree itself is not a container."""
        return not self._opened

    def unflatten(self, leaves: list[Any]) -> Tree:
        """A tree of the same form with other leaves."""
        if self.is_leaf:
            return leaves[0]
        try:
            return _build(self._nodes, iter(self._opened), iter(leaves))
        except RecursionError:
            raise _endless(self._tree) from None

    def refuse_changes(self) -> None:
        """Raise an error if a container does not hold the same objects in the same order any more."""
        for node, x, children, known, rows, _ in self._opened:
            if not (node.is_same(x, known) and (not rows or _are_same(children, rows))):
                raise OptionError.build(
                    "put a tree of the same form together",
                    "a container in it has been changed meanwhile",
                    "a function that leaves it alone",
                )

    def name_of(self, leaf: Any) -> str:
        """The way to the first place where a leaf stands, as Python would write it."""
        todo, opened = [("tree", self._tree)], iter(self._opened)
        while True:
            name, x = todo.pop()
            if x is leaf:
                return name
            if type(x) in self._nodes:
                node, x, children, known, rows, _ = next(opened)
                inside = _named(node, x, children, known, name)
                if rows:
                    inside = [
                        grandchild
                        for (way, _), row in zip(inside, rows, strict=True)
                        for grandchild in _named_children(row, way)
                    ]
                todo += reversed(inside)

    def _take(self, x: Any) -> None:
        """Note the leaves, and what the containers are."""
        node = self._nodes[type(x)]
        children, known = node.take(x) if node.cls in PLAIN else _apart(node, x)
        kinds = self._look(children)
        if kinds <= self.kinds:
            self._opened.append((node, x, children, known, (), True))
            self.leaves.extend(children)
            return
        rows = _rows(children, kinds) if len(children) > 1 else ()  # one is quicker taken by itself
        inside: list[Any] = list(chain.from_iterable(map(dict.values, rows) if kinds == {dict} else rows))
        if rows and self._look(inside) <= self.kinds:
            self._opened.append((node, x, children, known, rows, False))
            self.leaves.extend(inside)
            return
        self._opened.append((node, x, children, known, (), False))
        within, take, append = kinds - self.kinds, self._take, self.leaves.append
        for child in children:
            if type(child) in within:
                take(child)
            else:
                append(child)

    def _look(self, things: Collection[Any]) -> set[type]:
        """The types of some things. Each is looked up when it is met for the first time."""
        kinds = set(map(type, things))
        for kind in kinds.difference(self.kinds, self._nodes):
            node = find(next(x for x in things if type(x) is kind))
            if node is None:
                self.kinds.add(kind)
            else:
                self._nodes[kind] = node
        return kinds


def _rows(children: Collection[Any], kinds: set[type]) -> _Rows:
    """Copies of children that are all dicts, all lists or all tuples; nothing of others."""
    if kinds == {dict}:
        return list(map(dict.copy, children))
    if kinds == {list}:
        return list(map(list.copy, children))
    return children if kinds == {tuple} else ()


def _are_same(rows: _Rows, noted: _Rows) -> bool:
    """Whether plain containers of one kind still hold what was noted."""
    inside = chain.from_iterable
    if list(map(len, rows)) != list(map(len, noted)) or not all(map(is_, inside(rows), inside(noted))):
        return False
    if type(next(iter(rows))) is not dict:
        return True
    return all(map(is_, inside(map(dict.values, rows)), inside(map(dict.values, noted))))


def _build(nodes: dict[type, Container], opened: Iterator[_Opened], leaves: Iterator[Any]) -> Any:
    """The next container, of the leaves that come next."""
    node, _, children, known, rows, are_leaves = next(opened)
    parts: Any
    if are_leaves:
        parts = islice(leaves, len(children))
    elif rows:
        parts = _filled(rows, leaves)
    else:
        parts = [_build(nodes, opened, leaves) if type(x) in nodes else next(leaves) for x in children]
    return node.build(known, parts) if node.cls in PLAIN else _together(node, known, list(parts))


def _filled(rows: _Rows, leaves: Iterator[Any]) -> list[Any]:
    """Plain containers like these, of the leaves that come next."""
    kind: Any = type(next(iter(rows)))
    if kind is dict:
        return [dict(zip(row, leaves)) for row in rows]  # noqa: B905 -- as many as there are keys
    return [kind(islice(leaves, len(row))) for row in rows]


def _together(node: Container, known: Any, parts: list[Any]) -> Any:
    with _chained(f"put a {node.cls.__name__} together"):
        return node.build(known, parts)


def _chained(what: str) -> Chained:
    """Whatever a class raises becomes an error of ours, unless it says that a walk has no end."""

    def failed(error: Exception) -> UnsupportedArrayError:
        if isinstance(error, RecursionError):
            raise error
        return UnsupportedArrayError.build(what, f"its class failed with {error!r}", "its parts one by one")

    return Chained(failed)


def _named(
    node: Container, x: Any, children: Collection[Any], known: Any, name: str
) -> list[tuple[str, Any]]:
    """The children of a container by their names, or by their places where its class cannot tell names."""
    ways: list[str] = []
    with suppress(XBridgeError, RecursionError), _chained(f"name the parts of a {node.cls.__name__}"):
        ways = node.ways(x, known)
    if len(ways) != len(children):
        ways = [f"[<flat index {i}>]" for i in range(len(children))]
    return [(name + way, child) for way, child in zip(ways, children, strict=True)]


def _named_children(x: Any, name: str) -> list[tuple[str, Any]]:
    """The same, taken apart anew; none of a leaf."""
    node = find(x)
    return [] if node is None else _named(node, x, *_apart(node, x), name)


def _endless(tree: Tree) -> OptionError:
    """Why a walk did not end: a container stands in itself, or there are too many, one in the other."""
    with suppress(RecursionError):  # of a class that does not come apart
        todo = [(tree, iter(_named_children(tree, "tree")))]
        around, done = {id(tree): "tree"}, set()
        while todo and len(todo) < _LONGEST:
            x, children = todo[-1]
            name, child = next(children, ("", None))
            if not name:
                done.add(id(x))
                del around[id(x)]
                todo.pop()
            elif id(child) in around:
                return OptionError.build(
                    "walk this tree",
                    f"{name} is {around[id(child)]} again, so it has no end",
                    "a tree without it",
                )
            elif id(child) not in done and find(child) is not None:
                around[id(child)] = name
                todo.append((child, iter(_named_children(child, name))))
    return OptionError.build("walk this tree", "it is nested too deep for Python's stack", "a flatter one")


def _apart(node: Container, x: Any) -> tuple[list[Any], Any]:
    """The children of any container, and what else is known of it."""
    with _chained(f"take a {node.cls.__name__} apart"):
        children, known = node.take(x)
        return list(children), known
