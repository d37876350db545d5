"""What a container is: how it comes apart into children, and how one like it is put together of others.

A container is made of raw items, which its builtin base holds, and of fields. Both are read and written past
the class, so that none of its code runs: it may count what it is given, scale it, or refuse it.

A class is looked up when it is met, and nothing is registered anywhere: what optree, torch or JAX have been
told of a class holds, in that order, and before what can be seen of the class itself.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, UserDict, UserList, defaultdict, deque
from contextlib import suppress
from dataclasses import fields
from enum import Enum
from functools import cached_property, lru_cache, partial
from operator import is_, is_not
from types import BuiltinFunctionType, MemberDescriptorType, NoneType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import optree

from xbridge._leaves import Fixture
from xbridge._registry import backend_for

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    _Known = tuple[Any, list[Any], Collection[Any], list[str]]
    """A container as it was met, its children, the keys of its items, the names of the fields it has."""

NUMBERS = (bool, int, float, complex)
_BASES = (OrderedDict, defaultdict, dict, list, deque, tuple, object)
_OF_C = BuiltinFunctionType
"""What makes instances whose memory no attribute shows."""


class Node(NamedTuple):
    """A kind of container."""

    cls: type
    take: Callable[[Any], tuple[Any, Any]]
    """Its children, and what else has to be known of it."""
    build: Callable[[Any, list[Any]], Any]
    """A container like it, of what else was known and new children."""
    ways: Callable[[Any], list[str]]
    """How Python writes the way to each child."""


def find(cls: type) -> Node | None:
    """How instances of a class come apart; None if they are leaves."""
    if cls in PLAIN:
        return PLAIN[cls]
    if cls in (NoneType, _class("torch", "Size"), *NUMBERS) or backend_for(cls) is not None:
        return None
    return _told(cls) or _seen(cls)


def _class(module: str, name: str) -> Any:
    """A class of a library, if that is loaded; else none."""
    return getattr(sys.modules.get(module), name, ())


def _told(cls: type) -> Node | None:
    """As somebody registered it. What is registered from the start keeps less than can be seen."""
    if cls in _BASES or optree.is_structseq_class(cls):
        return None
    return _of_optree(cls) or _of_torch(cls) or _of_jax(cls)


def _of_optree(cls: type) -> Node | None:
    found = optree.register_pytree_node.get(cls)
    if found is None or found.type is not cls:  # it answers for all named tuples
        return None
    flatten, entry = found.flatten_func, found.path_entry_type

    def ways(x: Any) -> list[str]:
        children, _, *names = flatten(x)
        known: Any = names[0] if names else None
        entries = range(len(list(children))) if known is None else known
        return [entry(name, cls, optree.PyTreeKind.CUSTOM).codify("") for name in entries]

    return Node(cls, lambda x: flatten(x)[:2], found.unflatten_func, ways)


def _of_torch(cls: type) -> Node | None:
    tree: Any = sys.modules.get("torch.utils._pytree")
    found = tree.SUPPORTED_NODES.get(cls) if tree else None
    if found is None:
        return None
    return Node(cls, found.flatten_fn, lambda known, parts: found.unflatten_fn(parts, known), _ways(tree))


def _of_jax(cls: type) -> Node | None:
    """JAX is asked for one level. It takes any named tuple for its own."""
    tree: Any = sys.modules.get("jax.tree_util")
    if tree is None or optree.is_namedtuple_class(cls) or not tree.is_tree_node(cls):
        return None
    return Node(
        cls, lambda x: tree.tree_flatten(x, is_leaf=partial(is_not, x)), tree.tree_unflatten, _ways(tree)
    )


def _ways(tree: Any) -> Callable[[Any], list[str]]:
    """As the library writes them."""

    def ways(x: Any) -> list[str]:
        named, _ = tree.tree_flatten_with_path(x, is_leaf=partial(is_not, x))
        return [tree.keystr(path) for path, _ in named]

    return ways


@lru_cache
def _seen(cls: type) -> Node | None:
    """By its base and its fields; none if it has neither, or if its base holds what cannot be seen."""
    bases = (base for base in cls.__mro__ if base in _BASES or type(vars(base).get("__new__")) is _OF_C)
    base = tuple if optree.is_structseq_class(cls) else next(bases)
    if base not in _BASES or issubclass(cls, (Enum, _class("torch.nn", "Module"))):
        return None
    names = [field.name for field in fields(cast("Any", cls))] if hasattr(cls, "__dataclass_fields__") else []
    names += [attribute.name for attribute in getattr(cls, "__attrs_attrs__", ())]
    names += ["data"] if issubclass(cls, (UserDict, UserList)) else []
    if base is object and not names:
        return None
    kind = _Packed if cls is _class("torch.nn.utils.rnn", "PackedSequence") else _Seen
    return kind(cls, base, names).node


class _Seen:
    """A class of which nobody was told: its items are in its builtin base, its fields have names."""

    def __init__(self, cls: type, base: Any, names: Collection[str]) -> None:
        self._base = base
        self._mapping = issubclass(base, dict)
        self._items = base.values if self._mapping else getattr(base, "__iter__", lambda _: ())
        self._names = tuple(dict.fromkeys(names))
        self._new: Callable[..., Any] = partial(base.__new__, cls)
        self._labels: tuple[str, ...] = ()  # of the items of a tuple
        self._hidden: Callable[[Any], tuple[Any, ...]] = lambda _: ()  # what it holds behind its items
        if optree.is_structseq_class(cls):
            self._new, self._labels = cls, optree.structseq_fields(cls)
            self._hidden = lambda x: x.__reduce__()[1][1:]
        elif optree.is_namedtuple_class(cls):
            self._labels = optree.namedtuple_fields(cls)
        self._has_dict = cls.__dictoffset__ != 0
        inside = [(of, name, it) for of in cls.__mro__ for name, it in vars(of).items()]
        in_force = {name: it for _, name, it in reversed(inside)}
        self._computed = {name for name, it in in_force.items() if isinstance(it, cached_property)}
        self._slots = [  # of attrs' slots, those that are no fields hold what was computed
            it
            for of, name, it in inside
            if type(it) is MemberDescriptorType and (name in names or "__attrs_attrs__" not in vars(of))
        ]
        self.node = Node(cls, self.take, self.build, self.ways)

    def take(self, x: Any) -> tuple[list[Any], _Known]:
        """Its items, as its base holds them, and its fields."""
        children = list(self._items(x))
        keys = list(self._base.keys(x)) if self._mapping else range(len(children))
        names = []
        for name in self._names:
            with suppress(AttributeError):
                children.append(object.__getattribute__(x, name))
                names.append(name)
        return children, (x, children, keys, names)

    def build(self, known: _Known, parts: list[Any]) -> Any:
        """An object with the same attributes but for its fields. What was computed of them is left behind."""
        model, children, keys, names = known
        base, new, items = self._base, self._new, parts[: len(keys)]
        if base is tuple and all(map(is_, parts, children)):
            return model  # nobody can tell
        twin = new(items, *self._hidden(model)) if base is tuple else new()
        self._copy_attributes(model, twin)
        if self._mapping:
            put = self._base.__setitem__
            for key, item in zip(keys, items, strict=True):
                put(twin, key, item)
        elif base is list:
            list.extend(twin, items)
        elif base is deque:
            deque.__init__(twin, items, vars(deque)["maxlen"].__get__(model))
        for name, part in zip(names, parts[len(keys) :], strict=True):
            object.__setattr__(twin, name, part)
        return twin

    def _copy_attributes(self, model: Any, twin: Any) -> None:
        attributes = object.__getattribute__(model, "__dict__") if self._has_dict else {}
        if attributes is model:  # its items are its attributes
            object.__setattr__(twin, "__dict__", twin)
        elif attributes:
            kept = {name: value for name, value in attributes.items() if name not in self._computed}
            object.__getattribute__(twin, "__dict__").update(kept)
        for slot in self._slots:
            with suppress(AttributeError):  # it may not be set
                slot.__set__(twin, slot.__get__(model))

    def ways(self, x: Any) -> list[str]:
        """By key or by name."""
        *_, keys, names = self.take(x)[1]
        items = [f".{label}" for label in self._labels] or [f"[{key!r}]" for key in keys]
        return [*items, *(f".{name}" for name in names)]


_UNPACKED = "torch.nn.utils.rnn.pad_packed_sequence(x)"


class _Packed(_Seen):
    """The lengths of a packed sequence stay on the host, as torch asks, and its indices stay integers."""

    def take(self, x: Any) -> tuple[list[Any], _Known]:
        """As any named tuple."""
        (data, *form), known = super().take(x)
        fixed = [
            each if each is None else Fixture(each, on_host=i == 0, instead=_UNPACKED)
            for i, each in enumerate(form)
        ]
        return [data, *fixed], known

    def build(self, known: _Known, parts: list[Any]) -> Any:
        """Of arrays of any library."""
        return super().build(known, [part.array if type(part) is Fixture else part for part in parts])


PLAIN: dict[type, Node] = {cls: _Seen(cls, cls, ()).node for cls in (dict, list, tuple)}
"""What nearly all trees are made of."""
