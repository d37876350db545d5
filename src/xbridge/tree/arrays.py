"""The arrays of a tree: flatten it, convert them all in one call, and build the tree of the results.

Nearly all trees consist of dicts, lists and tuples, and a call of Python for each of them would take longer
than the conversion of the arrays. So a container that holds only leaves is flattened and built as a whole,
and so is a container of many of these, such as a list of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias

from xbridge._core.literals import NUMBERS
from xbridge._host.advice import hint_for_object
from xbridge._host.importers import is_exporter
from xbridge._registry.registry import are_arrays, backend_for
from xbridge.errors import (
    Chained,
    OptionError,
    UnsupportedArrayError,
    XBridgeError,
    type_of,
    with_article,
)
from xbridge.tree.containers import PLAIN, Container, find_container
from xbridge.tree.leaf import ARRAYS, PLAIN_TYPES, is_movable, is_text

if TYPE_CHECKING:
    from xbridge._core.protocol import Array, ArrayFn
    from xbridge.tree.leaf import Leaves


LeafFn: TypeAlias = Callable[[Any], Any]

Leaf: TypeAlias = Any
"""An object that is not flattened."""

Tree: TypeAlias = Any
"""Nested containers with leaves; or a leaf."""

_Rows: TypeAlias = "Collection[Any]"
_Opened: TypeAlias = "tuple[Container, Any, Collection[Any], Any, _Rows, bool]"
"""A container that was flattened: its class, the object, its children, its form, copies of its children if
all are plain containers of leaves, and True if all its children are leaves."""


class TreeArrays:
    """A tree as it was when it was flattened, and the arrays in it.

    Parameters
    ----------
    tree : tree
        Any container, or a leaf.
    chosen : Leaves
        The leaves that are treated as arrays.
    alone : bool
        Treat a tree that is a single leaf as an array, unless it is text or a number. Errors then name no
        path.
    """

    def __init__(self, tree: Tree, chosen: Leaves = ARRAYS, *, alone: bool = False) -> None:
        self._leaves: list[Leaf] = []
        self._leaf_types: set[type] = set()
        self._containers = dict(PLAIN)
        self._opened: list[_Opened] = []
        try:
            self._look_up_types((tree,))
            if type(tree) in self._containers:
                self._open(tree)
            else:
                self._leaves.append(tree)
        except RecursionError:
            raise _endless_error() from None
        self.alone: bool = alone and not self._opened and type(tree) not in PLAIN_TYPES
        """True if the tree is a leaf that is treated as an array."""
        is_whole = self.alone and chosen.only is None
        self.kinds: set[type] = self._leaf_types if is_whole else set(filter(chosen.take, self._leaf_types))
        """The types of leaves that are converted."""
        self._choose_others(chosen)

    def _choose_others(self, chosen: Leaves) -> None:
        """Add the types of exporters and of movable objects to the types that are converted."""
        others = self._leaf_types.difference(self.kinds, PLAIN_TYPES)
        others = {kind for kind in others if backend_for(kind) is None}
        examples = {type(x): x for x in self._leaves if type(x) in others} if others else {}
        for kind, x in examples.items():
            if chosen.movables and is_movable(x):
                self.kinds.add(kind)
            elif chosen.exporters is not False and is_exporter(x):
                if chosen.exporters is None:
                    action = f"convert a batch with {type_of(x)} at {self._name_of(x)}"
                    reason = "it exports its memory, and the call does not say whether to convert it"
                    hint = "exporters=True, or exporters=False"
                    raise UnsupportedArrayError.build(action, reason, hint)
                self.kinds.add(kind)

    def refuse_leaf(self, *, scalars: bool | str = False) -> None:
        """Raise an error if the tree is neither a container nor an array, nor a number with `scalars`.

        None is an empty tree, as in JAX and optree.
        """
        if self._opened or self.kinds:
            return
        (x,) = self._leaves
        if x is None or are_arrays(type(x)) or (scalars and type(x) in NUMBERS):
            return  # also an array of a library that the call leaves alone
        if isinstance(x, PLAIN_TYPES):
            hint = "[x], or xbridge.asarray(x)"
        elif is_exporter(x):
            hint = "exporters=True, or xbridge.to_backend(x, backend)"
        else:
            hint = hint_for_object(x)
        raise UnsupportedArrayError.build(
            f"walk {type_of(x)} as a tree", "it is neither a container nor an array", hint
        )

    @property
    def leaves(self) -> list[Leaf]:
        """The leaves that are converted, in order: arrays, also of text."""
        return [x for x in self._leaves if type(x) in self.kinds]

    @property
    def arrays(self) -> list[Array]:
        """The arrays that hold numbers, in order, each once."""
        return [x for x in {id(x): x for x in self.leaves}.values() if not is_text(x)]

    def map(self, convert: ArrayFn) -> Tree:
        """Return a tree of the same form with converted leaves.

        `convert` is called once, with each array once. An error names the path to the leaf at which it was
        raised.
        """
        leaves, kinds = self._leaves, self.kinds
        chosen = leaves if kinds == self._leaf_types else self.leaves
        made = _convert_distinct(partial(self._convert_named, convert), chosen) if chosen else []
        if chosen is not leaves:
            rest = iter(made)
            made = [next(rest) if type(x) in kinds else x for x in leaves]
        return self._unflatten(made)

    def each(self, fn: LeafFn, xs: list[Leaf]) -> list[Any]:
        """Call a function with each leaf. An exception gets a note of the path to the leaf."""
        done: list[Any] = []

        def note(error: Exception) -> Exception:
            error.add_note(f"at {self._name_of(xs[len(done)])}")
            return error

        try:
            with Chained(note):
                for x in xs:
                    done.append(fn(x))  # noqa: PERF401 -- an error is about the next one
        except XBridgeError as error:
            error.index = len(done)
            raise
        return done

    def _convert_named(self, convert: ArrayFn, xs: list[Leaf]) -> list[Any]:
        try:
            return convert(xs)
        except XBridgeError as error:
            if self.alone or error.index is None:
                raise
            raise error.at(self._name_of(xs[error.index])) from error

    def _unflatten(self, leaves: list[Any]) -> Tree:
        """Return a tree of the same form with other leaves."""
        if not self._opened:
            return leaves[0]
        try:
            return _build(self._containers, iter(self._opened), iter(leaves))
        except RecursionError:
            raise _endless_error() from None

    def _name_of(self, leaf: Any) -> str:
        """Return the path to the first occurrence of a leaf, as Python writes it."""
        names = self._name_leaves(iter(self._opened)) if self._opened else [""]
        return "tree" + next(name for name, x in zip(names, self._leaves, strict=True) if x is leaf)

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
        if kinds <= self._leaf_types:
            self._opened.append((container, x, children, form, (), True))
            self._leaves.extend(children)
            return
        # A single row is faster to open by itself.
        rows = _copy_rows(children, kinds) if len(children) > 1 else ()
        inside: list[Any] = list(chain.from_iterable(map(dict.values, rows) if kinds == {dict} else rows))
        if rows and self._look_up_types(inside) <= self._leaf_types:
            self._opened.append((container, x, children, form, rows, False))
            self._leaves.extend(inside)
            return
        self._opened.append((container, x, children, form, (), False))
        within, open_, append = kinds - self._leaf_types, self._open, self._leaves.append
        for child in children:
            if type(child) in within:
                open_(child)
            else:
                append(child)

    def _look_up_types(self, objects: Collection[Any]) -> set[type]:
        """Return the types of some objects, and look up the types that are new."""
        kinds = set(map(type, objects))
        # In two steps, because the compiler of torch 2.7 takes one argument.
        news = (kinds - self._leaf_types).difference(self._containers)
        examples = dict(zip(map(type, objects), objects, strict=True)) if news else {}
        for kind in news:
            container = find_container(examples[kind])
            if container is None:
                self._leaf_types.add(kind)
            else:
                self._containers[kind] = container
        return kinds


def _convert_distinct(fn: ArrayFn, xs: list[Leaf]) -> list[Any]:
    """Call `fn` with each distinct object once, and return its results in the order of `xs`."""
    if len(set(map(id, xs))) == len(xs):
        return fn(xs)
    keys = [-i if type(x) in NUMBERS else id(x) for i, x in enumerate(xs, 1)]  # numbers are values
    distinct = dict(zip(keys, xs, strict=True))
    done = dict(zip(distinct, fn(list(distinct.values())), strict=True))
    return [done[key] for key in keys]


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
