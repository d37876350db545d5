"""Flattener of the arguments or the result of a call: its arrays, its numbers, and its structure.

The structure consists of nested tuples and has a hash, so that rules are found by it. Integers and floats
are not part of it, because a compiler may make them variables. Constants are compared by type and value.

A compiler follows `flatten` line by line.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, ValuesView
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from inspect import signature
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from xbridge._core import dynamo
from xbridge._core.dynamo import constant
from xbridge._core.literals import NUMBERS
from xbridge._derive.treedef import ARRAY
from xbridge._registry.registry import are_arrays
from xbridge.errors import FOREIGN_ERRORS, UnsupportedArrayError, with_article
from xbridge.tree.containers import find_container

if TYPE_CHECKING:
    from xbridge._derive.treedef import TreeDef

_STANDARD = ("builtins", "itertools")
"""Modules of iterators. Their items can be read once, so arrays in them cannot be found before the call."""

LEAVES = (str, bytes, type(None), *NUMBERS)
"""Types of arguments that are never arrays, and have no arrays in them."""


def flatten(x: Any, arrays: list[Any], numbers: list[Any] | None) -> TreeDef:
    """Return the form of a tree, and append its arrays and its numbers. With None, numbers are arrays."""
    # Exact types first, the most common ones at the top: this runs for each argument of each call that is not
    # repeated by its types. Lists are unpacked into tuples, because a compiler does not follow generators.
    cls = type(x)
    if cls is tuple:
        return ("tuple", *[flatten(child, arrays, numbers) for child in x])
    if numbers is None and cls in NUMBERS:
        arrays.append(x)
        return ARRAY
    if numbers is not None and (cls is int or cls is float):
        numbers.append(x)
        return "int" if cls is int else "float"
    if cls in LEAVES:
        return ("=", cls, x if cls is not complex else repr(x), x)
    if cls is list:
        return ("list", *[flatten(child, arrays, numbers) for child in x])
    if cls is dict:
        keys = tuple(x)
        if any(type(key) is not str and are_arrays(type(key)) for key in keys):
            raise hidden_arrays_error("the keys of a dict", "list(x.items())")
        children = [flatten(child, arrays, numbers) for child in x.values()]
        return ("dict", keys, tuple([_identify_key(key) for key in keys]), *children)
    if are_arrays(cls):
        arrays.append(x)
        return ARRAY
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return ("named", cls, *[flatten(child, arrays, numbers) for child in x])
    return _flatten_other(x, arrays, numbers)


def _identify_key(key: Any) -> Any:
    """Return what tells a key of a dict from others that compare equal."""
    cls = type(key)
    return cls if cls is str else (cls, identify(key))


def _flatten_other(x: Any, arrays: list[Any], numbers: list[Any] | None) -> TreeDef:
    """Flatten a registered container or a dataclass that holds an array; anything else is a constant."""
    if numbers is not None and type(x) in dynamo.symbols:
        numbers.append(x)
        return dynamo.symbols[type(x)]
    if dynamo.is_compiling():  # which can follow fields, and cannot take an object as a constant
        names = _init_fields(type(x))
        if names is not None:
            return ("data", type(x), names, *[flatten(getattr(x, name), arrays, numbers) for name in names])
    node = _open_container(x)
    if node is None:
        _refuse_hidden(x)
        return ("=", type(x), identify(x), x)
    container, children, form = node
    inside: list[Any] = []
    inner: list[Any] | None = None if numbers is None else []
    forms = [flatten(child, inside, inner) for child in children]
    if not inside:
        return ("=", type(x), identify(x), x)
    arrays.extend(inside)
    if numbers is not None and inner is not None:
        numbers.extend(inner)
    return ("node", _Node(container, form, x, len(forms)), *forms)


@constant
def _init_fields(cls: type) -> tuple[str, ...] | None:
    """Return the names of the fields of a dataclass, if they are what makes an instance; else None."""
    names = tuple([field.name for field in fields(cls)]) if is_dataclass(cls) else ()
    return names if names and {*names} == {*signature(cls).parameters} else None


@constant
def _open_container(x: Any) -> Any:
    container = find_container(x)
    return None if container is None else (container, *container.flatten(x))


@constant
def _refuse_hidden(x: Any) -> None:
    """Raise if an object that is not a container of ours holds arrays, or may hold them."""
    cls = type(x)
    what = with_article(cls.__name__)
    if cls.__module__ in _STANDARD and hasattr(cls, "__next__"):
        raise hidden_arrays_error(what, "list(x)")
    inside: list[Any] = []
    hint = "list(x)"
    if issubclass(cls, Mapping):
        hint = "dict(x)"
        flatten(dict(x), inside, [])
    elif issubclass(cls, SimpleNamespace):
        hint = "vars(x)"
        flatten(vars(x), inside, [])
    elif issubclass(cls, (AbstractSet, ValuesView)):
        flatten(list(x), inside, [])
    if inside:
        raise hidden_arrays_error(what, hint)


def hidden_arrays_error(what: str, hint: str) -> UnsupportedArrayError:
    """Return the error for arrays in an object that cannot be built again with other arrays."""
    reason = "it cannot be made again with other arrays"
    return UnsupportedArrayError.build(f"convert the arrays in {what}", reason, hint)


class _Node:
    """A container and its form, compared by all that is not in its children."""

    def __init__(self, container: Any, form: Any, x: Any, count: int) -> None:
        self.container = container
        self.form = form
        self.labels: list[str] = [f"[{i}]" for i in range(count)]
        hidden = getattr(form, "stored", None)
        if hidden is None:
            rest: Any = form
        else:
            self.labels = container.paths(x, form)
            names = [name for name in hidden if name not in form.storages]
            rest = (self.labels, [(name, hidden[name]) for name in names])
        self._mark = (container.cls, _make_hashable(rest))

    def __hash__(self) -> int:
        return hash(self._mark)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Node) and self._mark == other._mark


def _make_hashable(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return tuple(map(_make_hashable, x))
    if isinstance(x, dict):
        return tuple((_make_hashable(key), _make_hashable(child)) for key, child in x.items())
    return type(x), identify(x), x


@constant
def identify(x: Any) -> str | bytes | int | None:
    """Return what tells a constant from others of its type that compare equal; None if nothing does.

    ``0.0`` equals ``-0.0``, ``frozenset({1})`` equals ``frozenset({1.0})``, and a dataclass may have fields
    that it does not compare.
    """
    cls = type(x)
    if cls in LEAVES:
        return repr(x) if cls in (float, complex) else None
    compares = getattr(cls, "__eq__") is not object.__eq__  # noqa: B009 -- a type checker knows only one of them
    if not compares or cls.__hash__ is None:
        return None
    try:
        return pickle.dumps(x)
    except (pickle.PickleError, *FOREIGN_ERRORS):
        return id(x)
