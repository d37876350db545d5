"""Flatten a tree into its leaves, and build a tree of the same form from others.

A tree is copied while it is walked. The first leaves are converted at once if a cached call knows how. Each
other one is entered once, and with all of its places: a list or a dict of the copy, and an index or a key
there. The results are put there later, and then the containers that are neither lists nor dicts are built,
the inner ones first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from xbridge._core.literals import NUMBERS
from xbridge._host.advice import aim, hint_for_object
from xbridge._host.importers import is_exporter
from xbridge._registry.call_cache import decline, unchanged
from xbridge._registry.registry import are_arrays, by_type
from xbridge.errors import (
    Chained,
    OptionError,
    UnsupportedArrayError,
    XBridgeError,
    shown,
    type_of,
    with_article,
)
from xbridge.tree.containers import PLAIN, PLAIN_TYPES, Container, find_container
from xbridge.tree.leaf import Leaves, converter_finder, leaf_converter

if TYPE_CHECKING:
    from xbridge._core.protocol import ArrayFn, Backend
    from xbridge._engine.repeat import Convert
    from xbridge._plan.options import CallOptions

Leaf: TypeAlias = Any
"""An object that is not flattened."""

Tree: TypeAlias = Any
"""Nested containers with leaves; or a leaf."""

Kind: TypeAlias = "Container | Convert"
"""What objects of a type are in a tree: containers, or leaves that a function converts. It is `unchanged` for
leaves that stay as they are. If it returns None, the leaf is converted together with others."""

_Place: TypeAlias = "tuple[Any, Any, int]"
"""Where a leaf is that is still to be converted: a list or dict of the copy, an index or key there, and the
number of the leaf."""

_Opened: TypeAlias = "tuple[Any, Any, Container, Any, Any, Any]"
"""A container with such leaves: the list or dict of the copy that holds it, its index or key there, its
class, the object, its form, and a list of its children or a copy of the dict that it is."""

_Walk: TypeAlias = (
    "tuple[list[Leaf], list[Any], list[_Place], list[_Opened], dict[int, int], dict[type, Kind]]"
)
"""What is known of one tree: the fields of `TreeArrays` but the first, the number of each leaf by its
identity, and types that may be other in another tree."""

_FEW = 16
"""The most leaves that are converted at once. To convert more together is faster."""


class Kinds:
    """What objects of each type are in all trees of a call. Types are entered when they are met.

    `converter_of` finds the function that converts leaves of a type at once.
    """

    def __init__(self, chosen: Leaves, converter_of: Callable[[type], Convert] = lambda _: decline) -> None:
        self.known: dict[type, Kind] = {**PLAIN}
        self._chosen, self._converter_of = chosen, converter_of

    def find(self, x: object, others: dict[type, Kind]) -> Kind:
        """Look up what an object of a new type is. Enter it, in `others` if other trees may differ."""
        cls = type(x)
        if cls in others:
            return others[cls]
        kind = find_container(x) or (self._converter_of(cls) if self._chosen.take(x) else unchanged)
        (self.known if cls in PLAIN_TYPES or cls in by_type else others)[cls] = kind
        return kind


class TreeArrays(NamedTuple):
    """A tree as it was when it was flattened, and the leaves in it, which can be converted once."""

    root: list[Tree]
    """A list of the copy of the tree."""
    leaves: list[Leaf]
    """The leaves to convert, each once: arrays, also of text, and numbers as values."""
    done: list[Any]
    """The results for the first of them, which were converted at once."""
    places: list[_Place]
    opened: list[_Opened]
    """The inner ones first."""
    alone: bool = False
    """True if the tree is a leaf that is treated as an array. Errors then name no path."""

    def map(self, convert: ArrayFn) -> Tree:
        """Return a tree of the same form with converted leaves, all of which `convert` takes in one call.

        An error names the path to the leaf at which it was raised.
        """
        left = self.leaves[len(self.done) :]
        try:
            ys = [*self.done, *convert(left)] if left else []
        except XBridgeError as error:
            if self.alone or error.index is None:
                raise
            raise error.at(self.path(len(self.done) + error.index)) from error
        for children, at, i in self.places:
            children[at] = ys[i]
        for parent, at, container, _, form, children in self.opened:
            parent[at] = _build(container, form, children)
        return self.root[0]

    def each(self, fn: Callable[[Leaf], Any], xs: list[Leaf]) -> list[Any]:
        """Call a function with each leaf. An exception gets a note of the path to the leaf."""
        done: list[Any] = []

        def note(error: Exception) -> Exception:
            error.add_note(f"at {self.path(len(done))}")
            return error

        try:
            with Chained(note):
                for x in xs:
                    done.append(fn(x))  # noqa: PERF401 -- an error is about the next one
        except XBridgeError as error:
            error.index = len(done)
            raise
        return done

    def path(self, leaf: int) -> str:
        """Return the path to the first place of a leaf, as Python writes it."""
        path = ""
        children, at = next((children, at) for children, at, i in self.places if i == leaf)
        while children is not self.root:
            parent, place, container, x, form, _ = next(one for one in self.opened if one[-1] is children)
            path = _label(container, x, form, children, at) + path
            children, at = parent, place
        return f"tree{path}"


def flatten(tree: Tree, kinds: Kinds, *, alone: bool = False) -> TreeArrays:
    """Flatten any container, or a leaf."""
    return TreeArrays(*_walk(tree, kinds), alone)


def _walk(tree: Tree, kinds: Kinds) -> tuple[list[Tree], list[Leaf], list[Any], list[_Place], list[_Opened]]:
    """Copy a tree, and convert leaves where that is done at once. Return the fields of `TreeArrays`."""
    root: list[Tree] = [tree]
    leaves: list[Leaf] = []
    done: list[Any] = []
    places: list[_Place] = []
    opened: list[_Opened] = []
    kind = kinds.known.get(type(tree)) or kinds.find(tree, {})
    if isinstance(kind, Container):
        try:
            _open(tree, kind, root, 0, kinds, (leaves, done, places, opened, {}, {}))
        except RecursionError:
            raise _endless_error() from None
    elif kind is not unchanged:
        root[0] = kind(tree)
        if root[0] is None:
            leaves.append(tree)
            places.append((root, 0, 0))
    return root, leaves, done, places, opened


def flatten_batch(tree: Tree, chosen: Leaves) -> TreeArrays:
    """Flatten a batch of a transfer, in which a single leaf is an array, unless it is text or a number.

    In a container, an exporter is an error if the call does not say what to do with it.
    """
    kinds, alone = Kinds(chosen), type(tree) not in PLAIN_TYPES and find_container(tree) is None
    if alone and chosen.only is None:
        kinds.known[type(tree)] = decline
    batch = flatten(tree, kinds, alone=alone)
    if chosen.exporters is None and not alone:
        classes = [*map(type, batch.leaves)]
        for i in map(classes.index, dict.fromkeys(classes)):
            x = batch.leaves[i]
            if not chosen._replace(exporters=False).take(x):
                action = f"convert a batch with {type_of(x)} at {batch.path(i)}"
                reason = "it exports its memory, and the call does not say whether to convert it"
                raise UnsupportedArrayError.build(action, reason, "exporters=True, or exporters=False")
    return batch


def _open(  # noqa: C901, PLR0912 -- a call for each leaf would take as long as its conversion
    x: Any, container: Container, parent: Any, place: Any, kinds: Kinds, walk: _Walk
) -> None:
    """Put a copy of a container into its place, with converted leaves and copies of the containers in it."""
    leaves, done, places, opened, seen, others = walk
    known, before = kinds.known, len(places)
    cls = type(x)
    children: Any
    if cls is dict or cls is list:
        form = children = x.copy()  # another thread may change the tree meanwhile
    elif cls is tuple:
        form, children = x, [*x]
    else:
        with _chain_class_errors("flatten", cls):
            children, form = container.flatten(x)
            children = [*children]
    for at, child in children.items() if cls is dict else enumerate(children):
        cls = type(child)
        kind = known.get(cls) or kinds.find(child, others)
        if kind is unchanged:
            continue
        if isinstance(kind, Container):
            _open(child, kind, children, at, kinds, walk)
            continue
        key = id(child)
        if key in seen and cls not in NUMBERS:
            i = seen[key]
            if i < len(done):
                children[at] = done[i]
                continue
        else:
            seen[key] = i = len(leaves)
            leaves.append(child)
            if i < _FEW and i == len(done):
                y = kind(child)
                if y is not None:
                    done.append(y)
                    children[at] = y
                    continue
                known.pop(cls, None)  # for the next call, a plan may cache a better converter
        places.append((children, at, i))
    if len(places) > before:
        opened.append((parent, place, container, x, form, children))
    else:
        parent[place] = _build(container, form, children)


def _build(container: Container, form: Any, children: Any) -> Any:
    """Return a container with new children, which are a copy already if it is a dict or a list."""
    if form is children:
        return children
    if container.cls is tuple:
        return tuple(children)
    with _chain_class_errors("build", container.cls):
        return container.unflatten(form, children)


def _label(container: Container, x: Any, form: Any, children: Any, at: Any) -> str:
    """Return how Python gets a child of a container, or the index of the child if the class does not say."""
    with suppress(XBridgeError), _chain_class_errors("name the parts of", container.cls):
        if container.cls in PLAIN:
            return f"[{at!r}]"
        paths = container.paths(x, form)
        if len(paths) == len(children):
            return str(paths[at])
    return f"[<flat index {shown(at)}>]"


def _chain_class_errors(verb: str, cls: type) -> Chained:
    """Turn exceptions of a container class into an `UnsupportedArrayError`."""

    def failed(error: Exception) -> XBridgeError:
        if isinstance(error, RecursionError):
            return _endless_error()
        action = f"{verb} {with_article(cls.__name__)}"
        return UnsupportedArrayError.build(action, f"its class failed with {error!r}")

    return Chained(failed)


def _endless_error() -> OptionError:
    reason = "it contains itself, or is nested too deep for Python's stack"
    return OptionError.build("walk this tree", reason)


def tree_converter(target: Backend, options: CallOptions, leaves: Leaves) -> Callable[[Tree], Tree]:
    """Return the function that converts trees with these options, which it checks."""
    convert = leaf_converter(target, options, leaves)
    kinds = Kinds(leaves, converter_finder(target, options, leaves))

    def convert_tree(tree: Tree) -> Tree:
        root, found, done, places, opened = _walk(tree, kinds)
        if places:
            return TreeArrays(root, found, done, places, opened).map(convert)
        if root[0] is tree:
            refuse_leaf(tree, scalars=leaves.scalars, target=target)
        return root[0]

    return convert_tree


def refuse_leaf(tree: Tree, *, scalars: bool | str, target: Backend | None = None) -> None:
    """Raise an error if a tree is neither a container nor an array, nor a number with `scalars`.

    None is an empty tree, as in JAX and optree.
    """
    if tree is None or find_container(tree) or are_arrays(type(tree)):
        return  # also an array of a library that the call leaves alone
    if scalars and type(tree) in NUMBERS:
        return
    if isinstance(tree, PLAIN_TYPES):
        hint = "[x], or xbridge.asarray(x)"
    elif is_exporter(tree):
        hint = "exporters=True, or xbridge.to_backend(x, backend)"
    else:
        hint = hint_for_object(tree)
    reason = "it is neither a container nor an array"
    error = UnsupportedArrayError.build(f"walk {type_of(tree)} as a tree", reason, hint)
    raise aim(error, target) if target else error
