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
from xbridge.tree.leaf import ARRAYS, PLAIN_TYPES, is_plain, is_text

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
        self.alone: bool = alone and self._spec.is_leaf and type(tree) not in PLAIN_TYPES
        """True if the tree is a leaf that is treated as an array."""
        kinds = self._spec.kinds
        self.kinds: set[type] = (
            kinds if self.alone else set(filter(are_arrays, kinds.difference(PLAIN_TYPES)))
        )
        """The types of leaves that are converted."""
        only, exporters = chosen.libraries(), chosen.exporters
        if only is not None:
            self.kinds = {kind for kind in self.kinds if (owner := backend_for(kind)) and owner.name in only}
            exporters = exporters or False
        if exporters or (exporters is None and not kinds <= self.kinds.union(PLAIN_TYPES)):
            examples = {type(x): x for x in self._spec.leaves if not are_arrays(type(x))}
            found = {kind: x for kind, x in examples.items() if not is_plain(kind) and is_exporter(x)}
            if found and exporters is None:
                self._refuse_exporter(*found.values())
            self.kinds |= found.keys()

    def refuse_leaf(self, *, scalars: bool | str = False) -> None:
        """Raise an error if the tree is neither a container nor an array, nor a number with `scalars`.

        None is an empty tree, as in JAX and optree.
        """
        kinds = self.kinds | {type(None)} | (set(NUMBERS) if scalars else set())
        if not self._spec.is_leaf or not self._spec.kinds.isdisjoint(kinds):
            return
        (x,) = self._spec.leaves
        if are_arrays(type(x)):  # of a library that the call leaves alone
            return
        if is_plain(type(x)):
            hint = "[x], or xbridge.asarray(x)"
        elif is_exporter(x):
            hint = "exporters=True, or xbridge.to_backend(x, backend)"
        else:
            hint = hint_for_object(x)
        raise UnsupportedArrayError.build(
            f"walk {type_of(x)} as a tree", "it is neither a container nor an array", hint
        )

    def _refuse_exporter(self, x: Leaf, *_: Leaf) -> None:
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

    def map(self, convert: ArrayFn, number: LeafFn | None = None) -> Tree:
        """Return a tree of the same form with converted arrays and numbers.

        `convert` is called once, with each array once. `number` is called with each Python number. An error
        names the path to the leaf at which it was raised.
        """
        fn = partial(_convert_distinct, partial(self._convert_arrays, convert))
        done = self._replace_leaves(self._spec.leaves, self.kinds, fn)
        if number is not None:
            kinds = self._spec.kinds.intersection(NUMBERS)
            done = self._replace_leaves(done, kinds, partial(self.each, number))
        return self._spec.unflatten(done)

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

    def _convert_arrays(self, convert: ArrayFn, xs: list[Array]) -> list[Array]:
        try:
            return convert(xs)
        except XBridgeError as error:
            if self.alone or error.index is None:
                raise
            raise error.at(self._spec.name_of(xs[error.index])) from error

    def _replace_leaves(self, done: list[Any], kinds: set[type], fn: ArrayFn) -> list[Any]:
        """Return `done`, with the results of `fn` for the leaves of these types."""
        leaves = self._spec.leaves
        if kinds == self._spec.kinds:
            return fn(leaves)
        chosen = [x for x in leaves if type(x) in kinds]
        if not chosen:
            return done
        made = iter(fn(chosen))
        return [next(made) if type(x) in kinds else y for x, y in zip(leaves, done, strict=True)]


def _convert_distinct(fn: ArrayFn, xs: list[Array]) -> list[Array]:
    """Call `fn` with each distinct array once, and return its results in the order of `xs`."""
    if len(set(map(id, xs))) == len(xs):
        return fn(xs)
    distinct = dict(zip(map(id, xs), xs, strict=True))
    done = dict(zip(distinct, fn(list(distinct.values())), strict=True))
    return [done[id(x)] for x in xs]
