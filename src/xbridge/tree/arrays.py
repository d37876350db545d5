"""The arrays of a tree: flatten it, convert them all in one call, and put the results in their places.

A tree is copied while it is flattened, and each array is found with its place: a list or a dict of the copy,
and an index or a key. The results are put there. Then all containers but lists and dicts are built, the
inner ones first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from xbridge._core.literals import NUMBERS
from xbridge._core.tracing import none_in_traces
from xbridge._host.advice import hint_for_object
from xbridge._host.importers import is_exporter
from xbridge._registry.call_cache import cache_version, cached, store
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
from xbridge.tree.leaf import ARRAYS, PLAIN_TYPES, is_movable, is_text, known_converters, leaf_converter

if TYPE_CHECKING:
    from types import ModuleType

    from xbridge._core.protocol import Array, ArrayFn
    from xbridge._engine.repeat import Converters
    from xbridge._plan.options import CallOptions
    from xbridge.tree.leaf import Leaves


LeafFn: TypeAlias = Callable[[Any], Any]

Leaf: TypeAlias = Any
"""An object that is not flattened."""

Tree: TypeAlias = Any
"""Nested containers with leaves; or a leaf."""

Kind: TypeAlias = "Container | bool"
"""What objects of a type are in a tree: containers, or leaves that are converted, or not."""


_Opened: TypeAlias = "tuple[Any, Any, Container, Any, Any, Any]"
"""A container that was flattened: the list or dict of the copy that holds it, its index or key there, its
class, the object, its form, and a list of its children or a copy of the dict that it is."""


_FEW = 16
"""The most children of a small container."""


class TreeArrays:
    """A tree as it was when it was flattened, and the arrays in it, which can be converted once.

    Parameters
    ----------
    tree : tree
        Any container, or a leaf.
    chosen : Leaves
        The leaves that are treated as arrays.
    alone : bool
        Treat a tree that is a single leaf as an array, unless it is text or a number. Errors then name no
        path.
    known : dict, optional
        What is known of types that mean the same in each tree. More of them are entered.
    converters : Converters, optional
        Functions that convert leaves of a type at once, or return None. They are used in small containers. In
        large ones, it is faster to convert all leaves together.
    """

    def __init__(
        self,
        tree: Tree,
        chosen: Leaves = ARRAYS,
        *,
        alone: bool = False,
        known: dict[type, Kind] | None = None,
        converters: Converters | None = None,
    ) -> None:
        self.leaves: list[Leaf] = []
        """The leaves that are still to be converted, in order: arrays, also of text."""
        self._chosen = chosen
        self._known: dict[type, Kind] = {**PLAIN} if known is None else known
        self._kinds = self._known.copy()
        self._places: list[tuple[Any, Any]] = []
        self._opened: list[_Opened] = []
        self._done: dict[int, tuple[Leaf, Any]] = {}
        self._root = [tree]
        self.alone: bool = alone and type(tree) not in PLAIN_TYPES and find_container(tree) is None
        """True if the tree is a leaf that is treated as an array."""
        if self.alone and chosen.only is None:
            self._kinds[type(tree)] = True
        try:
            self._open(self._root, enumerate(self._root), converters)
        except RecursionError:
            raise _endless_error() from None
        self.is_leaf = self._kinds[type(tree)] is False
        """True if the tree is a leaf that is not converted."""

    def _open(self, children: Any, items: Iterable[tuple[Any, Any]], converters: Converters | None) -> None:
        """Find the arrays among the children of a container, and open the containers among them."""
        kinds, done = self._kinds, self._done
        for at, x in items:
            cls = type(x)
            kind = kinds[cls] if cls in kinds else self._find_kind(x, children, at)
            if kind is True:
                if converters is not None:
                    key = id(x)  # which nothing else gets while the leaf is kept
                    y = done[key][1] if key in done and cls not in NUMBERS else converters[cls](x)
                    if y is not None:
                        done[key] = x, y
                        children[at] = y
                        continue
                    converters.pop(cls, None)  # the plan that follows may cache a better one
                self.leaves.append(x)
                self._places.append((children, at))
            elif kind is not False:
                inner: Any
                if cls is dict or cls is list:
                    form = inner = children[at] = x.copy()  # another thread may change the tree meanwhile
                elif cls is tuple:
                    form = inner = [*x]
                else:
                    inner, form = _flatten(kind, x)
                self._opened.append((children, at, kind, x, form, inner))
                entries = inner.items() if cls is dict else enumerate(inner)
                self._open(inner, entries, converters if len(inner) <= _FEW else None)

    def _find_kind(self, x: Any, children: Any, at: Any) -> Kind:
        """Look up what the objects of a new type are; enter it."""
        cls, chosen, kind = type(x), self._chosen, find_container(x)
        found: Kind = chosen.take(cls) if kind is None else kind
        if found is False and cls not in PLAIN_TYPES and backend_for(cls) is None:
            if chosen.movables and is_movable(x):
                found = True
            elif chosen.exporters is not False and is_exporter(x):
                if chosen.exporters is None:
                    action = f"convert a batch with {type_of(x)} at {self._path(children, at)}"
                    reason = "it exports its memory, and the call does not say whether to convert it"
                    hint = "exporters=True, or exporters=False"
                    raise UnsupportedArrayError.build(action, reason, hint)
                found = True
        elif cls in PLAIN_TYPES or cls in by_type:
            self._known[cls] = found
        self._kinds[cls] = found
        return found

    def refuse_leaf(self, *, scalars: bool | str = False) -> None:
        """Raise an error if the tree is neither a container nor an array, nor a number with `scalars`.

        None is an empty tree, as in JAX and optree.
        """
        (x,) = self._root
        if not self.is_leaf or x is None or are_arrays(type(x)) or (scalars and type(x) in NUMBERS):
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
    def arrays(self) -> list[Array]:
        """The arrays that hold numbers, in order, each once."""
        return [x for x in {id(x): x for x in self.leaves}.values() if not is_text(x)]

    def map(self, convert: ArrayFn) -> Tree:
        """Return a tree of the same form with converted leaves.

        `convert` is called once, with each array once. An error names the path to the leaf at which it was
        raised.
        """
        if self.leaves:
            for (children, at), y in zip(self._places, self._convert(convert), strict=True):
                children[at] = y
        for parent, at, container, _, form, children in reversed(self._opened):
            if container.cls is tuple:
                parent[at] = tuple(children)
            elif parent[at] is not children:
                with _chain_class_errors("build", container.cls):
                    parent[at] = container.unflatten(form, children)
        return self._root[0]

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
        at = next(i for i, x in enumerate(self.leaves) if x is leaf)
        return self._path(*self._places[at])

    def _path(self, children: Any, at: Any) -> str:
        """Return the path to a place."""
        if children is self._root:
            return "tree"
        parent, place, container, x, form, _ = next(one for one in self._opened if one[-1] is children)
        index = [*children].index(at) if type(children) is dict else at
        return self._path(parent, place) + _paths(container, x, form, len(children))[index]


@none_in_traces
def cache_tree(target: str | ModuleType, options: CallOptions, leaves: Leaves) -> None:
    """Cache a call that succeeded for one tree, for all trees."""
    version, key = cache_version(), options.key("tree", target, (leaves.scalars, leaves.exporters))
    if not options.are_constant(target) or key in cached:
        return
    backend = get(target)
    known: dict[type, Kind] = {**PLAIN}
    convert, converters = leaf_converter(backend, options, leaves), known_converters(backend, options)

    def convert_tree(tree: Tree) -> Tree | None:
        batch = TreeArrays(tree, leaves, known=known, converters=converters)
        return None if batch.is_leaf else batch.map(convert)

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
    """Return the error for a tree that is too deep for Python's stack."""
    reason = "it contains itself, or is nested too deep for Python's stack"
    return OptionError.build("walk this tree", reason)


def _flatten(container: Container, x: Any) -> tuple[list[Any], Any]:
    """Flatten a container of any class: return its children and its form."""
    with _chain_class_errors("flatten", container.cls):
        children, form = container.flatten(x)
        return list(children), form
