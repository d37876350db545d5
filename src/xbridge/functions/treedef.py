"""The structure of a tree without its arrays: build trees from it, and read other trees of that structure.

A `TreeDef` consists of nested tuples, holds the constants of the tree, and is hashable, so that it can be the
key of a rule. `flatten.py` makes it. (A `TreeSpec` of `xbridge.tree` is another thing: the
structure of one tree, made for speed with many leaves, and not hashable.)

A compiler traces `unflatten` line by line, which limits the Python that it is written in.
"""

from __future__ import annotations

from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xbridge.errors import OptionError

TreeDef: TypeAlias = Any
"""The structure of a tree: `ARRAY`, "int", "float", or a tuple of a kind, its data and its children."""

ARRAY = "*"
"""The structure of an array."""

NONE = ("=", type(None), None, None)
"""The structure of None."""

FIRST_CHILD = {"tuple": 1, "list": 1, "named": 2, "node": 2, "dict": 3, "data": 3, "partial": 1}
"""The kinds of containers, and the index of the first child in the structure of each."""


def children_of(form: TreeDef) -> tuple[TreeDef, ...]:
    """Return the structures of the children of a container; nothing for a leaf."""
    if isinstance(form, str) or form[0] == "=":
        return ()
    children: tuple[TreeDef, ...] = form[FIRST_CHILD[form[0]] :]
    return children


def unflatten(form: TreeDef, arrays: Iterator[Any], numbers: Iterator[Any]) -> Any:
    """Build the tree of a structure from arrays and numbers."""
    if form == "*":
        return next(arrays)
    if form == "int" or form == "float":  # noqa: PLR1714 -- a compiler traces this
        return next(numbers)
    kind = form[0]
    if kind == "=":
        return form[3]
    if kind == "dict":
        return dict(zip(form[1], [unflatten(child, arrays, numbers) for child in form[3:]], strict=True))
    if kind == "named":
        # A compiler cannot call a class that it has from a constant.
        return tuple.__new__(form[1], [unflatten(child, arrays, numbers) for child in form[2:]])
    if kind == "data":
        made = object.__new__(form[1])  # without `__init__`, which may compute fields
        for name, child in zip(form[2], form[3:], strict=True):
            object.__setattr__(made, name, unflatten(child, arrays, numbers))
        return made
    if kind == "node":
        parts = [unflatten(child, arrays, numbers) for child in form[2:]]
        return form[1].container.unflatten(form[1].form, parts)
    parts = [unflatten(child, arrays, numbers) for child in form[1:]]
    if kind == "partial":
        return partial(parts[0], *parts[1], **parts[2])
    return tuple(parts) if kind == "tuple" else parts


def mask_leaves(form: TreeDef, chosen: Iterator[bool]) -> TreeDef:
    """Return the structure with None for all leaves except the chosen arrays."""
    if form == ARRAY:
        return ARRAY if next(chosen) else NONE
    if isinstance(form, str) or form[0] == "=":
        return NONE
    start = FIRST_CHILD[form[0]]
    return (*form[:start], *[mask_leaves(child, chosen) for child in form[start:]])


def number_slots(form: TreeDef) -> list[str]:
    """Return the kinds of the numbers in a structure, "int" or "float", in order."""
    if isinstance(form, str) and form != ARRAY:
        return [form]
    return [kind for child in children_of(form) for kind in number_slots(child)]


def leaves_like(form: TreeDef, tree: Any, wrong: Callable[[], OptionError]) -> list[Any]:
    """Return what a tree has in the place of each array of a structure. None may stand for any subtree."""
    if form == ARRAY:
        if isinstance(tree, (tuple, list, dict, str)):
            raise wrong()
        return [tree]
    if isinstance(form, str) or form[0] == "=":
        return []
    parts = repeat(None) if tree is None else _children_like(form, tree, wrong)
    return [
        leaf
        for child, part in zip(children_of(form), parts, strict=False)
        for leaf in leaves_like(child, part, wrong)
    ]


def outline(form: TreeDef) -> TreeDef:
    """Return what is the same in trees with other constants of the same types and other orders of keys.

    A list, a tuple and a named tuple count as one kind.
    """
    if isinstance(form, str):
        return form
    if form[0] == "=":
        return form[:2]
    children = map(outline, children_of(form))
    if form[0] == "dict":
        return "dict", frozenset(zip(form[1], form[2], children, strict=True))
    return (*_kind_of(form), *children)


def _kind_of(form: TreeDef) -> tuple[Any, ...]:
    """Return what precedes the children of a container, the same for a list, a tuple and a named tuple."""
    head: tuple[Any, ...] = form[: FIRST_CHILD[form[0]]]
    return ("tuple",) if head[0] in ("list", "named") else head


def reorder_leaves(
    form: TreeDef, given: TreeDef, xs: Iterator[Any], wrong: Callable[[], OptionError]
) -> list[Any]:
    """Return the arrays `xs` of the tree `given` in the order of `form`: the keys of dicts may differ."""
    if outline(form) != outline(given):
        raise wrong()
    ordered, ys = order_like(form, given, xs)
    if not _matches(form, ordered):
        raise wrong()
    return ys


def _matches(form: TreeDef, other: TreeDef) -> bool:
    """Return True for the same structure and constants, in trees of one outline and order."""
    if form == other:
        return True
    children = children_of(form)
    is_another_class = form[0] == other[0] == "named" and form[1] != other[1]
    return bool(children) and not is_another_class and all(map(_matches, children, children_of(other)))


def order_like(first: TreeDef, form: TreeDef, xs: Iterator[Any]) -> tuple[TreeDef, list[Any]]:
    """Return a form and its arrays with the keys in the order of another form of the same outline."""
    if form == ARRAY:
        return form, [next(xs)]
    children = children_of(form)
    if not children:
        return form, []
    head, at = form[: FIRST_CHILD[form[0]]], list(range(len(children)))
    if form[0] == "dict":
        head = first[:3]
        order = list(zip(first[1], first[2], strict=True))
        at = [order.index(key) for key in zip(form[1], form[2], strict=True)]
    others = children_of(first)
    parts = {i: order_like(others[i], child, xs) for i, child in zip(at, children, strict=True)}
    made = [parts[i] for i in sorted(parts)]
    return (*head, *[child for child, _ in made]), [x for _, inside in made for x in inside]


def _children_like(form: TreeDef, tree: Any, wrong: Callable[[], OptionError]) -> list[Any]:
    count = len(form) - FIRST_CHILD[form[0]]
    if form[0] == "dict":
        children = (
            [tree[key] for key in form[1]] if isinstance(tree, dict) and tree.keys() == set(form[1]) else None
        )
    elif form[0] == "data":
        children = [getattr(tree, name) for name in form[2]] if type(tree) is form[1] else None
    elif form[0] == "node":
        container = form[1].container
        children = list(container.flatten(tree)[0]) if type(tree) is container.cls else None
    else:
        children = list(tree) if isinstance(tree, (tuple, list)) else None
    if children is None or len(children) != count:
        raise wrong()
    return children


def argument_treedefs(form: TreeDef) -> list[TreeDef]:
    """Return the structures of all arguments from that of ``(args, kwargs)``."""
    return [*form[1][1:], *form[2][3:]]


def has_arrays(form: TreeDef) -> bool:
    """Return True if there is an array in the structure."""
    return bool(form == ARRAY) or any(map(has_arrays, children_of(form)))


def argument_paths(form: TreeDef) -> list[str]:
    """Return the names of the arrays, for errors, from the structure of ``(args, kwargs)``."""
    keys = [*range(len(form[1]) - 1), *form[2][1]]
    return [
        path
        for key, child in zip(keys, argument_treedefs(form), strict=True)
        for path in _leaf_paths(child, f"argument {key!r}")
    ]


def _leaf_paths(form: TreeDef, name: str) -> list[str]:
    if form == ARRAY:
        return [name]
    children = children_of(form)
    if form[0] == "dict":
        labels = [f"[{key!r}]" for key in form[1]]
    elif form[0] == "named":
        labels = [f".{field}" for field in form[1]._fields]
    elif form[0] == "data":
        labels = [f".{name}" for name in form[2]]
    elif form[0] == "node":
        labels = form[1].labels
    else:
        labels = [f"[{i}]" for i in range(len(children))]
    return [
        path
        for label, child in zip(labels, children, strict=True)
        for path in _leaf_paths(child, name + label)
    ]
