"""The classes of containers: how to flatten each into its children, and build a similar one of others.

A class that is registered with a library is flattened by its registration. Any other class is flattened by
structure: the items of its builtin base class, such as dict, then the fields of a dataclass or attrs class.
Both are read and written directly and not by code of the class, which may count, scale or refuse items.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import fields
from enum import Enum
from types import BuiltinFunctionType, MemberDescriptorType, NoneType
from typing import Any, NamedTuple, cast

from xbridge._core.devices import CPU
from xbridge._core.literals import NUMBERS
from xbridge._engine import verbs
from xbridge._host.importers import is_exporter
from xbridge._plan.options import CallOptions
from xbridge._registry.registry import backend_for
from xbridge.errors import UnsupportedArrayError, type_of, with_article
from xbridge.tree.registered import find_registration

PLAIN_TYPES = (str, bytes, *NUMBERS, NoneType)
"""Leaves of these types are not arrays in any library."""

_BASES = (OrderedDict, defaultdict, dict, list, deque, tuple, object)


class Container(NamedTuple):
    """A class of containers, with the functions that flatten and build its objects."""

    cls: type
    flatten: Callable[[Any], tuple[Any, Any]]
    """Return the children of a container, and its form: all else that is needed to build a similar one."""
    unflatten: Callable[[Any, list[Any]], Any]
    """Return a similar container, of a form and new children."""
    paths: Callable[[Any, Any], list[str]]
    """Return the path to each child, such as ``.x`` or ``['x']``, for a container and its form."""


class Structure(NamedTuple):
    """The form of a container of a class that is not registered."""

    model: Any
    """The container itself."""
    keys: Collection[Any]
    """The keys of its items, which are its first children."""
    fields: Collection[str]
    """The names of its fields, which are its other children."""
    attributes: Mapping[str, Any]
    """All other attributes that it stores."""


def find_container(x: object) -> Container | None:
    """Return the container class of `x`, or None if it is a leaf."""
    cls: Any = type(x)
    if cls in PLAIN:
        return PLAIN[cls]
    if cls in PLAIN_TYPES or cls is _get_loaded("torch", "Size") or backend_for(cls) is not None:
        return None
    # The libraries register builtin containers too, but keep less of them, such as no default factory.
    registered = None if cls in _BASES else find_registration(cls, x)
    if registered:
        return Container(cls, *registered)
    # A class that exports an array stands for that array, whatever fields it has.
    return None if is_exporter(x) else _find_unregistered(cls)


def is_packed_sequence(cls: type) -> bool:
    """Return True for torch's `PackedSequence`, whose data alone is converted."""
    return cls is _get_loaded("torch.nn.utils.rnn", "PackedSequence")


def _get_loaded(module: str, name: str) -> Any:
    """Return an attribute of a module; an empty tuple if the program has not imported the module."""
    return getattr(sys.modules.get(module), name, ())


def _find_unregistered(cls: type) -> Container | None:
    """Return the container class of a class with a builtin base or with fields; None for others.

    A class with another base in C is a leaf, because such a base may hold more than attributes show.
    """
    if is_packed_sequence(cls):
        return Container(cls, lambda x: ([x.data], x), _unflatten_packed, lambda *_: [".data"])
    bases = (of for of in cls.__mro__ if of in _BASES or type(vars(of).get("__new__")) is BuiltinFunctionType)
    base = next(bases)
    if base not in _BASES or issubclass(cls, (Enum, _get_loaded("torch.nn", "Module"))):
        return None
    names: list[str] = ["data"] if issubclass(cls, (UserDict, UserList)) else []
    if _class_attribute(cls, "__dataclass_fields__"):
        names += [field.name for field in fields(cast("Any", cls))]
    names += [field.name for field in _class_attribute(cls, "__attrs_attrs__")]
    if base is object and not names:
        return None
    found = _Unregistered(cls, base, tuple(dict.fromkeys(names)))
    return Container(cls, found.flatten, found.unflatten, found.paths)


def _class_attribute(cls: type, name: str, default: Any = ()) -> Any:
    """Return an attribute of a class or its bases, without its metaclass; `default` if there is none."""
    return next((vars(of)[name] for of in cls.__mro__ if name in vars(of)), default)


class _Unregistered:
    """The functions of a class that is not registered, with a builtin base and the names of its fields."""

    def __init__(self, cls: type, base: Any, fields: Collection[str]) -> None:
        self._cls, self._base, self._fields = cls, base, fields
        self._slots = {
            name: it
            for of in reversed(cls.__mro__)
            for name, it in vars(of).items()
            if type(it) is MemberDescriptorType
            # Any other slot of an attrs class has the result of a `cached_property`.
            and (name in fields or "__attrs_attrs__" not in vars(of))
        }

    def flatten(self, x: Any) -> tuple[list[Any], Structure]:
        """Return the items, then the fields that are set."""
        base, is_dict = self._base, issubclass(self._base, dict)
        items = [] if base is object else list(base.values(x) if is_dict else base.__iter__(x))
        keys = list(self._base.keys(x)) if is_dict else range(len(items))
        attributes = self._read_attributes(x)
        fields = [name for name in self._fields if name in attributes]
        return [*items, *map(attributes.pop, fields)], Structure(x, keys, fields, attributes)

    def unflatten(self, form: Structure, parts: list[Any]) -> Any:
        """Build an object with new items and fields, and the same other attributes."""
        count = len(form.keys)
        made, own = self._with_items(form, parts[:count]), _own_attributes(form.model)
        for name, value in (*form.attributes.items(), *zip(form.fields, parts[count:], strict=True)):
            if name in own or name not in self._slots:
                vars(made)[name] = value
            else:
                self._slots[name].__set__(made, value)
        return made

    def paths(self, _: object, form: Structure) -> list[str]:
        """Return paths by key or by name."""
        names = getattr(self._cls, "_fields", ()) if self._base is tuple else ()
        items = [f".{name}" for name in names] or [f"[{key!r}]" for key in form.keys]
        return [*items, *(f".{name}" for name in form.fields)]

    def _with_items(self, form: Structure, items: list[Any]) -> Any:
        """Return a new object with items, and all else that its builtin base knows."""
        base, model = self._base, form.model
        if base is tuple:
            return tuple.__new__(self._cls, items)
        made = base.__new__(self._cls)
        if base is list:
            list.extend(made, items)
        elif base is deque:
            deque.__init__(made, items, deque.maxlen.__get__(model))
        elif base is not object:
            if getattr(model, "__dict__", None) is model:  # its items are its attributes too
                made.__dict__ = made
            if base is defaultdict:
                defaultdict.__init__(made, model.default_factory)
            for key, item in zip(form.keys, items, strict=True):
                base.__setitem__(made, key, item)
        return made

    def _read_attributes(self, x: Any) -> dict[str, Any]:
        """Return the attributes that an object stores, except those that a descriptor has computed."""
        stored = {
            name: value
            for name, value in _own_attributes(x).items()
            if name in self._fields or not _stores_result(_class_attribute(self._cls, name))
        }
        for name, slot in self._slots.items():
            with suppress(AttributeError):  # an empty slot
                stored.setdefault(name, slot.__get__(x))
        for name in self._fields:
            it = _class_attribute(self._cls, name, None)
            if name in stored or name in self._slots or it is None:
                continue
            if hasattr(type(it), "__set__"):
                hint = ", ".join(f"{field!r}: x.{field}" for field in self._fields)
                action = f"flatten {with_article(self._cls.__name__)}"
                reason = f"its class stores field {name!r} by {type_of(it)} in an unknown place"
                raise UnsupportedArrayError.build(action, reason, f"{{{hint}}}")
            if not hasattr(type(it), "__get__"):
                stored[name] = it  # the default, which the class alone has
        return stored


def _own_attributes(x: Any) -> Mapping[str, Any]:
    """Return the attributes in the `__dict__` of an object, unless these are its items."""
    own = vars(x) if type(x).__dictoffset__ else {}
    return {} if own is x else own


def _stores_result(it: Any) -> bool:
    """Return True for a `cached_property`, whose result the object stores under its name."""
    stores = hasattr(type(it), "__get__") and not hasattr(type(it), "__set__")
    return stores and not callable(it) and not isinstance(it, classmethod)


def _unflatten_packed(x: Any, parts: list[Any]) -> Any:
    """Return a packed sequence of other data, beside which torch demands tensors of int64 to unpack it.

    The lengths are on the host, and so are the indices unless torch has the data.
    """
    (data,), others = parts, x[1:]
    owner = backend_for(type(data))
    if data is not x.data and owner:
        there = owner.device_of(data) if owner.name == "torch" else CPU
        others = [
            y if y is None else verbs.to_backend(y, "torch", CallOptions(place))
            for y, place in zip(others, (CPU, there, there), strict=True)
        ]
    return tuple.__new__(type(x), (data, *others))


PLAIN: dict[type, Container] = {it.cls: it for it in map(_find_unregistered, (dict, list, tuple)) if it}
"""The classes that nearly all trees consist of."""
