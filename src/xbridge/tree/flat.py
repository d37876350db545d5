"""Convert a plain container of a few ordinary arrays, such as a batch of two, without a walk.

The walk of `flatten` finds out what a tree consists of. For a few arrays, that takes longer than their
conversion. Here the types of the items are looked up in the tables of the fast path. In any doubt, the tree
is flattened and its arrays are planned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xbridge.backends._registry import fast_converters, learned

if TYPE_CHECKING:
    from xbridge._engine.learned import Given
    from xbridge.tree.flatten import Tree

FEW = 16
"""The most items. More of them are converted together, which takes less time for each."""


def convert_flat(tree: Tree, name: object, given: Given) -> Tree | None:
    """Return a dict, list or tuple of other arrays; None for a tree of any other kind, and in doubt."""
    cls, copy = type(tree), given[2]
    if cls not in (dict, list, tuple) or not 0 < len(tree) <= FEW:
        return None
    if copy is not None and copy is not True and copy is not False:  # 1 is equal to True
        return None
    xs = [*(tree.values() if cls is dict else tree)]
    if len(set(map(id, xs))) < len(xs):  # an array that occurs several times is converted once
        return None
    kinds = set(map(type, xs))
    try:
        if all(option is None for option in given):
            table = fast_converters[name]  # type: ignore[index] # another object is not in it
            fns = {kind: table[kind] for kind in kinds}
        else:
            fns = {kind: learned[name, kind, *given] for kind in kinds}
    except (KeyError, TypeError):  # not learned, or an option without a hash
        return None
    made = []
    for x in xs:
        y = fns[type(x)](x)
        if y is None:
            return None
        made.append(y)
    return dict(zip(tree, made, strict=True)) if cls is dict else cls(made)
