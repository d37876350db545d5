"""The structure of a tree without its arrays: flatten trees, build them, and compare their structures.

A `TreeDef` consists of nested tuples, and is the key of a rule. Constants are part of it, and are compared by
type and value. Those of traced code are not, because a compiler may turn them into variables. Containers are
those of `xbridge.tree`, whose own `TreeArrays` has the structure of one tree, made for speed with many
leaves, and not hashable.

A compiler traces `flatten` and `unflatten` line by line, which limits their Python.
"""

from __future__ import annotations

import pickle
from collections import namedtuple
from collections.abc import Mapping, ValuesView
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache, partial
from gc import get_referents
from itertools import repeat
from math import nan
from types import FunctionType, MemberDescriptorType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

from xbridge.errors import FOREIGN_ERRORS, OptionError, UnsupportedArrayError, with_article
from xbridge.extend import backend_for, containers, tracing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TreeDef: TypeAlias = Any
"""The structure of a tree: `ARRAY`, ``("=", type, identity, value)`` for a constant, or
``(kind, data, *children)`` for a container. In traced code, constants are "int", "float" and "object"."""

ARRAY = "*"
"""The structure of an array."""

NONE = ("=", type(None), None, None)
"""The structure of None."""

NUMBERS = (bool, int, float, complex)
"""The number types of Python."""

LITERALS = (*NUMBERS, list, tuple, range)
"""The types of numbers and of nested lists of them, of which `xbridge.asarray` makes arrays."""

LEAVES = (str, bytes, type(None), *NUMBERS)
"""Types of arguments that are never arrays, and have no arrays in them."""

_HIDING = (Mapping, SimpleNamespace, AbstractSet, ValuesView)
"""Classes of objects that cannot be made again with other arrays."""

_IS_HEAP_TYPE = 1 << 9
"""CPython's flag of a class that is made by a class statement or like one."""

_NOTHING: Iterator[Any] = iter(())

_SLOT = object()
"""What stands for an array in a tree whose paths are read."""


class _Order(tuple[Any, ...]):
    """The keys of a dict in its own order, which is no part of the structure: any two are equal."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Order)

    def __hash__(self) -> int:
        return 0


@dataclass(frozen=True)
class _Node:
    """A container in a `TreeDef`. Two are equal if their classes and keys are, whatever their children."""

    mark: Any
    container: Any = field(compare=False)
    form: Any = field(compare=False)


def _make_node(container: Any, form: Any, count: int) -> _Node:
    """Return the node of a container with `count` children."""
    facts = form
    is_packed = containers.is_packed_sequence(container.cls)
    if is_packed or isinstance(form, containers.Structure):
        # The form has the container itself, whose arrays nothing may keep.
        _, form = container.flatten(container.unflatten(form, [None] * count))
    if is_packed:
        facts = [None if x is None else x.tolist() for x in form]
    elif isinstance(form, containers.Structure):
        facts = [*form.keys], [*form.fields], dict(form.attributes)
    return _Node((container.cls, _make_hashable(facts)), container, form)


def _make_hashable(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return tuple(map(_make_hashable, x))
    if isinstance(x, dict):
        return tuple((_make_hashable(key), _make_hashable(child)) for key, child in x.items())
    return type(x), identify(x), x


# -- leaves --------------------------------------------------------------------------------------------------
def are_arrays(cls: type) -> bool:
    """Return True if a backend owns instances of a class. `numpy.str_`, a string too, does not count."""
    return backend_for(cls) is not None and not issubclass(cls, (str, bytes))


def _constant(x: Any) -> TreeDef:
    """Return the structure of an object that is not flattened."""
    return ("=", type(x), identify(x), x)


@tracing.constant_in_traces
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


def _hidden_arrays_error(what: str, hint: str = "a tuple or a dict of them") -> UnsupportedArrayError:
    reason = "it cannot be made again with other arrays"
    return UnsupportedArrayError.build(f"convert the arrays in {what}", reason, hint)


def _refuse_hidden(x: Any, *, of_any_class: bool) -> None:
    """Raise if an object that is not a container is an iterator, or hides arrays.

    Arrays in any object of a result would leave their library unconverted. In an argument, an object such as
    a model may have arrays of its own.
    """
    cls = type(x)
    if cls.__module__ in ("builtins", "itertools") and hasattr(cls, "__next__"):  # it can be read only once
        raise _hidden_arrays_error(with_article(cls.__name__), "list(x)")
    if _holds_arrays(x) if of_any_class else issubclass(cls, _HIDING) and _has_arrays_inside(x):
        is_set = issubclass(cls, (AbstractSet, ValuesView))
        raise _hidden_arrays_error(with_article(cls.__name__), "list(x)" if is_set else "a dict of them")


def _has_arrays_inside(x: Any) -> bool:
    items = vars(x) if isinstance(x, SimpleNamespace) else dict(x) if isinstance(x, Mapping) else list(x)
    return has_arrays(flatten(items, [], []))


def _holds_arrays(x: object) -> bool:
    """Return True if an array can be reached from an object, not counting modules, classes and globals."""
    seen: dict[int, object] = {}
    rest = [x]
    while rest:
        x = rest.pop()
        if id(x) in seen or isinstance(x, (type, ModuleType)):
            continue
        seen[id(x)] = x
        if are_arrays(type(x)):
            return True
        if isinstance(x, FunctionType):
            rest += [x.__closure__, x.__defaults__, x.__kwdefaults__, vars(x)]
        else:
            rest += get_referents(x)
    return False


# -- flatten -------------------------------------------------------------------------------------------------
def flatten(x: Any, arrays: list[Any], traced: list[Any] | None) -> TreeDef:
    """Return the structure of a tree, and append its arrays, and the constants of traced code.

    With None for `traced`, as for the result of a rule, numbers are arrays too, and the items of a dict are
    sorted by key, because each run may have them in another order.
    """
    # This runs for each argument of a call that is not cached, so it tests exact types first. Tuples are made
    # of lists, because a compiler does not follow generators.
    cls = type(x)
    kind, data, children = "tuple", None, x
    if cls in LEAVES:
        return _flatten_leaf(x, arrays, traced)
    if cls is list:
        kind = "list"
    elif cls is dict:
        keys, order = (list(x), None) if traced is not None else (sorted(x, key=repr), _Order(x))
        kind, data = "dict", (tuple([_flatten_key(key) for key in keys]), order)
        children = [x[key] for key in keys]
    elif are_arrays(cls):
        arrays.append(x)
        return ARRAY
    elif cls is not tuple:
        kind, data = "named", _named_tuple_class(cls, is_traced=tracing.is_traced())
        if data is None:
            return _flatten_other(x, arrays, traced)
    return (kind, data, *[flatten(child, arrays, traced) for child in children])


def _flatten_leaf(x: Any, arrays: list[Any], traced: list[Any] | None) -> TreeDef:
    """Return the structure of a number, a string or None."""
    cls = type(x)
    if traced is None and cls in NUMBERS:
        arrays.append(x)
        return ARRAY
    if traced is not None and (cls is int or cls is float) and tracing.is_traced():
        traced.append(x)
        return cls.__name__
    # All NaNs of floats are one constant; a complex number with one has another part, which is kept.
    value = nan if cls is float and x != x else x  # noqa: PLR0124
    return ("=", cls, repr(x) if cls is float or cls is complex else None, value)


def _flatten_key(key: Any) -> TreeDef:
    """Return a key of a dict as a constant, which differs from equal keys of other types."""
    cls = type(key)
    if cls is not str and are_arrays(cls):
        raise _hidden_arrays_error("the keys of a dict", "list(x.items())")
    return ("=", cls, None, key) if cls is str else _constant(key)


@tracing.constant_in_traces
def _named_tuple_class(cls: type, *, is_traced: bool) -> Any:
    """Return the class of a named tuple, or one like the class of a struct sequence; None for others.

    A packed sequence is one in traced code, where its lengths have no values.
    """
    if containers.is_packed_sequence(cls) and not is_traced:
        return None
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return cls
    words = vars(cls)
    is_like_one = issubclass(cls, tuple) and words.get("n_fields") == len(words.get("__match_args__", ()))
    return _make_named_tuple_class(cls) if is_like_one else None


@cache  # such classes are few, and made by C code that keeps them
def _make_named_tuple_class(cls: Any) -> Any:
    """Return a named tuple class like `torch.return_types.max`, because it is a tree for JAX."""
    return namedtuple(cls.__name__, cls.__match_args__)  # noqa: PYI024 -- names are data


def _flatten_other(x: Any, arrays: list[Any], traced: list[Any] | None) -> TreeDef:
    """Flatten any other container if it holds an array; else the object is a constant."""
    if traced is not None and tracing.is_traced():
        return _flatten_traced(x, traced)
    if traced is not None and type(x) in tracing.symbolic_numbers:
        traced.append(x)
        return tracing.symbolic_numbers[type(x)]
    container = containers.find_container(x)
    if container is None:
        _refuse_hidden(x, of_any_class=traced is None)
        return _constant(x)
    children, form = container.flatten(x)
    inside: list[Any] = []
    symbols: list[Any] | None = None if traced is None else []
    treedefs = [flatten(child, inside, symbols) for child in children]
    if not inside:
        return _constant(x)
    arrays += inside
    if traced is not None and symbols:
        traced += symbols
    return ("node", _make_node(container, form, len(treedefs)), *treedefs)


# -- traced code ---------------------------------------------------------------------------------------------
def _flatten_traced(x: Any, traced: list[Any]) -> TreeDef:
    """Return the mark of an object that a compiler traces as a constant, and append it to the constants."""
    cls = type(x)
    inside: list[Any] = []
    # A compiler shows an object without its attributes to code that it does not trace, so they are read here.
    parts = (x.func, x.args, x.keywords) if cls is partial else [getattr(x, name) for name in _field_names(x)]
    flatten(parts, inside, [])
    if inside:
        _refuse_in_traces(cls)
    count, attributes = _read_attributes(x)
    if count is not None and len(x.__dict__) != count:
        _refuse_changed(cls)
    for name, word, value in attributes:
        now = getattr(x, name, None)
        kind = type(now)
        if (kind.__name__ != word or now != value) if word else kind in LEAVES:
            _refuse_changed(cls)
    if cls is FunctionType:
        # A compiler regards functions of the same code as equal, whatever their closures and defaults are.
        # With `id` it also checks that the function is the same object.
        id(x)
    traced.append(x)
    return "object"


@tracing.constant_in_traces
def _field_names(x: object) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass; raise for any other container."""
    names = tuple(getattr(type(x), "__dataclass_fields__", ()))
    if not names and containers.find_container(x) is not None:
        _refuse_in_traces(type(x))
    if not names:
        _refuse_hidden(x, of_any_class=isinstance(x, partial))
    return names


@tracing.constant_in_traces
def _read_attributes(x: object) -> tuple[int | None, list[tuple[str, str, Any]]]:
    """Return the number of attributes in the dict of an object, and the names, with type and value of leaves.

    They are those before the program runs. An object that the program makes has none yet.
    """
    cls = type(x)
    if not cls.__flags__ & _IS_HEAP_TYPE or issubclass(cls, (type, partial)):
        return None, []
    names = [
        n for base in cls.__mro__ for n, own in vars(base).items() if isinstance(own, MemberDescriptorType)
    ]
    count = len(vars(x)) if cls.__dictoffset__ else None
    values = [(name, getattr(x, name, None)) for name in [*names, *(vars(x) if count else ())]]
    # NaN differs from itself, so it is not compared.
    return count, [
        (n, type(v).__name__, v) if type(v) in LEAVES else (n, "", None)
        for n, v in values
        if type(v) is not float or v == v  # noqa: PLR0124
    ]


@tracing.constant_in_traces
def _refuse_changed(cls: type) -> None:
    """Raise for an object whose attributes the compiler holds back until the program has run."""
    raise OptionError.build(
        f"pass {with_article(cls.__name__)} in compiled code",
        "the same program makes or changes it",
        "an object made outside of the program, or its numbers as arguments",
    )


@tracing.constant_in_traces
def _refuse_in_traces(cls: type) -> None:
    raise _hidden_arrays_error(f"{with_article(cls.__name__)} in compiled code")


def traceable(treedef: TreeDef) -> TreeDef:
    """Return the structure that a compiler can make; raise for other containers."""
    if isinstance(treedef, str) or treedef[0] == "=":
        return treedef
    kind, data, *children = treedef
    if kind == "node":
        _refuse_in_traces(data.container.cls)
    if containers.is_packed_sequence(data):
        _refuse_in_traces(data)
    if kind == "dict":
        data = data[0], data[1] and tuple(data[1])
    return (kind, data, *map(traceable, children))


def with_constants(treedef: TreeDef, constants: dict[str, Iterator[Any]]) -> TreeDef:
    """Return a structure from traced code with its constants, of each kind in order."""

    def fill(leaf: TreeDef) -> TreeDef:
        is_slot = isinstance(leaf, str) and leaf != ARRAY
        return flatten(next(constants[leaf]), [], []) if is_slot else leaf

    return _map_leaves(fill, treedef)


# -- build ---------------------------------------------------------------------------------------------------
def unflatten(treedef: TreeDef, arrays: Iterator[Any], traced: Iterator[Any] = _NOTHING) -> Any:
    """Build the tree of a structure from arrays, and from the constants of traced code."""
    if isinstance(treedef, str):
        return next(arrays if treedef == "*" else traced)
    kind, data = treedef[:2]
    if kind == "=":
        return treedef[3]
    parts = [unflatten(child, arrays, traced) for child in treedef[2:]]
    if kind == "tuple":
        return tuple(parts)
    if kind == "dict":
        items = dict(zip([key[3] for key in data[0]], parts, strict=True))
        return items if data[1] is None else {key: items[key] for key in data[1]}
    if kind == "named":
        return tuple.__new__(data, parts)  # a compiler cannot call a class that it has from a constant
    return data.container.unflatten(data.form, parts) if kind == "node" else parts


# -- the children of a structure -----------------------------------------------------------------------------
def children_of(treedef: TreeDef) -> tuple[TreeDef, ...]:
    """Return the structures of the children of a container; nothing for a leaf."""
    children: tuple[TreeDef, ...] = () if isinstance(treedef, str) or treedef[0] == "=" else treedef[2:]
    return children


def _map_leaves(fn: Callable[[TreeDef], TreeDef], treedef: TreeDef) -> TreeDef:
    if isinstance(treedef, str) or treedef[0] == "=":
        return fn(treedef)
    return (*treedef[:2], *[_map_leaves(fn, child) for child in treedef[2:]])


def has_arrays(treedef: TreeDef) -> bool:
    """Return True if there is an array in the structure."""
    return bool(treedef == ARRAY) or any(map(has_arrays, children_of(treedef)))


def mask_leaves(treedef: TreeDef, chosen: Iterator[bool]) -> TreeDef:
    """Return the structure with None for all leaves except the chosen arrays."""
    return _map_leaves(lambda leaf: ARRAY if leaf == ARRAY and next(chosen) else NONE, treedef)


def leaves_like(treedef: TreeDef, tree: Any, wrong: Callable[[], OptionError]) -> list[Any]:
    """Return what a tree has in the place of each array of a structure. None may stand for any subtree."""
    if treedef == ARRAY:
        if isinstance(tree, (tuple, list, dict, str)):
            raise wrong()
        return [tree]
    children = children_of(treedef)
    parts = [None] * len(children) if tree is None or not children else _children_like(treedef, tree)
    if len(parts) != len(children):
        raise wrong()
    return [
        leaf for child, part in zip(children, parts, strict=True) for leaf in leaves_like(child, part, wrong)
    ]


def _children_like(treedef: TreeDef, tree: Any) -> list[Any]:
    """Return the children of a tree that belong to those of a structure; none if it is another container."""
    kind, data = treedef[:2]
    if kind == "node":
        return list(data.container.flatten(tree)[0]) if type(tree) is data.container.cls else []
    if kind == "dict":
        keys = [key[3] for key in data[0]]
        return [tree[key] for key in keys] if isinstance(tree, dict) and tree.keys() == set(keys) else []
    return list(tree) if isinstance(tree, (tuple, list)) else []


def argument_treedefs(treedef: TreeDef) -> list[TreeDef]:
    """Return the structures of all arguments from that of ``(args, kwargs)``."""
    return [*children_of(treedef[2]), *children_of(treedef[3])]


def argument_paths(treedef: TreeDef) -> list[str]:
    """Return the names of the arrays, for errors, from the structure of ``(args, kwargs)``."""
    keys = [*range(len(children_of(treedef[2]))), *[key[3] for key in treedef[3][1][0]]]
    return [
        path
        for key, child in zip(keys, argument_treedefs(treedef), strict=True)
        for path in leaf_paths(child, f"argument {key!r}")
    ]


def leaf_paths(treedef: TreeDef, name: str) -> list[str]:
    """Return the names of the arrays in a tree that has a name."""
    return _slot_paths(unflatten(treedef, repeat(_SLOT), repeat(None)), name)


def _slot_paths(x: Any, name: str) -> list[str]:
    container = containers.find_container(x)
    if container is None:
        return [name] if x is _SLOT else []
    children, form = container.flatten(x)
    named = zip(container.paths(x, form), children, strict=True)
    return [path for label, child in named for path in _slot_paths(child, name + label)]
