"""Convert a plain container of a few ordinary arrays, such as a batch of two, without a walk.

The walk of `flatten` finds out what a tree consists of. For a few arrays, that takes longer than their
conversion. Here the types of the items are looked up in the tables of the fast path. In any doubt, the tree
is flattened and its arrays are planned.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from xbridge._core.dynamo import no_result, traced_as
from xbridge._core.literals import NUMBERS
from xbridge.backends._registry import fast_converters, is_flag, learned, repeat_asarray
from xbridge.errors import FOREIGN_ERRORS

if TYPE_CHECKING:
    from xbridge._engine.learned import Given
    from xbridge.tree.flatten import Tree

FEW = 16
"""The most items. More of them are converted together, which takes less time for each."""


@traced_as(no_result)
def convert_flat(tree: Tree, name: object, given: Given, *, scalars: bool) -> Tree | None:
    """Return a dict, list or tuple of other arrays; None for a tree of any other kind, and in doubt.

    With `scalars`, Python numbers are converted by what was learned of `asarray`.
    """
    cls = type(tree)
    if cls not in (dict, list, tuple) or not 0 < len(tree) <= FEW or not is_flag(given[2]):
        return None
    xs = [*(tree.values() if cls is dict else tree)]
    if len(set(map(id, xs))) < len(xs):  # an array that occurs several times is converted once
        return None
    kinds = set(map(type, xs))
    numbers = kinds.intersection(NUMBERS) if scalars else ()
    try:
        if all(option is None for option in given):
            table = fast_converters[name]  # type: ignore[index] # another object is not in it
            fns = {kind: table[kind] for kind in kinds.difference(numbers)}
        else:
            fns = {kind: learned[name, kind, *given] for kind in kinds.difference(numbers)}
        device, dtype, copy, grad = given
        again = partial(
            repeat_asarray, like=None, backend=name, device=device, dtype=dtype, copy=copy, grad=grad
        )
        fns.update(dict.fromkeys(numbers, again))
        made = [fns[type(x)](x) for x in xs]
    except FOREIGN_ERRORS:  # not learned, an option without a hash, or what the plan gives a reason for
        return None
    if any(y is None for y in made):
        return None
    if cls is dict:
        return dict(zip(tree, made, strict=True))
    return tuple(made) if cls is tuple else made
