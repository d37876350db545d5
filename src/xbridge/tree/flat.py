"""Convert a small tree of plain containers, such as a batch of two arrays, without a walk.

The walk of `flatten` finds out what a tree consists of. For a few arrays, that takes longer than their
conversion. Here each type of a leaf has a function: numbers, text and None stay, and an array is converted as
others of its kind were. In doubt, the tree is flattened and its arrays are planned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xbridge._core.devices import CPU
from xbridge._core.dynamo import no_result, traced_as
from xbridge._core.literals import NUMBERS
from xbridge._engine.learned import PLAIN, are_constant, converter, itself
from xbridge._registry.registry import (
    backend_for,
    calls,
    fast_converters,
    generation,
    get,
    is_flag,
    never,
    store_call,
)
from xbridge.backends import HOST
from xbridge.errors import FOREIGN_ERRORS
from xbridge.tree.leaf import PLAIN_TYPES, is_converted

if TYPE_CHECKING:
    from types import ModuleType

    from xbridge._engine.learned import Convert, Given
    from xbridge.tree.flatten import Tree

FEW = 16
"""The most leaves and containers. More arrays are converted together, which takes less time for each."""

_CONTAINERS = (dict, list, tuple)
_NO_ARRAYS = frozenset((*_CONTAINERS, *PLAIN_TYPES))


@traced_as(no_result)
def repeat_tree(tree: Tree, name: object, given: Given, *, scalars: bool) -> Tree | None:
    """Return a small tree of other arrays, as learned from a call; None if it has to be flattened."""
    if not is_flag(given[2]):
        return None
    try:
        return calls.get(("tree", name, scalars, *given), never)(tree)
    except FOREIGN_ERRORS:  # an option without a hash
        return None


@traced_as(no_result)
def learn_tree(name: str | ModuleType, given: Given, *, scalars: bool) -> None:
    """Store what a call with these options does, which succeeded for one tree."""
    begun = generation()
    if are_constant((name, *given)) and type(scalars) is bool:
        call = ("tree", name, scalars, *given)
        if call not in calls:
            store_call(calls, call, _converter(get(name).name, given, scalars=scalars), begun)


def _converter(name: str, given: Given, *, scalars: bool) -> Convert:
    """Return the function that converts small trees of arrays that are alike, or returns None."""
    fns: dict[type, Convert | None] = dict.fromkeys(_CONTAINERS)

    def convert(tree: Tree) -> Tree | None:
        seen: list[Any] = []
        made = inside(tree, seen) if type(tree) in _CONTAINERS else None
        if made is not None and len(set(map(id, seen))) < len(seen):
            arrays = [id(x) for x in seen if type(x) not in _NO_ARRAYS]
            if len(set(arrays)) < len(arrays):  # an array that occurs several times is converted once
                return None
        return made

    def inside(tree: Tree, seen: list[Any]) -> Tree | None:
        cls = type(tree)
        form = tree if cls is tuple else tree.copy()  # another thread may change it
        xs = form.values() if cls is dict else form
        seen += xs
        if len(seen) > FEW:
            return None
        made = []
        for x in xs:
            kind = type(x)
            fn = fns.get(kind, never)
            if fn is never:
                fn = _leaf_converter(name, kind, given, scalars=scalars)
                if fn is never:
                    return None
                fns[kind] = fn
            y = fn(x) if fn else inside(x, seen)
            if y is None and x is not None:
                if fn:
                    fns.pop(kind, None)  # more may have been learned until it is asked again
                return None
            made.append(y)
        if cls is dict:
            return dict(zip(form, made, strict=True))
        return tuple(made) if cls is tuple else made

    return convert


def _leaf_converter(name: str, kind: type, given: Given, *, scalars: bool) -> Convert:
    """Return the function that converts the leaves of a type, or returns None."""
    if kind in NUMBERS and scalars:
        number = calls.get(("asarray", name, type(None), *given[:4], None, kind), never)
        return lambda x: number(x, None)
    if kind in PLAIN_TYPES:
        return itself
    if not is_converted(kind) or str(given[0]).partition(":")[0] not in ("None", CPU):
        return never  # arrays that go to a device are moved together
    source = backend_for(kind)
    if name == HOST and given == PLAIN and source and source.fetch_many:
        return fast_converters[name].get(kind, never)  # and so are those that come from there
    return converter(name, kind, given)
