"""What a container is: how it comes apart into children, and how one like it is put together of others.

A class is looked up when it is met, and nothing is registered anywhere: what optree, torch or JAX have been
told of a class holds, in that order, and before what can be seen of the class itself.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, UserDict, UserList, defaultdict
from copy import copy
from dataclasses import fields
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import optree

from xbridge._leaves import Fixture
from xbridge._registry import backend_for

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBERS = (bool, int, float, complex)
_PACKED = "torch.nn.utils.rnn"
_TORCH = "torch.utils._pytree"
_JAX = "jax.tree_util"


class Node(NamedTuple):
    """A kind of container."""

    take: Callable[[Any], tuple[Any, ...]]
    """Its children, what else has to be known of it, and, perhaps, the names of the children."""
    build: Callable[[Any, list[Any]], Any]
    """A container like it, of what else was known and new children."""
    entry: type[optree.PyTreeEntry] = optree.SequenceEntry
    """How optree writes the way to a child."""


PLAIN: dict[type, Node] = {
    dict: Node(
        lambda d: (d.values(), d, d), lambda d, parts: dict(zip(d, parts, strict=True)), optree.MappingEntry
    ),
    list: Node(lambda x: (x, x), lambda _, parts: parts),
    tuple: Node(lambda x: (x, x), lambda _, parts: tuple(parts)),
}
"""What nearly all trees are made of."""


def find(cls: type) -> Node | None:
    """How instances of a class come apart; None if they are leaves."""
    if cls in PLAIN:
        return PLAIN[cls]
    if cls in NUMBERS or issubclass(cls, (str, bytes, type(None))) or backend_for(cls) is not None:
        return None
    if cls is getattr(sys.modules.get(_PACKED), "PackedSequence", None):
        return Node(_take_packed, partial(_build_packed, cls), optree.NamedTupleEntry)
    if cls not in (OrderedDict, defaultdict):  # which keep more than optree does
        node = _of_optree(cls) or _of_torch(cls) or _of_jax(cls)
        if node:
            return node
    names = _fields(cls)
    if names is not None:
        return Node(partial(_take_fields, names), _build_fields, optree.GetAttrEntry)
    if issubclass(cls, (dict, UserDict)):
        return Node(lambda d: (d.values(), d, tuple(d)), _refill_dict, optree.MappingEntry)
    if issubclass(cls, (list, UserList)):
        return Node(lambda x: (x, x), _refill_list)
    return None


def _of_optree(cls: type) -> Node | None:
    """As registered with optree, or a class that optree knows by its form, such as a namedtuple."""
    found = optree.register_pytree_node.get(cls)
    if found is None:
        return None

    def build(known: Any, parts: list[Any]) -> Any:
        return found.unflatten_func(known, parts)

    return Node(found.flatten_func, build, found.path_entry_type)


def _of_torch(cls: type) -> Node | None:
    """As registered with torch, but for a `Size`, of which torch would make a tuple."""
    tree = sys.modules.get(_TORCH)
    found = tree.SUPPORTED_NODES.get(cls) if tree and not issubclass(cls, tuple) else None
    if found is None:
        return None

    def build(known: Any, parts: list[Any]) -> Any:
        return found.unflatten_fn(parts, known)

    return Node(found.flatten_fn, build, optree.FlattenedEntry)


def _of_jax(cls: type) -> Node | None:
    """As registered with JAX, which is asked for one level."""
    tree = sys.modules.get(_JAX)
    if tree is None or not tree.is_tree_node(cls):
        return None

    def take(x: Any) -> tuple[Any, ...]:
        return tree.tree_flatten(x, is_leaf=lambda child: child is not x)  # type: ignore[no-any-return]

    return Node(take, tree.tree_unflatten, optree.FlattenedEntry)


def _fields(cls: type) -> tuple[str, ...] | None:
    """The names of the fields of a dataclass or an attrs class."""
    if hasattr(cls, "__dataclass_fields__"):
        return tuple(field.name for field in fields(cls))
    if hasattr(cls, "__attrs_attrs__"):
        return tuple(attribute.name for attribute in cls.__attrs_attrs__)
    return None


def _take_fields(names: tuple[str, ...], x: Any) -> tuple[Any, ...]:
    there = tuple(name for name in names if hasattr(x, name))
    return [getattr(x, name) for name in there], (x, there), there


def _build_fields(known: tuple[Any, tuple[str, ...]], parts: list[Any]) -> Any:
    """An object with the same attributes but for its fields. `__init__` does not run, frozen or not.

    What the class has computed of the old fields, and can compute again, is left behind.
    """
    model, names = known
    twin = copy(model)
    for name in getattr(model, "__dict__", ()):
        if isinstance(getattr(type(model), name, None), cached_property):
            object.__delattr__(twin, name)
    for name, part in zip(names, parts, strict=True):
        object.__setattr__(twin, name, part)
    return twin


def _refill_dict(model: Any, parts: list[Any]) -> Any:
    """A mapping of the same class, with the same attributes and keys."""
    twin = copy(model)
    for key, part in zip(model, parts, strict=True):
        twin[key] = part
    return twin


def _refill_list(model: Any, parts: list[Any]) -> Any:
    twin = copy(model)
    twin[:] = parts
    return twin


def _take_packed(x: Any) -> tuple[Any, ...]:
    """The lengths of a packed sequence stay on the host, as torch asks, and its indices stay integers."""
    data, *form = x
    return [
        data,
        *(each if each is None else Fixture(each, on_host=i == 0) for i, each in enumerate(form)),
    ], None


def _build_packed(cls: Any, _: None, parts: list[Any]) -> Any:
    """Whatever library its arrays are of: that is for `_make`, which checks nothing."""
    return cls._make(part.array if type(part) is Fixture else part for part in parts)
