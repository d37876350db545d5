"""The arrays of a tree: find them, convert them all in one call, and build the tree of the results."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from xbridge._core.literals import NUMBERS
from xbridge._host.advice import hint_for_object
from xbridge._host.importers import is_exporter
from xbridge._registry.registry import are_arrays, backend_for
from xbridge.errors import Chained, UnsupportedArrayError, XBridgeError, type_of
from xbridge.tree.flatten import TreeSpec
from xbridge.tree.leaf import ARRAYS, PLAIN_TYPES, is_movable, is_text

if TYPE_CHECKING:
    from xbridge._core.protocol import Array, ArrayFn
    from xbridge.tree.flatten import Leaf, LeafFn, Tree
    from xbridge.tree.leaf import Leaves


class TreeArrays:
    """A tree, and the arrays in it.

    Parameters
    ----------
    tree : tree
        Any container, or a leaf.
    alone : bool
        Treat a tree that is a single leaf as an array, unless it is text or a number. Errors then name no
        path.
    chosen : Leaves
        The leaves that are treated as arrays.
    """

    def __init__(self, tree: Tree, chosen: Leaves = ARRAYS, *, alone: bool = False) -> None:
        self._spec = TreeSpec(tree)
        kinds = self._spec.kinds
        self.alone: bool = alone and self._spec.is_leaf and type(tree) not in PLAIN_TYPES
        """True if the tree is a leaf that is treated as an array."""
        self.kinds: set[type] = (
            kinds if self.alone and chosen.only is None else set(filter(chosen.take, kinds))
        )
        """The types of leaves that are converted."""
        others = {kind for kind in kinds.difference(self.kinds, PLAIN_TYPES) if backend_for(kind) is None}
        examples = {type(x): x for x in self._spec.leaves if type(x) in others} if others else {}
        for kind, x in examples.items():
            if chosen.movables and is_movable(x):
                self.kinds.add(kind)
            elif chosen.exporters is not False and is_exporter(x):
                if chosen.exporters is None:
                    self._refuse_exporter(x)
                self.kinds.add(kind)

    def refuse_leaf(self, *, scalars: bool | str = False) -> None:
        """Raise an error if the tree is neither a container nor an array, nor a number with `scalars`.

        None is an empty tree, as in JAX and optree.
        """
        if not self._spec.is_leaf or self.kinds:
            return
        (x,) = self._spec.leaves
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

    def _refuse_exporter(self, x: Leaf) -> None:
        action = f"convert a batch with {type_of(x)} at {self._spec.name_of(x)}"
        reason = "it exports its memory, and the call does not say whether to convert it"
        raise UnsupportedArrayError.build(action, reason, "exporters=True, or exporters=False")

    @property
    def leaves(self) -> list[Leaf]:
        """The leaves that are converted, in order: arrays, also of text."""
        return [x for x in self._spec.leaves if type(x) in self.kinds]

    @property
    def arrays(self) -> list[Array]:
        """The arrays that hold numbers, in order, each once."""
        return [x for x in {id(x): x for x in self.leaves}.values() if not is_text(x)]

    def map(self, convert: ArrayFn) -> Tree:
        """Return a tree of the same form with converted leaves.

        `convert` is called once, with each array once. An error names the path to the leaf at which it was
        raised.
        """
        leaves, kinds = self._spec.leaves, self.kinds
        chosen = leaves if kinds == self._spec.kinds else self.leaves
        made = _convert_distinct(partial(self._convert_named, convert), chosen) if chosen else []
        if chosen is not leaves:
            rest = iter(made)
            made = [next(rest) if type(x) in kinds else x for x in leaves]
        return self._spec.unflatten(made)

    def each(self, fn: LeafFn, xs: list[Leaf]) -> list[Any]:
        """Call a function with each leaf. An error names the path to the leaf at which it was raised."""
        done: list[Any] = []

        def note(error: Exception) -> Exception:
            error.add_note(f"at {self._spec.name_of(xs[len(done)])}")
            return error

        try:
            with Chained(note):
                for x in xs:
                    done.append(fn(x))  # noqa: PERF401 -- an error is about the next one
        except XBridgeError as error:
            raise error.at(self._spec.name_of(xs[len(done)])) from error
        return done

    def _convert_named(self, convert: ArrayFn, xs: list[Leaf]) -> list[Any]:
        try:
            return convert(xs)
        except XBridgeError as error:
            if self.alone or error.index is None:
                raise
            raise error.at(self._spec.name_of(xs[error.index])) from error


def _convert_distinct(fn: ArrayFn, xs: list[Leaf]) -> list[Any]:
    """Call `fn` with each distinct object once, and return its results in the order of `xs`."""
    if len(set(map(id, xs))) == len(xs):
        return fn(xs)
    keys = [-i if type(x) in NUMBERS else id(x) for i, x in enumerate(xs, 1)]  # numbers are values
    distinct = dict(zip(keys, xs, strict=True))
    done = dict(zip(distinct, fn(list(distinct.values())), strict=True))
    return [done[key] for key in keys]
