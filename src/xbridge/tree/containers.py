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
from functools import cached_property, lru_cache, partial, partialmethod, singledispatchmethod
from itertools import chain
from operator import is_, is_not
from types import BuiltinFunctionType, GetSetDescriptorType, MemberDescriptorType, NoneType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from xbridge._core.literals import NUMBERS
from xbridge.backends._registry import backend_for
from xbridge.errors import UnsupportedArrayError
from xbridge.tree.leaf import Fixture

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    _Place = str | MemberDescriptorType
    """Where an object stores an attribute: under a name in its `__dict__`, or in a slot."""


class _Known(NamedTuple):
    """What is known of a container of a class that is not registered."""

    model: Any
    """The object. Only what cannot change is read of it later."""
    children: list[Any]
    """As they are in it: its items, then its fields."""
    keys: Collection[Any]
    """Of its items."""
    places: Sequence[_Place]
    """Of its fields."""
    stored: Mapping[_Place, Any]
    """Its attributes."""
    itself: bool
    """Whether its items are its attributes."""


_BASES = (OrderedDict, defaultdict, dict, list, deque, tuple, object)
_NOTHING = object()
_OF_C = BuiltinFunctionType
"""What makes instances whose memory no attribute shows."""


_IS_BASE = 1 << 10
"""The flag of a class that other classes may derive from."""


def _is_unknown(*_: object) -> bool:
    """Only the class could tell whether a container has changed."""
    return True


class Container(NamedTuple):
    """A kind of container."""

    cls: type
    take: Callable[[Any], tuple[Any, Any]]
    """Its children, and what else has to be known of it."""
    build: Callable[[Any, list[Any]], Any]
    """A container like it, of what else was known and new children."""
    ways: Callable[[Any, Any], list[str]]
    """How Python writes the way to each child, of the container and what else was known of it."""
    is_same: Callable[[Any, Any], bool] = _is_unknown
    """Whether the container still holds the same objects in the same order, as far as that can be seen."""


def find(x: object) -> Container | None:
    """How things of the class of `x` come apart; None if they are leaves."""
    cls: Any = type(x)
    if cls in PLAIN:
        return PLAIN[cls]
    if cls in (NoneType, _class("torch", "Size"), *NUMBERS) or backend_for(cls) is not None:
        return None
    return _told(cls, x) or _seen(cls)


def _class(module: str, name: str) -> Any:
    """A class of a library, if that is loaded; else none."""
    return getattr(sys.modules.get(module), name, ())


def _told(cls: type, x: object) -> Container | None:
    """As somebody registered it. What is registered from the start keeps less than can be seen."""
    if cls in _BASES or _is_struct_sequence(cls):
        return None
    return _of_optree(cls) or _of_torch(cls) or _of_jax(cls, x)


def _of_optree(cls: type) -> Container | None:
    registry: Any = _class("optree", "register_pytree_node")
    found = registry.get(cls) if registry else None
    if found is None or found.type is not cls:  # it answers for all named tuples
        return None
    flatten, entry = found.flatten_func, found.path_entry_type

    def ways(x: Any, _: object) -> list[str]:
        children, _, *names = flatten(x)
        known: Any = names[0] if names else None
        entries = range(len(list(children))) if known is None else known
        return [entry(name, cls, _class("optree", "PyTreeKind").CUSTOM).codify("") for name in entries]

    return Container(cls, lambda x: flatten(x)[:2], found.unflatten_func, ways)


def _of_torch(cls: type) -> Container | None:
    found = (_class("torch.utils._pytree", "SUPPORTED_NODES") or {}).get(cls)
    if found is None:
        return None
    return Container(
        cls,
        found.flatten_fn,
        lambda known, parts: found.unflatten_fn(parts, known),
        _ways(sys.modules["torch.utils._pytree"]),
    )


def _of_jax(cls: type, x: object) -> Container | None:
    """JAX is asked for one level, and by an object: not every version can tell of a class.

    It takes any tuple with `_fields` for its own.
    """
    tree: Any = sys.modules.get("jax.tree_util")
    named = issubclass(cls, tuple) and hasattr(cls, "_fields")
    if tree is None or named or tree.all_leaves((x,)):
        return None
    return Container(
        cls, lambda x: tree.tree_flatten(x, is_leaf=partial(is_not, x)), tree.tree_unflatten, _ways(tree)
    )


def _ways(tree: Any) -> Callable[[Any, object], list[str]]:
    """As the library writes them."""

    def ways(x: Any, _: object) -> list[str]:
        named, _ = tree.tree_flatten_with_path(x, is_leaf=partial(is_not, x))
        return [tree.keystr(path) for path, _ in named]

    return ways


@lru_cache
def _seen(cls: type) -> Container | None:
    """By its base and its fields; none if it has neither, or if its base holds what cannot be seen."""
    bases = (base for base in cls.__mro__ if base in _BASES or type(vars(base).get("__new__")) is _OF_C)
    base = tuple if _is_struct_sequence(cls) else next(bases)
    if base not in _BASES or issubclass(cls, (Enum, _class("torch.nn", "Module"))):
        return None
    if cls.__dictoffset__ and _dict_of(cls) is None:  # the class has taken the word
        return None
    names: list[str] = []
    if _told_by(cls, "__dataclass_fields__"):
        names += [field.name for field in fields(cast("Any", cls))]
    names += [attribute.name for attribute in _told_by(cls, "__attrs_attrs__")]
    names += ["data"] if issubclass(cls, (UserDict, UserList)) else []
    if base is object and not names:
        return None
    kind = _Packed if cls is _class("torch.nn.utils.rnn", "PackedSequence") else _Seen
    return kind(cls, base, names).node


class _Seen:
    """A class that is not registered: its items are in its builtin base, its fields have names.

    A field is what an object stores under that name. A descriptor of the class, such as a property, may store
    it under another name.
    """

    def __init__(self, cls: type, base: Any, names: Collection[str]) -> None:
        self._cls, self._base, self._names = cls, base, tuple(dict.fromkeys(names))
        self._mapping = issubclass(base, dict)
        self._items = base.values if self._mapping else getattr(base, "__iter__", lambda _: ())
        self._new: Callable[..., Any] = partial(base.__new__, cls)
        self._labels: tuple[str, ...] = ()  # of the items of a tuple
        self._hidden: Callable[[Any], tuple[Any, ...]] = lambda _: ()  # what it holds behind its items
        if _is_struct_sequence(cls):
            self._new, self._labels = cls, vars(cls)["__match_args__"]
            self._hidden = lambda x: x.__reduce__()[1][1:]
        elif base is tuple and _told_by(cls, "_make"):
            self._labels = _told_by(cls, "_fields")
        inside = [(of, name, it) for of in cls.__mro__ for name, it in vars(of).items()]
        in_force = {name: it for _, name, it in reversed(inside)}
        self._computed = {
            name
            for name, it in in_force.items()
            if isinstance(it, cached_property) or (name not in self._names and _computes(it))
        }
        self._dict = _dict_of(cls)
        self._slots = [  # of attrs' slots, those that are no fields hold what was computed
            it
            for of, name, it in inside
            if type(it) is MemberDescriptorType and (name in names or "__attrs_attrs__" not in vars(of))
        ]
        found = {name: in_force.get(name, _NOTHING) for name in self._names if name not in self._computed}
        self._places: list[_Place] = [
            it if type(it) is MemberDescriptorType else name for name, it in found.items()
        ]
        self._behind = {
            name: it
            for name, it in found.items()
            if type(it) is not MemberDescriptorType and _has_any(it, "__set__", "__delete__")
        }
        self._defaults: dict[_Place, Any] = {
            name: it
            for name, it in found.items()
            if self._dict and it is not _NOTHING and not _has_any(it, "__get__", "__set__", "__delete__")
        }
        self.node = Container(cls, self.take, self.build, self.ways, self.is_same)

    def take(self, x: Any) -> tuple[list[Any], _Known]:
        """Its items, as its base holds them, and its fields."""
        children = list(self._items(x))
        keys = list(self._base.keys(x)) if self._mapping else range(len(children))
        attributes = self._dict.__get__(x) if self._dict else {}
        itself = attributes is x  # its items are its attributes
        stored: dict[_Place, Any] = {}
        if not itself:
            stored = {name: it for name, it in dict.items(attributes) if name not in self._computed}
        for slot in self._slots:
            with suppress(AttributeError):  # it may not be set
                stored[slot] = slot.__get__(x)
        places = [place for place in self._places if place in stored or place in self._defaults]
        if itself:
            places = []
        else:
            others = [place for place in stored if place not in places]
            behind = [self._stored_for(name, others) for name in self._behind if name not in stored]
            places += dict.fromkeys(chain.from_iterable(behind))
        children += [stored[place] if place in stored else self._defaults[place] for place in places]
        return children, _Known(x, children, keys, places, stored, itself)

    def build(self, known: _Known, parts: list[Any]) -> Any:
        """An object with the same attributes but for its fields. What was computed of them is left behind."""
        base, count = self._base, len(known.keys)
        items = parts[:count]
        if base is tuple and all(map(is_, parts, known.children)):
            return known.model  # an equal tuple would be no other value
        twin = self._new(items, *self._hidden(known.model)) if base is tuple else self._new()
        stored = dict(known.stored)
        for place, child, part in zip(known.places, known.children[count:], parts[count:], strict=True):
            if place in stored or part is not child:  # or it stays the default of the class
                stored[place] = part
        if known.itself:
            self._dict.__set__(twin, twin)
        self._store(twin, stored)
        if self._mapping:
            put = self._base.__setitem__
            for key, item in zip(known.keys, items, strict=True):
                put(twin, key, item)
        elif base is list:
            list.extend(twin, items)
        elif base is deque:
            deque.__init__(twin, items, vars(deque)["maxlen"].__get__(known.model))
        return twin

    def _store(self, twin: Any, stored: Mapping[_Place, Any]) -> None:
        """Write attributes past the class."""
        attributes = {}
        for place, value in stored.items():
            if type(place) is MemberDescriptorType:
                with suppress(AttributeError):  # C code may only show it
                    place.__set__(twin, value)
            else:
                attributes[place] = value
        if attributes:
            self._dict.__get__(twin).update(attributes)

    def _stored_for(self, name: str, others: list[_Place]) -> list[_Place]:
        """The attributes that may store a field for its descriptor: those that bear its name, such as `_x`.

        A property may keep it in any other attribute, or compute it. Other descriptors may keep it in
        themselves.
        """
        word, descriptor = "_" + name.strip("_"), self._behind[name]
        found = [place for place in others if ("_" + _label(place).strip("_")).endswith(word)]
        if found:
            return found
        if isinstance(descriptor, property) and (others or descriptor.fset is None):
            return others
        raise UnsupportedArrayError.build(
            f"take a {self._cls.__name__} apart",
            f"the class keeps field {name!r} behind a {type(descriptor).__name__}, and the object has no "
            "attribute that stores its value",
            f"{{{', '.join(f'{field!r}: x.{field}' for field in self._names)}}}",
        )

    def ways(self, _: object, known: _Known) -> list[str]:
        """By key or by name."""
        items = [f"[{key!r}]" for key in known.keys]
        items[: len(self._labels)] = [f".{label}" for label in self._labels]
        return [*items, *(f".{_label(place)}" for place in known.places)]

    def is_same(self, x: Any, known: _Known) -> bool:
        """Whether it still has these children under these keys."""
        now = self.take(x)[1]
        return is_same(now.children, known.children) and (not self._mapping or is_same(now.keys, known.keys))


def _is_struct_sequence(cls: type) -> bool:
    """Return True if C code has made a class of tuples, such as `time.struct_time`."""
    return cls.__bases__ == (tuple,) and "n_sequence_fields" in vars(cls) and not cls.__flags__ & _IS_BASE


def _told_by(cls: type, word: str) -> Any:
    """What a class has under a word, itself or from a base. Its metaclass is not asked."""
    return next((vars(of)[word] for of in cls.__mro__ if word in vars(of)), ())


def _dict_of(cls: type) -> Any:
    """What reads and writes the `__dict__` of instances past the class; None if they have none."""
    return next(filter(_is_of_c, (vars(of).get("__dict__") for of in cls.__mro__)), None)


def _is_of_c(it: object) -> bool:
    return type(it) is GetSetDescriptorType


def _label(place: _Place) -> str:
    return place.__name__ if isinstance(place, MemberDescriptorType) else str(place)


def _has_any(it: object, *words: str) -> bool:
    return any(hasattr(type(it), word) for word in words)


def _computes(it: object) -> bool:
    """Whether a descriptor calls a function once, and the object stores under its name what that returned."""
    if not _has_any(it, "__get__") or _has_any(it, "__set__", "__delete__") or callable(it):
        return False
    makes_methods = isinstance(it, (classmethod, partialmethod, singledispatchmethod))
    return not makes_methods and any(map(callable, getattr(it, "__dict__", {}).values()))


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


def is_same(xs: Collection[Any], ys: Collection[Any]) -> bool:
    """Whether they are the same objects in the same order."""
    return len(xs) == len(ys) and all(map(is_, xs, ys))


def _by_number(_: object, known: Collection[Any]) -> list[str]:
    return [f"[{i}]" for i in range(len(known))]


def _in_dict(x: dict[Any, Any]) -> tuple[Collection[Any], dict[Any, Any]]:
    known = x.copy()
    return known.values(), known


def _in_list(x: list[Any]) -> tuple[list[Any], list[Any]]:
    known = x.copy()
    return known, known


PLAIN: dict[type, Container] = {
    dict: Container(
        dict,
        _in_dict,
        lambda known, parts: dict(zip(known, parts, strict=True)),
        lambda _, known: [f"[{key!r}]" for key in known],
        lambda x, known: is_same(x, known) and all(map(is_, x.values(), known.values())),
    ),
    list: Container(list, _in_list, lambda _, parts: list(parts), _by_number, is_same),
    tuple: Container(tuple, lambda x: (x, x), lambda _, parts: tuple(parts), _by_number),
}
"""What nearly all trees are made of."""
