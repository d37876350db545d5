"""Flatten the arguments or the result of a call into arrays, numbers and a hashable structure.

The structure, a `TreeDef`, is the key of a rule. Constants are part of it, and are compared by type and
value. Integers and floats are not, because a compiler may turn them into variables.

A compiler traces `flatten` line by line, which limits the Python that it is written in.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Mapping, ValuesView
from collections.abc import Set as AbstractSet
from dataclasses import is_dataclass
from functools import cache, partial
from types import FunctionType, MemberDescriptorType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from xbridge._core import tracing
from xbridge._core.literals import NUMBERS
from xbridge._core.tracing import constant_in_traces
from xbridge._registry.registry import are_arrays
from xbridge.errors import FOREIGN_ERRORS, UnsupportedArrayError, with_article
from xbridge.functions.treedef import ARRAY, FIRST_CHILD, children_of
from xbridge.tree.containers import Structure, find_container, is_struct_sequence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xbridge.functions.treedef import TreeDef

_BUILTIN = (Mapping, list, AbstractSet, ValuesView, deque)
_Slot = MemberDescriptorType

_STANDARD = ("builtins", "itertools")
"""The modules of iterators, which can be read only once, so that arrays in them cannot be found."""

LEAVES = (str, bytes, type(None), *NUMBERS)
"""Types of arguments that are never arrays, and have no arrays in them."""


def flatten(x: Any, arrays: list[Any], numbers: list[Any] | None) -> TreeDef:
    """Return the form of a tree, and append its arrays and numbers. With None, numbers are arrays too."""
    # This runs for each argument of a call that is not cached, so it tests exact types first, the most common
    # ones at the top. Tuples are made of lists, because a compiler does not follow generators.
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
    if _is_named_tuple(cls):
        return ("named", cls, *[flatten(child, arrays, numbers) for child in x])
    return _flatten_other(x, arrays, numbers)


@constant_in_traces
def _is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def _identify_key(key: Any) -> Any:
    """Return what distinguishes a key of a dict from others that compare equal, such as 1 from True."""
    cls = type(key)
    return cls if cls is str else (cls, identify(key))


def _flatten_other(x: Any, arrays: list[Any], numbers: list[Any] | None) -> TreeDef:
    """Flatten any other container if it holds an array; else the object is a constant."""
    if tracing.is_traced():
        form = _flatten_traced(x, arrays, numbers)
        if form is not None:
            return form
    elif numbers is not None and type(x) in tracing.symbolic_numbers:
        numbers.append(x)
        return tracing.symbolic_numbers[type(x)]
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
    if _is_like_named_tuple(type(x)):
        return ("named", _named_tuple_of(type(x)), *forms)  # type: ignore[arg-type] # every class has a hash
    return ("node", _Node(container, form, x, len(forms)), *forms)


def _flatten_traced(x: Any, arrays: list[Any], numbers: list[Any] | None) -> TreeDef:
    """Flatten an object as a compiler can follow it, by its attributes; return None if it cannot."""
    cls = type(x)
    if cls is partial:
        inside: list[Any] = []
        form = flatten((x.func, x.args, x.keywords), inside, numbers)
        if inside:
            refuse_traced(cls)
        return ("partial", *form[1:])
    if issubclass(cls, _BUILTIN):
        within: list[Any] = []
        flatten(list(x.values() if issubclass(cls, Mapping) else x), within, [])
        if within:
            refuse_traced(cls)
        return None
    named = _traced_named_tuple_of(cls)
    if named is not None:
        return ("named", named, *[flatten(child, arrays, numbers) for child in x])
    slots = _slots_of(cls)
    if slots is None:
        refuse_container(x)
        # A compiler regards functions of the same code as equal, whatever their closures and defaults are.
        # With `id` it also checks that the function is the same object.
        return ("=", cls, id(x) if cls is FunctionType else None, x)
    names = [*[name for name in slots if hasattr(x, name)], *vars_of(x)]
    return ("data", cls, tuple(names), *[flatten(getattr(x, name), arrays, numbers) for name in names])


def vars_of(x: Any) -> list[str]:
    """Return the names in the `__dict__` of an object, if it has one. A compiler traces this function."""
    return [*vars(x)] if hasattr(x, "__dict__") else []


@constant_in_traces
def _traced_named_tuple_of(cls: type) -> Any:
    """Return the named tuple class for a struct sequence; None if a class is not one."""
    return _named_tuple_of(cls) if _is_like_named_tuple(cls) else None


@constant_in_traces
def _slots_of(cls: type) -> tuple[str, ...] | None:
    """Return the names of the slots of a dataclass; None if a class is no dataclass."""
    if not is_dataclass(cls):
        return None
    return tuple([name for of in cls.__mro__ for name, it in vars(of).items() if isinstance(it, _Slot)])


@constant_in_traces
def refuse_traced(cls: type) -> None:
    """Raise for arrays in a container that compiled code cannot rebuild."""
    raise _untraceable_error(cls)


@constant_in_traces
def refuse_container(x: object) -> None:
    """Raise if an object is a container, because a compiler would treat the arrays in it as constants."""
    if find_container(x) is not None:
        raise _untraceable_error(type(x))
    _refuse_hidden(x)


def _untraceable_error(cls: type) -> UnsupportedArrayError:
    return hidden_arrays_error(
        f"{with_article(cls.__name__)} in compiled code", "a tuple, a dict or a dataclass of them"
    )


def traceable(form: TreeDef) -> TreeDef:
    """Return the form of a result with containers that a compiler can make."""
    if isinstance(form, str) or form[0] == "=":
        return form
    start = FIRST_CHILD[form[0]]
    children = [traceable(child) for child in form[start:]]
    if form[0] != "node":
        return (*form[:start], *children)
    cls: type = form[1].container.cls
    given = form[1].form
    if not is_dataclass(cls) or not isinstance(given, Structure) or given.keys:
        raise _untraceable_error(cls)
    rest = given.attributes
    names = (*given.fields, *rest)
    return ("data", cls, names, *children, *[("=", type(it), None, it) for it in rest.values()])


def without_objects(form: TreeDef, objects: list[Any]) -> TreeDef:
    """Return a form that a compiler can treat as a constant, and append the objects in it to a list.

    A compiler traces this function. It accepts an object as a constant only as an argument by itself.
    """
    if type(form) is str:
        return form
    if form[0] == "=":
        if form[1] in LEAVES:
            return form
        objects.append(form[3])
        return "object"
    start = FIRST_CHILD[form[0]]
    return (*form[:start], *[without_objects(child, objects) for child in form[start:]])


def with_objects(form: TreeDef, objects: Iterator[Any]) -> TreeDef:
    """Undo `without_objects`."""
    if form == "object":
        x = next(objects)
        return ("=", type(x), identify(x), x)
    if isinstance(form, str) or form[0] == "=":
        return form
    start = FIRST_CHILD[form[0]]
    return (*form[:start], *[with_objects(child, objects) for child in form[start:]])


@constant_in_traces
def _open_container(x: Any) -> Any:
    container = find_container(x)
    return None if container is None else (container, *container.flatten(x))


@constant_in_traces
def _refuse_hidden(x: Any) -> None:
    """Raise if an object that cannot be flattened holds arrays, or may hold them."""
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


def _is_like_named_tuple(cls: type) -> bool:
    """Return True for a struct sequence whose fields are its items, such as `torch.return_types.max`."""
    words = vars(cls)
    return is_struct_sequence(cls) and bool(words["n_fields"] == words["n_sequence_fields"])


@cache  # such classes are few, and made by C code that keeps them
def _named_tuple_of(cls: type) -> Any:
    """Return the named tuple class for a struct sequence. For JAX, only the named tuple is a tree."""
    base: Any = NamedTuple(cls.__name__, [(word, Any) for word in vars(cls)["__match_args__"]])  # type: ignore[misc] # names are data
    own = {
        "__slots__": (),
        "__module__": cls.__module__,
        "__origin__": cls,
        "__reduce__": _reduce_named_tuple,
    }
    return type(cls.__name__, (base,), own)


def _reduce_named_tuple(x: Any) -> tuple[Any, ...]:
    """Pickle a named tuple for a struct sequence, whose class pickle could not find."""
    return _make_named_tuple, (x.__origin__, tuple(x))


def _make_named_tuple(cls: type, items: tuple[Any, ...]) -> Any:
    """Return a named tuple for a struct sequence from its pickle."""
    return _named_tuple_of(cls)(*items)


def has_struct_sequences(form: TreeDef) -> bool:
    """Return True if named tuples replace struct sequences in a form."""
    return (form[0] == "named" and hasattr(form[1], "__origin__")) or any(
        map(has_struct_sequences, children_of(form))
    )


class _Node:
    """A container in a `TreeDef`. Two are equal if their classes and keys are, whatever their children."""

    def __init__(self, container: Any, form: Any, x: Any, count: int) -> None:
        self.container = container
        self.form = form
        self.labels: list[str] = [f"[{i}]" for i in range(count)]
        rest = form
        if isinstance(form, Structure):
            self.labels = container.paths(x, form)
            rest = (self.labels, [*form.attributes.items()])
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


@constant_in_traces
def identify(x: Any) -> str | bytes | int | None:
    """Return what distinguishes a constant from equal ones of its type; None if `==` distinguishes enough.

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
