"""Flatten a tree into its leaves, and build another tree of the same form.

Nearly all trees consist of dicts, lists and tuples, and a call of Python for each of them would take longer
than the conversion of the arrays. So a container that holds only leaves is flattened and built as a whole,
and so is a container of many of these, such as a list of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import Any, TypeAlias

from xbridge.errors import Chained, OptionError, UnsupportedArrayError, XBridgeError, with_article
from xbridge.tree.containers import PLAIN, Container, find_container

LeafFn: TypeAlias = Callable[[Any], Any]

Leaf: TypeAlias = Any
"""An object that is not flattened."""

Tree: TypeAlias = Any
"""Nested containers with leaves; or a leaf."""

_Rows: TypeAlias = "Collection[Any]"
_Opened: TypeAlias = "tuple[Container, Any, Collection[Any], Any, _Rows, bool]"
"""A container that was flattened: its class, the object, its children, its form, copies of its children if
all are plain containers of leaves, and True if all its children are leaves."""


class TreeSpec:
    """The structure and the leaves of a tree, as they were when it was flattened."""

    leaves: list[Any]
    """The leaves, in order."""
    kinds: set[type]
    """The types of the leaves."""

    def __init__(self, tree: Tree) -> None:
        self.leaves = []
        self.kinds = set()
        self._tree = tree
        self._containers = dict(PLAIN)
        self._opened: list[_Opened] = []
        try:
            self._look_up_types((tree,))
            if type(tree) in self._containers:
                self._open(tree)
            else:
                self.leaves.append(tree)
        except RecursionError:
            raise _endless_error() from None

    @property
    def is_leaf(self) -> bool:
        """True if the tree itself is not a container."""
        return not self._opened

    def unflatten(self, leaves: list[Any]) -> Tree:
        """Return a tree of the same form with other leaves."""
        if not self._opened:
            return leaves[0]
        try:
            return _build(self._containers, iter(self._opened), iter(leaves))
        except RecursionError:
            raise _endless_error() from None

    def name_of(self, leaf: Any) -> str:
        """Return the path to the first occurrence of a leaf, as Python writes it."""
        names = self._name_leaves(iter(self._opened)) if self._opened else [""]
        return "tree" + next(name for name, x in zip(names, self.leaves, strict=True) if x is leaf)

    def _name_leaves(self, opened: Iterator[_Opened]) -> Iterator[str]:
        """Yield the path from the next container to each leaf in it."""
        container, x, children, form, rows, are_leaves = next(opened)
        for path, child in zip(_paths(container, x, form, len(children)), rows or children, strict=True):
            if rows:
                yield from (path + inner for inner in PLAIN[type(child)].paths(child, child))
            elif are_leaves or type(child) not in self._containers:
                yield path
            else:
                yield from (path + inner for inner in self._name_leaves(opened))

    def _open(self, x: Any) -> None:
        """Append the leaves of a container, and the containers in it."""
        # Types are collected by `map` and compared as sets, because a test of each child in Python would take
        # longer than the conversion of a small array. The fast cases come first: leaves alone, then rows of
        # leaves, such as a list of samples. Any other child is opened by itself.
        container = self._containers[type(x)]
        children, form = container.flatten(x) if container.cls in PLAIN else _flatten(container, x)
        kinds = self._look_up_types(children)
        if kinds <= self.kinds:
            self._opened.append((container, x, children, form, (), True))
            self.leaves.extend(children)
            return
        # A single row is faster to open by itself.
        rows = _copy_rows(children, kinds) if len(children) > 1 else ()
        inside: list[Any] = list(chain.from_iterable(map(dict.values, rows) if kinds == {dict} else rows))
        if rows and self._look_up_types(inside) <= self.kinds:
            self._opened.append((container, x, children, form, rows, False))
            self.leaves.extend(inside)
            return
        self._opened.append((container, x, children, form, (), False))
        within, open_, append = kinds - self.kinds, self._open, self.leaves.append
        for child in children:
            if type(child) in within:
                open_(child)
            else:
                append(child)

    def _look_up_types(self, objects: Collection[Any]) -> set[type]:
        """Return the types of some objects, and look up the types that are new."""
        kinds = set(map(type, objects))
        # In two steps, because the compiler of torch 2.7 takes one argument.
        news = (kinds - self.kinds).difference(self._containers)
        examples = dict(zip(map(type, objects), objects, strict=True)) if news else {}
        for kind in news:
            container = find_container(examples[kind])
            if container is None:
                self.kinds.add(kind)
            else:
                self._containers[kind] = container
        return kinds


def _copy_rows(children: Collection[Any], kinds: set[type]) -> _Rows:
    """Return copies of children that are all dicts, all lists or all tuples; an empty tuple for others."""
    if kinds == {dict}:
        return list(map(dict.copy, children))
    if kinds == {list}:
        return list(map(list.copy, children))
    return children if kinds == {tuple} else ()


def _build(containers: dict[type, Container], opened: Iterator[_Opened], leaves: Iterator[Any]) -> Any:
    """Build the next container from the next leaves."""
    container, _, children, form, rows, are_leaves = next(opened)
    parts: Any
    if are_leaves:
        parts = islice(leaves, len(children))
    elif rows:
        parts = _build_rows(rows, leaves)
    else:
        parts = [
            _build(containers, opened, leaves) if type(x) in containers else next(leaves) for x in children
        ]
    if container.cls in PLAIN:
        return container.unflatten(form, parts)
    with _chain_class_errors("build", container.cls):
        return container.unflatten(form, list(parts))


def _build_rows(rows: _Rows, leaves: Iterator[Any]) -> list[Any]:
    """Build plain containers of the form of `rows` from the next leaves."""
    kind: Any = type(next(iter(rows)))
    if kind is dict:
        return [dict(zip(row, leaves)) for row in rows]  # noqa: B905 -- as many as there are keys
    return [kind(islice(leaves, len(row))) for row in rows]


def _chain_class_errors(verb: str, cls: type) -> Chained:
    """Turn exceptions of a container class into an `UnsupportedArrayError`, except `RecursionError`."""

    def failed(error: Exception) -> UnsupportedArrayError:
        if isinstance(error, RecursionError):
            raise error
        action = f"{verb} {with_article(cls.__name__)}"
        return UnsupportedArrayError.build(action, f"its class failed with {error!r}")

    return Chained(failed)


def _paths(container: Container, x: Any, form: Any, count: int) -> list[str]:
    """Return the paths to the children of a container, or their indices if the class gives no paths."""
    paths: list[str] = []
    with suppress(XBridgeError, RecursionError), _chain_class_errors("name the parts of", container.cls):
        paths = container.paths(x, form)
    return paths if len(paths) == count else [f"[<flat index {i}>]" for i in range(count)]


def _endless_error() -> OptionError:
    """Return the error for a tree that is too deep for Python's stack."""
    reason = "it contains itself, or is nested too deep for Python's stack"
    return OptionError.build("walk this tree", reason)


def _flatten(container: Container, x: Any) -> tuple[list[Any], Any]:
    """Flatten any container: return its children and its form."""
    with _chain_class_errors("flatten", container.cls):
        children, form = container.flatten(x)
        return list(children), form
