"""The classes of containers: how to flatten each into its children, and build a similar container of others.

A class that is registered with optree, torch or JAX, looked up in this order, is flattened as it was
registered. xbridge has no registry of its own. Any other class is flattened by structure: its items, which a
builtin base class such as dict holds, and its fields, as of a dataclass. Both are read and written directly
and not by code of the class, which may count, scale or refuse items.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from enum import Enum
from functools import cached_property, partial, partialmethod, singledispatchmethod
from itertools import chain
from operator import is_, is_not
from types import BuiltinFunctionType, GetSetDescriptorType, MemberDescriptorType, NoneType
from typing import Any, NamedTuple, cast

from xbridge._core.literals import NUMBERS
from xbridge._registry.registry import backend_for
from xbridge.errors import UnsupportedArrayError, type_of, with_article
from xbridge.tree.leaf import StructuralArray

_Storage = str | MemberDescriptorType
"""Where an object stores an attribute: a name in its `__dict__`, or the descriptor of a slot."""


class _Form(NamedTuple):
    """The form of a container that is flattened by structure."""

    model: Any
    """The container itself. Later, only parts that cannot change are read from it."""
    children: list[Any]
    """Its items, then its fields."""
    keys: Collection[Any]
    """The keys of its items."""
    storages: Sequence[_Storage]
    """The attributes that store its fields."""
    stored: Mapping[_Storage, Any]
    """All attributes that it stores, fields or not."""
    itself: bool
    """True if its items are its attributes too: it is a dict that is its own `__dict__`."""


_BASES = (OrderedDict, defaultdict, dict, list, deque, tuple, object)
_MISSING = object()
_IS_BASE = 1 << 10
"""CPython's flag of a class that can be subclassed."""
_CAN_CHANGE = 1 << 9
"""CPython's flag of a class that was made by Python code, and so can change."""
_MAX_READ_CLASSES = 128
"""The most classes that are remembered. The oldest goes first."""


class Container(NamedTuple):
    """A class of containers, with the functions that flatten and build its objects."""

    cls: type
    flatten: Callable[[Any], tuple[Any, Any]]
    """Return the children of a container, and its form: all else that is needed to build a similar one."""
    unflatten: Callable[[Any, list[Any]], Any]
    """Return a similar container, of a form and new children."""
    paths: Callable[[Any, Any], list[str]]
    """Return the path to each child, such as ``.x`` or ``['x']``, for a container and its form."""
    is_same: Callable[[Any, Any], bool] = lambda *_: True
    """Return True if a container still holds the objects of its form in order, or if that is not known."""


def find_container(x: object) -> Container | None:
    """Return the container class of `x`, or None if it is a leaf."""
    cls: Any = type(x)
    if cls in PLAIN:
        return PLAIN[cls]
    if cls in (NoneType, _get_loaded("torch", "Size"), *NUMBERS) or backend_for(cls) is not None:
        return None
    return _find_registered(cls, x) or _find_unregistered(cls)


def _get_loaded(module: str, name: str) -> Any:
    """Return an attribute of a module; an empty tuple if the program has not imported the module."""
    return getattr(sys.modules.get(module), name, ())


def _find_registered(cls: type, x: object) -> Container | None:
    """Return the container class of a registered class; None for others.

    Builtin containers, which the libraries register themselves, do not count: this module keeps more of them,
    such as the default factory of a defaultdict.
    """
    if cls in _BASES or is_struct_sequence(cls):
        return None
    return _find_in_optree(cls) or _find_in_torch(cls) or _find_in_jax(cls, x)


def _find_in_optree(cls: type) -> Container | None:
    registry: Any = _get_loaded("optree", "register_pytree_node")
    found = registry.get(cls) if registry else None
    if found is None or found.type is not cls:  # optree returns an entry for every named tuple
        return None
    flatten, entry = found.flatten_func, found.path_entry_type

    def paths(x: Any, _: object) -> list[str]:
        children, _, *names = flatten(x)
        given: Any = names[0] if names else None
        entries = range(len(list(children))) if given is None else given
        return [entry(name, cls, _get_loaded("optree", "PyTreeKind").CUSTOM).codify("") for name in entries]

    return Container(cls, lambda x: flatten(x)[:2], found.unflatten_func, paths)


def _find_in_torch(cls: type) -> Container | None:
    found = (_get_loaded("torch.utils._pytree", "SUPPORTED_NODES") or {}).get(cls)
    if found is None:
        return None
    paths = _make_paths(sys.modules["torch.utils._pytree"])
    return Container(cls, found.flatten_fn, lambda form, parts: found.unflatten_fn(parts, form), paths)


def _find_in_jax(cls: type, x: object) -> Container | None:
    """Return the container that JAX has for a registered class; None if there is none.

    Not every version of JAX can look up a class, so an object is passed to it. Named tuples are left out,
    because JAX treats every tuple with `_fields` as one, registered or not.
    """
    tree: Any = sys.modules.get("jax.tree_util")
    named = issubclass(cls, tuple) and hasattr(cls, "_fields")
    if tree is None or named or tree.all_leaves((x,)):
        return None
    return Container(
        cls,
        lambda x: tree.tree_flatten(x, is_leaf=partial(is_not, x)),
        tree.tree_unflatten,
        _make_paths(tree),
    )


def _make_paths(tree: Any) -> Callable[[Any, object], list[str]]:
    """Return a function that gives the paths of children as torch or JAX formats them."""

    def paths(x: Any, _: object) -> list[str]:
        named, _ = tree.tree_flatten_with_path(x, is_leaf=partial(is_not, x))
        return [tree.keystr(path) for path, _ in named]

    return paths


class _ReadClass:
    """A class that was read, with a copy of what was read, to notice if the class changes."""

    def __init__(self, cls: type) -> None:
        self._bases = cls.__mro__
        own = [vars(of) for of in self._bases if of.__flags__ & _CAN_CHANGE]
        self._attributes = [(attributes, [*attributes], [*attributes.values()]) for attributes in own]
        self.container = _read_class(cls)

    def is_current(self, cls: type) -> bool:
        """Return True if the class and its bases still have the same attributes."""
        return cls.__mro__ == self._bases and all(
            [*now] == names and all(map(is_, now.values(), values)) for now, names, values in self._attributes
        )


_read_classes: dict[type, _ReadClass] = {}


def _find_unregistered(cls: type) -> Container | None:
    """Return the container class for an unregistered class, read again if it has changed; None for a leaf."""
    known = _read_classes.get(cls)
    if known is None or not known.is_current(cls):
        known = _read_classes[cls] = _ReadClass(cls)
        if len(_read_classes) > _MAX_READ_CLASSES:
            oldest, *_ = _read_classes
            _read_classes.pop(oldest, None)  # another thread may do the same
    return known.container


def _read_class(cls: type) -> Container | None:
    """Return the container class for an unregistered class, by its builtin base and its fields.

    Return None for a leaf: it has neither, or a base in C that may hold more than attributes show.
    """
    # A class in C has a builtin `__new__`.
    bases = (of for of in cls.__mro__ if of in _BASES or type(vars(of).get("__new__")) is BuiltinFunctionType)
    base = tuple if is_struct_sequence(cls) else next(bases)
    if base not in _BASES or issubclass(cls, (Enum, _get_loaded("torch.nn", "Module"))):
        return None
    if cls.__dictoffset__ and _dict_of(cls) is None:  # a class attribute named `__dict__` hides it
        return None
    names: list[str] = []
    if _class_attribute(cls, "__dataclass_fields__"):
        names += [field.name for field in fields(cast("Any", cls))]
    names += [attribute.name for attribute in _class_attribute(cls, "__attrs_attrs__")]
    names += ["data"] if issubclass(cls, (UserDict, UserList)) else []
    if base is object and not names:
        return None
    is_packed = cls is _get_loaded("torch.nn.utils.rnn", "PackedSequence")
    kind = _PackedSequence if is_packed else _StructuralContainer
    return kind(cls, base, names).node


class _StructuralContainer:
    """The flatten and unflatten functions of a class that is not registered.

    Its builtin base holds the items. A field is stored under its own name, unless a descriptor of the class,
    such as a property, stores it under another one.
    """

    def __init__(self, cls: type, base: Any, names: Collection[str]) -> None:
        self._cls, self._base, self._names = cls, base, tuple(dict.fromkeys(names))
        self._mapping = issubclass(base, dict)
        self._items = base.values if self._mapping else getattr(base, "__iter__", lambda _: ())
        self._new: Callable[..., Any] = partial(base.__new__, cls)
        self._labels: tuple[str, ...] = ()  # of the items of a tuple
        # The fields of a struct sequence that are not items.
        self._hidden: Callable[[Any], tuple[Any, ...]] = lambda _: ()
        if is_struct_sequence(cls):
            self._new, self._labels = cls, vars(cls)["__match_args__"]
            self._hidden = lambda x: x.__reduce__()[1][1:]
        elif base is tuple and _class_attribute(cls, "_make"):
            self._labels = _class_attribute(cls, "_fields")
        inside = [(of, name, it) for of in cls.__mro__ for name, it in vars(of).items()]
        in_force = {name: it for _, name, it in reversed(inside)}
        self._computed = {
            name
            for name, it in in_force.items()
            if isinstance(it, cached_property) or (name not in self._names and _is_lazy_property(it))
        }
        self._dict = _dict_of(cls)
        self._slots = [  # slots of attrs that are not fields hold computed values
            it
            for of, name, it in inside
            if type(it) is MemberDescriptorType
            and (name in names or "__attrs_attrs__" not in vars(of))
            and not is_struct_sequence(of)  # whose descriptors read its items
        ]
        self._storages: list[_Storage] = []
        self._described: dict[str, Any] = {}
        self._defaults: dict[_Storage, Any] = {}
        for name in filter(lambda name: name not in self._computed, self._names):
            it = in_force.get(name, _MISSING)
            self._storages.append(it if type(it) is MemberDescriptorType else name)
            if type(it) is not MemberDescriptorType and _has_any(it, "__set__", "__delete__"):
                self._described[name] = it
            elif self._dict and it is not _MISSING and not _has_any(it, "__get__", "__set__", "__delete__"):
                self._defaults[name] = it
        self.node = Container(cls, self.flatten, self.unflatten, self.paths, self.is_same)

    def flatten(self, x: Any) -> tuple[list[Any], _Form]:
        """Return the items, read by methods of the base, and the fields."""
        children = list(self._items(x))
        keys = list(self._base.keys(x)) if self._mapping else range(len(children))
        attributes = self._dict.__get__(x) if self._dict else {}
        itself = attributes is x  # such as a dict that is its own `__dict__`
        stored: dict[_Storage, Any] = {}
        if not itself:
            stored = {name: it for name, it in dict.items(attributes) if name not in self._computed}
        for slot in self._slots:
            with suppress(AttributeError):  # an empty slot
                stored[slot] = slot.__get__(x)
        storages: list[_Storage] = []
        if not itself:
            storages = [it for it in self._storages if it in stored or it in self._defaults]
            others = [it for it in stored if it not in storages]
            behind = [self._find_storages(name, others) for name in self._described if name not in stored]
            storages += dict.fromkeys(chain.from_iterable(behind))
        children += [stored[it] if it in stored else self._defaults[it] for it in storages]
        return children, _Form(x, children, keys, storages, stored, itself)

    def unflatten(self, form: _Form, parts: list[Any]) -> Any:
        """Build an object with new items and fields, and the other attributes that were not computed."""
        base, count = self._base, len(form.keys)
        items = parts[:count]
        if base is tuple and all(map(is_, parts, form.children)):
            return form.model  # tuples are immutable, so the same items need no new one
        made = self._new(items, *self._hidden(form.model)) if base is tuple else self._new()
        stored = dict(form.stored)
        for storage, child, part in zip(form.storages, form.children[count:], parts[count:], strict=True):
            if storage in stored or part is not child:  # otherwise it stays the default of the class
                stored[storage] = part
        if form.itself:
            self._dict.__set__(made, made)
        self._store(made, stored)
        if self._mapping:
            put = self._base.__setitem__
            for key, item in zip(form.keys, items, strict=True):
                put(made, key, item)
        elif base is list:
            list.extend(made, items)
        elif base is deque:
            deque.__init__(made, items, vars(deque)["maxlen"].__get__(form.model))
        return made

    def _store(self, made: Any, stored: Mapping[_Storage, Any]) -> None:
        """Write attributes without running code of the class."""
        attributes = {}
        for storage, value in stored.items():
            if type(storage) is MemberDescriptorType:
                with suppress(AttributeError):  # a slot of a class in C may be read-only
                    storage.__set__(made, value)
            else:
                attributes[storage] = value
        if attributes:
            self._dict.__get__(made).update(attributes)

    def _find_storages(self, name: str, others: list[_Storage]) -> list[_Storage]:
        """Return the attribute that stores a field for its descriptor; none for a property without a setter.

        It has the name of the field, with underscores or the name of a class before it, such as `_x`.
        """
        word, descriptor = name.strip("_"), self._described[name]
        owners = (f"_{of.__name__.lstrip('_')}__" for of in self._cls.__mro__)
        names = {f"{prefix}{word}" for prefix in ("", "_", "__", *owners)}
        found = [storage for storage in others if _label_of(storage) in names]
        if found or (
            isinstance(descriptor, property) and descriptor.fset is None
        ):  # such a field is computed
            return found
        hidden = f"the class keeps field {name!r} behind {type_of(descriptor)}"
        reason = f"{hidden}, and the object has no attribute that stores its value"
        hint = ", ".join(f"{field!r}: x.{field}" for field in self._names)
        action = f"flatten {with_article(self._cls.__name__)}"
        raise UnsupportedArrayError.build(action, reason, f"{{{hint}}}")

    def paths(self, _: object, form: _Form) -> list[str]:
        """Return paths by key or by name."""
        items = [f"[{key!r}]" for key in form.keys]
        items[: len(self._labels)] = [f".{label}" for label in self._labels]
        return [*items, *(f".{_label_of(storage)}" for storage in form.storages)]

    def is_same(self, x: Any, form: _Form) -> bool:
        """Return True if the object has the same children under the same keys."""
        now = self.flatten(x)[1]
        return is_same(now.children, form.children) and (not self._mapping or is_same(now.keys, form.keys))


def is_struct_sequence(cls: type) -> bool:
    """Return True if C code has made a class of tuples, such as `time.struct_time`."""
    return cls.__bases__ == (tuple,) and "n_sequence_fields" in vars(cls) and not cls.__flags__ & _IS_BASE


def _class_attribute(cls: type, word: str) -> Any:
    """Return an attribute of a class or its bases, without its metaclass; an empty tuple if there is none."""
    return next((vars(of)[word] for of in cls.__mro__ if word in vars(of)), ())


def _dict_of(cls: type) -> Any:
    """Return the descriptor of the `__dict__` of instances, or None if they have none."""
    found = (vars(of).get("__dict__") for of in cls.__mro__)
    return next((it for it in found if type(it) is GetSetDescriptorType), None)


def _label_of(storage: _Storage) -> str:
    return storage.__name__ if isinstance(storage, MemberDescriptorType) else str(storage)


def _has_any(it: object, *words: str) -> bool:
    return any(hasattr(type(it), word) for word in words)


def _is_lazy_property(it: object) -> bool:
    """Return True for a descriptor like `cached_property`, whose result the object stores under its name."""
    if not _has_any(it, "__get__") or _has_any(it, "__set__", "__delete__") or callable(it):
        return False
    makes_methods = isinstance(it, (classmethod, partialmethod, singledispatchmethod))
    return not makes_methods and any(map(callable, getattr(it, "__dict__", {}).values()))


_UNPACKED = "torch.nn.utils.rnn.pad_packed_sequence(x)"


class _PackedSequence(_StructuralContainer):
    """Torch's packed sequences, whose lengths stay on the host and whose indices stay integers."""

    def flatten(self, x: Any) -> tuple[list[Any], _Form]:
        """Return the parts of a named tuple, and mark those that keep their dtype as structural arrays."""
        (data, *others), form = super().flatten(x)
        fixed = [
            each if each is None else StructuralArray(each, on_host=i == 0, instead=_UNPACKED)
            for i, each in enumerate(others)
        ]
        return [data, *fixed], form

    def unflatten(self, form: _Form, parts: list[Any]) -> Any:
        """Return a packed sequence of arrays of any library."""
        arrays = [part.array if type(part) is StructuralArray else part for part in parts]
        return super().unflatten(form, arrays)


def is_same(xs: Collection[Any], ys: Collection[Any]) -> bool:
    """Return True if both hold the same objects in the same order."""
    return len(xs) == len(ys) and all(map(is_, xs, ys))


def _index_paths(_: object, form: Collection[Any]) -> list[str]:
    return [f"[{i}]" for i in range(len(form))]


def _flatten_dict(x: dict[Any, Any]) -> tuple[Collection[Any], dict[Any, Any]]:
    form = x.copy()
    return form.values(), form


def _flatten_list(x: list[Any]) -> tuple[list[Any], list[Any]]:
    form = x.copy()
    return form, form


PLAIN: dict[type, Container] = {
    dict: Container(
        dict,
        _flatten_dict,
        lambda form, parts: dict(zip(form, parts, strict=True)),
        lambda _, form: [f"[{key!r}]" for key in form],
        lambda x, form: is_same(x, form) and all(map(is_, x.values(), form.values())),
    ),
    list: Container(list, _flatten_list, lambda _, parts: list(parts), _index_paths, is_same),
    tuple: Container(tuple, lambda x: (x, x), lambda _, parts: tuple(parts), _index_paths),
}
"""The classes that nearly all trees consist of."""
