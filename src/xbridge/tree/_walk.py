"""Take a tree apart into its leaves, and put together another of its form.

Dicts, lists and tuples, which nearly all trees are made of, take no call of their own. A container that holds
only leaves is taken and built whole, and so is one of many such dicts, lists or tuples, as a list of samples
is: otherwise the walk would take longer than the conversion. (A walk of optree's takes 120 ns a leaf, a
quarter of `torch.from_numpy`; it is asked about classes only.)
"""

from __future__ import annotations

from contextlib import suppress
from itertools import chain, filterfalse, islice
from typing import TYPE_CHECKING, Any, TypeAlias

from xbridge._leaves import Fixture
from xbridge.errors import FOREIGN_ERRORS, Chained, OptionError, UnsupportedArrayError, XBridgeError
from xbridge.tree._nodes import PLAIN, find

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from xbridge.tree._nodes import Node

Tree: TypeAlias = Any
"""A container of containers, down to leaves; or a leaf."""

_Opened: TypeAlias = "tuple[Collection[Any], Any, Any]"
"""The children of a container, what else is known of it, and the container."""

_END = object()
"""What comes behind the last leaf."""

_LONGEST = 2000
"""How long a way is looked through for a container that stands in itself."""


class Walk:
    """A tree taken apart.

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
        self._depths: list[int | None] = []
        self._opened: list[_Opened] = []
        try:
            self._take((tree,))
        except RecursionError:
            raise _endless(tree) from None

    def rebuilt(self, leaves: list[Any]) -> Tree:
        """A tree of the same form with other leaves."""
        left = chain(leaves, (_END,))
        try:
            built = _build((self._tree,), self._nodes, left, iter(self._depths), iter(self._opened))[0]
        except RecursionError:
            raise _endless(self._tree) from None
        except XBridgeError:
            raise
        except (StopIteration, ValueError):
            raise _changed() from None
        if next(left, None) is not _END:
            raise _changed()
        return built

    def kept(self) -> Walk:
        """The same, of a tree that nobody else can change."""
        return Walk(self.rebuilt(self.leaves))

    def name_of(self, leaf: Any) -> str:
        """The way to the first place where a leaf stands, as Python would write it."""
        wanted = leaf.array if type(leaf) is Fixture else leaf
        noted = {id(x): children for children, _, x in reversed(self._opened)}
        todo = [("tree", self._tree)]
        while todo:
            name, x = todo.pop()
            if x is wanted or (type(x) is Fixture and x.array is wanted):
                return name
            node = self._nodes.get(type(x))
            if node is not None:
                children = node.take(x)[0] if type(x) in PLAIN else noted.get(id(x), ())
                todo += reversed(_named(node, x, children, name))
        return "tree"  # it was taken out of it since

    def _take(self, x: Any) -> None:
        """Note the leaves, how far below a container they lie, and what those are that are not plain."""
        kind = type(x)
        if kind is dict:
            children = x.values()
        elif kind is list or kind is tuple:
            children = x
        else:
            opened = _apart(self._nodes[kind], x)
            self._opened.append(opened)
            children = opened[0]
        kinds = set(map(type, children))
        if self._are_leaves(kinds):
            self._depths.append(1)
            self.leaves.extend(children)
            return
        rows = _rows(children, kinds) if len(children) > 1 else ()  # one is quicker taken by itself
        if rows and self._are_leaves(map(type, chain.from_iterable(rows))):
            self._depths.append(2)
            self.leaves.extend(chain.from_iterable(rows))
            return
        self._depths.append(None)
        within, take, append = set(filter(self._opens, kinds)), self._take, self.leaves.append
        for child in children:
            if type(child) in within:
                take(child)
            else:
                append(child)

    def _are_leaves(self, kinds: Iterable[type]) -> bool:
        """Whether no type is a container's."""
        return not any(map(self._opens, filterfalse(self.kinds.__contains__, kinds)))

    def _opens(self, kind: type) -> bool:
        """Whether a type is a container's. It is looked up when it is met for the first time."""
        if kind not in self._nodes and kind not in self.kinds:
            node = find(kind)
            if node is None:
                self.kinds.add(kind)
            else:
                self._nodes[kind] = node
        return kind in self._nodes


def _rows(children: Collection[Any], kinds: set[type]) -> Collection[Collection[Any]]:
    """What children hold that are all dicts, all lists or all tuples; nothing of others."""
    if kinds == {dict}:
        return list(map(dict.values, children))
    return children if kinds in ({list}, {tuple}) else ()


def _build(
    x: Any,
    nodes: dict[type, Node],
    leaves: Iterator[Any],
    depths: Iterator[int | None],
    opened: Iterator[_Opened],
) -> Any:
    """A container like `x`, of the leaves that come next."""
    kind, known = type(x), x
    depth = next(depths)
    if kind is dict:
        if depth == 1:
            return dict(zip(x, leaves))  # noqa: B905 -- it takes as many leaves as there are keys
        children = x.values()
    elif kind is list or kind is tuple:
        children = x
    else:
        children, known, _ = next(opened)
    parts: Any
    if depth == 1:
        parts = islice(leaves, len(children))
    elif depth == 2:
        parts = _filled(children, leaves)
    else:
        parts = []
        for child in children:
            within = type(child) in nodes
            parts.append(_build(child, nodes, leaves, depths, opened) if within else next(leaves))
    if kind is dict:
        return dict(zip(x, parts, strict=True))
    if kind is list:
        return list(parts)
    return tuple(parts) if kind is tuple else _together(nodes[kind], known, list(parts))


def _filled(rows: Collection[Any], leaves: Iterator[Any]) -> list[Any]:
    """Plain containers like these, of the leaves that come next."""
    kinds = set(map(type, rows))
    if kinds == {dict}:
        return [dict(zip(row, leaves)) for row in rows]  # noqa: B905 -- as many as there are keys
    if kinds in ({list}, {tuple}):
        (kind,) = kinds
        return [kind(islice(leaves, len(row))) for row in rows]
    raise _changed()


def _together(node: Node, known: Any, parts: list[Any]) -> Any:
    with _chained(f"put a {node.cls.__name__} together"):
        return node.build(known, parts)


def _changed() -> OptionError:
    return OptionError.because(
        "put a tree of the same form together",
        "a container in it has been changed meanwhile",
        "a function that leaves it alone",
    )


def _chained(what: str) -> Chained:
    """Whatever a class raises becomes an error of ours, unless it says that a walk has no end."""

    def failed(error: Exception) -> UnsupportedArrayError:
        if isinstance(error, RecursionError):
            raise error
        return UnsupportedArrayError.because(what, f"its class failed with {error!r}", "its parts one by one")

    return Chained(failed)


def _named(node: Node, x: Any, children: Collection[Any], name: str) -> list[tuple[str, Any]]:
    """The children of a container by their names, or by their places where its class cannot tell names."""
    try:
        ways = node.ways(x)
    except FOREIGN_ERRORS:
        ways = []
    if len(ways) != len(children):
        ways = [f"[<flat index {i}>]" for i in range(len(children))]
    return [(name + way, child) for way, child in zip(ways, children, strict=True)]


def _named_children(x: Any, name: str) -> list[tuple[str, Any]]:
    """The same, taken apart anew; none of a leaf."""
    node = find(type(x))
    return [] if node is None else _named(node, x, _apart(node, x)[0], name)


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
                return OptionError.because(
                    "walk this tree",
                    f"{name} is {around[id(child)]} again, so it has no end",
                    "a tree without it",
                )
            elif id(child) not in done and find(type(child)) is not None:
                around[id(child)] = name
                todo.append((child, iter(_named_children(child, name))))
    return OptionError.because("walk this tree", "it is nested too deep for Python's stack", "a flatter one")


def _apart(node: Node, x: Any) -> _Opened:
    """The children of any container, what else is known of it, and the container."""
    with _chained(f"take a {node.cls.__name__} apart"):
        children, known = node.take(x)
        return list(children), known, x
