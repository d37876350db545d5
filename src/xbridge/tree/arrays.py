"""The arrays of a tree: flatten it, convert them all in one call, and put the results in their places.

A tree is copied while it is walked. An array is converted at once if a cached call knows how, or entered with
its place: a list or a dict of the copy, and an index or a key. The results are put there later, and then the
containers that are neither lists nor dicts are built, the inner ones first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from xbridge._core.literals import NUMBERS
from xbridge._core.tracing import none_in_traces
from xbridge._host.advice import aim, hint_for_object
from xbridge._host.importers import is_exporter
from xbridge._registry.call_cache import cache_version, cached, decline, store, unchanged
from xbridge._registry.registry import are_arrays, backend_for, by_type, get
from xbridge.errors import (
    Chained,
    OptionError,
    UnsupportedArrayError,
    XBridgeError,
    type_of,
    with_article,
)
from xbridge.tree.containers import PLAIN, Container, find_container
from xbridge.tree.leaf import ARRAYS, PLAIN_TYPES, converter_finder, is_movable, is_text, leaf_converter

if TYPE_CHECKING:
    from types import ModuleType

    from xbridge._core.protocol import Array, ArrayFn, Backend
    from xbridge._engine.repeat import Convert
    from xbridge._plan.options import CallOptions
    from xbridge.tree.leaf import Leaves


LeafFn: TypeAlias = Callable[[Any], Any]

Leaf: TypeAlias = Any
"""An object that is not flattened."""

Tree: TypeAlias = Any
"""Nested containers with leaves; or a leaf."""

Kind: TypeAlias = "Container | Convert"
"""What objects of a type are in a tree: containers, or leaves that a function converts. It is `unchanged` for
leaves that stay as they are. If it returns None, the leaf is converted together with others."""

_Place: TypeAlias = "tuple[Any, Any, Leaf]"
"""Where a leaf is that is still to be converted: the list or dict of the copy that holds it, its index or key
there; and the leaf."""

_Opened: TypeAlias = "tuple[Any, Any, Container, Any, Any, Any]"
"""A container with such leaves: the list or dict of the copy that holds it, its index or key there, its
class, the object, its form, and a list of its children or a copy of the dict that it is."""

_Walk: TypeAlias = "tuple[list[_Place], list[_Opened], dict[int, tuple[Leaf, Any]], dict[type, Kind]]"
"""What is known of one tree: the leaves that are still to be converted, the containers of these, the inner
ones first, the leaves that were converted by their identity, and types that may be other in another tree."""

_FEW = 16
"""The most children of a small container. In a larger one, it is faster to convert all leaves together."""


class Kinds:
    """What objects of each type are in all trees of a call. Types are entered when they are met.

    `converter_of` finds the function that converts leaves of a type at once. In small containers they are,
    until one has to be converted together with others.
    """

    def __init__(self, chosen: Leaves, converter_of: Callable[[type], Convert] = lambda _: decline) -> None:
        self.known: dict[type, Kind] = {**PLAIN}
        self._chosen, self._converter_of = chosen, converter_of

    def find(self, x: Any, others: dict[type, Kind]) -> Kind:
        """Look up what an object of a new type is. Enter it, in `others` if other trees may differ."""
        cls, chosen = type(x), self._chosen
        if cls in others:
            return others[cls]
        is_constant = cls in PLAIN_TYPES or cls in by_type
        kind: Kind | None = find_container(x)
        if kind is None:
            is_array = chosen.take(cls)
            if not (is_array or is_constant or backend_for(cls)):
                is_array = (chosen.movables and is_movable(x)) or (
                    chosen.exporters is not False and is_exporter(x)
                )
            kind = self._converter_of(cls) if is_array else unchanged
        (self.known if is_constant else others)[cls] = kind
        return kind

    def refresh(self, cls: type) -> None:
        """Look up again how leaves of a type are converted: a plan may have cached a better function."""
        if cls in self.known:
            self.known[cls] = self._converter_of(cls)


def _walk(tree: Tree, kinds: Kinds) -> tuple[list[Tree], list[_Place], list[_Opened]]:
    """Copy a tree, and convert leaves where that is done at once.

    Return a list of the copy, the leaves that are still to be converted, and the containers of these.
    """
    root: list[Tree] = [tree]
    places: list[_Place] = []
    opened: list[_Opened] = []
    others: dict[type, Kind] = {}
    kind = kinds.known.get(type(tree)) or kinds.find(tree, others)
    if isinstance(kind, Container):
        try:
            _open(tree, kind, root, 0, kinds, (places, opened, {}, others))
        except RecursionError:
            raise _endless_error() from None
    elif kind is not unchanged:
        root[0] = kind(tree)
        if root[0] is None:
            places.append((root, 0, tree))
    return root, places, opened


def _open(  # noqa: C901 -- a call for each leaf would take as long as its conversion
    x: Any,
    container: Container,
    parent: Any,
    at: Any,
    kinds: Kinds,
    walk: _Walk,
    at_once: bool = True,  # noqa: FBT001, FBT002 -- by position, because a keyword takes longer
) -> None:
    """Put a copy of a container into its place, with converted leaves and copies of the containers in it."""
    places, opened, done, others = walk
    known, before = kinds.known, len(places)
    cls = type(x)
    children: Any
    if cls is dict or cls is list:
        form = children = x.copy()  # another thread may change the tree meanwhile
    elif cls is tuple:
        form, children = x, [*x]
    else:
        children, form = _flatten(container, x)
    if at_once and len(children) > _FEW:
        at_once = False
    for i, child in children.items() if cls is dict else enumerate(children):
        cls = type(child)
        kind = known[cls] if cls in known else kinds.find(child, others)
        if kind is unchanged:
            continue
        if isinstance(kind, Container):
            _open(child, kind, children, i, kinds, walk, at_once)
            continue
        name = id(child)
        if name in done and cls not in NUMBERS:
            children[i] = done[name][1]
            continue
        if at_once and not places:
            y = kind(child)
            if y is not None:
                done[name] = child, y  # nothing else gets this identity while the leaf is kept
                children[i] = y
                continue
            kinds.refresh(cls)
        places.append((children, i, child))
    if len(places) > before:
        opened.append((parent, at, container, x, form, children))
    else:
        parent[at] = children if form is children else _build(container, form, children)


def _build(container: Container, form: Any, children: Any) -> Any:
    """Return a container with new children, which are a copy already if it is a dict or a list."""
    if container.cls is tuple:
        return tuple(children)
    if form is children:
        return children
    with _chain_class_errors("build", container.cls):
        return container.unflatten(form, children)


class TreeArrays(NamedTuple):
    """A tree as it was when it was flattened, and the arrays in it, which can be converted once."""

    root: list[Tree]
    """A list of the copy of the tree."""
    places: list[_Place]
    opened: list[_Opened]
    alone: bool = False
    """True if the tree is a leaf that is treated as an array. Errors then name no path."""

    @property
    def leaves(self) -> list[Leaf]:
        """The leaves that are still to be converted, in order: arrays, also of text."""
        return [x for _, _, x in self.places]

    @property
    def arrays(self) -> list[Array]:
        """The arrays that hold numbers, in order, each once."""
        return [x for x in {id(x): x for x in self.leaves}.values() if not is_text(x)]

    def map(self, convert: ArrayFn) -> Tree:
        """Return a tree of the same form with converted leaves.

        `convert` is called once, with each array once. An error names the path to the leaf at which it was
        raised.
        """
        ys = self._convert(convert) if self.places else []
        for (children, at, _), y in zip(self.places, ys, strict=True):
            children[at] = y
        for parent, at, container, _, form, children in self.opened:
            parent[at] = _build(container, form, children)
        return self.root[0]

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

    def _convert(self, convert: ArrayFn) -> list[Any]:
        """Convert each distinct leaf once; return the results of all."""
        xs, keys = self.leaves, []
        if len(set(map(id, xs))) < len(xs):
            keys = [-i if type(x) in NUMBERS else id(x) for i, x in enumerate(xs, 1)]  # numbers are values
            xs = [*dict(zip(keys, xs, strict=True)).values()]
        try:
            ys = convert(xs)
        except XBridgeError as error:
            if self.alone or error.index is None:
                raise
            raise error.at(self._name_of(xs[error.index])) from error
        done = dict(zip(dict.fromkeys(keys), ys, strict=True)) if keys else {}
        return [done[key] for key in keys] if keys else ys

    def _name_of(self, leaf: Any) -> str:
        """Return the path to the first occurrence of a leaf, as Python writes it."""
        return next(self.path(children, at) for children, at, x in self.places if x is leaf)

    def path(self, children: Any, at: Any) -> str:
        """Return the path to a place."""
        if children is self.root:
            return "tree"
        parent, place, container, x, form, _ = next(one for one in self.opened if one[-1] is children)
        index: int = at
        if type(children) is dict:  # whose keys may compare to arrays
            index = next(i for i, key in enumerate(children) if key is at)
        return self.path(parent, place) + _paths(container, x, form, len(children))[index]


def flatten(tree: Tree, chosen: Leaves = ARRAYS, *, alone: bool = False) -> TreeArrays:
    """Flatten any container, or a leaf.

    With `alone`, a tree that is a single leaf is treated as an array, unless it is text or a number.
    """
    kinds = Kinds(chosen)
    alone = alone and type(tree) not in PLAIN_TYPES and find_container(tree) is None
    if alone and chosen.only is None:
        kinds.known[type(tree)] = decline
    batch = TreeArrays(*_walk(tree, kinds), alone)
    if chosen.exporters is None and not alone:
        first = {type(x): (children, at, x) for children, at, x in reversed(batch.places)}
        for children, at, x in first.values():
            if not (chosen.take(type(x)) or (chosen.movables and is_movable(x))):
                action = f"convert a batch with {type_of(x)} at {batch.path(children, at)}"
                reason = "it exports its memory, and the call does not say whether to convert it"
                raise UnsupportedArrayError.build(action, reason, "exporters=True, or exporters=False")
    return batch


def refuse_leaf(
    tree: Tree, batch: TreeArrays, *, scalars: bool | str = False, target: Backend | None = None
) -> None:
    """Raise an error if a tree is neither a container nor an array, nor a number with `scalars`.

    None is an empty tree, as in JAX and optree.
    """
    if batch.places or find_container(tree) or tree is None or are_arrays(type(tree)):
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


@none_in_traces
def cache_tree(target: str | ModuleType, options: CallOptions, leaves: Leaves) -> None:
    """Cache a call that succeeded for one tree, for all trees."""
    version, key = cache_version(), options.key("tree", target, leaves.scalars, leaves.exporters)
    if not options.are_constant(target) or key in cached:
        return
    backend = get(target)
    convert = leaf_converter(backend, options, leaves)
    kinds = Kinds(leaves, converter_finder(backend, options))

    def convert_tree(tree: Tree) -> Tree | None:
        root, places, opened = _walk(tree, kinds)
        if places:
            return TreeArrays(root, places, opened).map(convert)
        return None if root[0] is tree and not are_arrays(type(tree)) else root[0]

    store(key, version, convert_tree)


def _chain_class_errors(verb: str, cls: type) -> Chained:
    """Turn exceptions of a container class into an `UnsupportedArrayError`."""

    def failed(error: Exception) -> XBridgeError:
        if isinstance(error, RecursionError):
            return _endless_error()
        action = f"{verb} {with_article(cls.__name__)}"
        return UnsupportedArrayError.build(action, f"its class failed with {error!r}")

    return Chained(failed)


def _paths(container: Container, x: Any, form: Any, count: int) -> list[str]:
    """Return the paths to the children of a container, or their indices if the class gives no paths."""
    paths: list[str] = []
    with suppress(XBridgeError), _chain_class_errors("name the parts of", container.cls):
        paths = container.paths(x, form)
    return paths if len(paths) == count else [f"[<flat index {i}>]" for i in range(count)]


def _endless_error() -> OptionError:
    reason = "it contains itself, or is nested too deep for Python's stack"
    return OptionError.build("walk this tree", reason)


def _flatten(container: Container, x: Any) -> tuple[list[Any], Any]:
    with _chain_class_errors("flatten", container.cls):
        children, form = container.flatten(x)
        return list(children), form
