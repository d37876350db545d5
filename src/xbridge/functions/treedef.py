"""The structure of a tree without its arrays: flatten trees, build them, and compare their structures.

A `TreeDef` consists of nested tuples, and is the key of a rule. Constants are part of it, and are compared by
type and value. Integers and floats are not, because a compiler may turn them into variables. Containers are
those of `xbridge.tree`, whose own `TreeArrays` has the structure of one tree, made for speed with many
leaves, and not hashable.

A compiler traces `flatten`, `unflatten` and `without_objects` line by line, which limits their Python.
"""

from __future__ import annotations

import pickle
from collections import deque, namedtuple
from collections.abc import Mapping, ValuesView
from collections.abc import Set as AbstractSet
from functools import cache, partial
from itertools import repeat
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

from xbridge.errors import FOREIGN_ERRORS, with_article
from xbridge.extend import containers, tracing
from xbridge.functions.leaves import LEAVES, NUMBERS, are_arrays, holds_arrays
from xbridge.functions.results import hidden_arrays_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Never

    from xbridge.errors import OptionError

TreeDef: TypeAlias = Any
"""The structure of a tree: `ARRAY`, "int", "float", ``("=", type, identity, value)`` for a constant, or
``(kind, data, *children)`` for a container."""

ARRAY = "*"
"""The structure of an array."""

NONE = ("=", type(None), None, None)
"""The structure of None."""

_STANDARD = ("builtins", "itertools")
"""The modules of iterators, which can be read only once, so that arrays in them cannot be found."""

_UNREBUILT: dict[Any, Callable[[Any], Any]] = {
    Mapping: dict,
    SimpleNamespace: vars,
    (AbstractSet, ValuesView): list,
}
"""Classes that cannot be made again with other arrays, and the call that makes a container of one."""


class _Order(tuple[Any, ...]):
    """The keys of a dict in its own order, which is no part of the structure: any two are equal."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Order)

    def __hash__(self) -> int:
        return 0


def flatten(x: Any, arrays: list[Any], numbers: list[Any] | None) -> TreeDef:
    """Return the structure of a tree, and append its arrays and numbers.

    With None for `numbers`, as for a result, numbers are arrays too, and the items of a dict are sorted by
    key, because each run may have them in another order.
    """
    # This runs for each argument of a call that is not cached, so it tests exact types first, the most common
    # ones at the top. Tuples are made of lists, because a compiler does not follow generators.
    cls = type(x)
    if cls is tuple:
        return ("tuple", None, *[flatten(child, arrays, numbers) for child in x])
    if numbers is None and cls in NUMBERS:
        arrays.append(x)
        return ARRAY
    if numbers is not None and (cls is int or cls is float):
        numbers.append(x)
        return "int" if cls is int else "float"
    if cls in LEAVES:
        return ("=", cls, x if cls is not complex else repr(x), x)
    if cls is list:
        return ("list", None, *[flatten(child, arrays, numbers) for child in x])
    if cls is dict:
        keys, order = (list(x), None) if numbers is not None else (sorted(x, key=repr), _Order(x))
        known = tuple([_flatten_key(key) for key in keys])
        return ("dict", (known, order), *[flatten(x[key], arrays, numbers) for key in keys])
    if are_arrays(cls):
        arrays.append(x)
        return ARRAY
    named = _named_tuple_class(cls)
    if named is not None:
        return ("named", named, *[flatten(child, arrays, numbers) for child in x])
    return _flatten_other(x, arrays, numbers)


def _flatten_key(key: Any) -> TreeDef:
    """Return a key of a dict as a constant, which differs from equal keys of other types."""
    cls = type(key)
    if cls is not str and are_arrays(cls):
        raise hidden_arrays_error("the keys of a dict", "list(x.items())")
    return ("=", cls, None if cls is str else identify(key), key)


_IS_BASE = 1 << 10
"""CPython's flag of a class that can be subclassed."""


@tracing.constant_in_traces
def _named_tuple_class(cls: type) -> Any:
    """Return the class of a named tuple, or one like the class of a struct sequence; None for others."""
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return cls
    words = vars(cls)
    like = _is_struct_sequence(cls) and words["n_fields"] == words["n_sequence_fields"]
    return _make_named_tuple_class(cls) if like else None


def _is_struct_sequence(cls: type) -> bool:
    """Return True if C code has made a class of tuples, such as `torch.return_types.max`."""
    return cls.__bases__ == (tuple,) and "n_sequence_fields" in vars(cls) and not cls.__flags__ & _IS_BASE


@cache  # such classes are few, and made by C code that keeps them
def _make_named_tuple_class(cls: type) -> Any:
    """Return a named tuple class like `torch.return_types.max`, because it is a tree for JAX."""
    return namedtuple(cls.__name__, vars(cls)["__match_args__"])  # noqa: PYI024 -- names are data


def _flatten_other(x: Any, arrays: list[Any], numbers: list[Any] | None) -> TreeDef:
    """Flatten any other container if it holds an array; else the object is a constant."""
    if tracing.is_traced():
        return _flatten_traced(x, numbers)
    if numbers is not None and type(x) in tracing.symbolic_numbers:
        numbers.append(x)
        return tracing.symbolic_numbers[type(x)]
    container = containers.find_container(x)
    if container is None:
        _refuse_hidden(x)
        if numbers is None and holds_arrays(x):  # they would leave their library unconverted
            raise hidden_arrays_error(with_article(type(x).__name__), "a tuple or a dict of them")
        return ("=", type(x), identify(x), x)
    children, form = container.flatten(x)
    inside: list[Any] = []
    inner: list[Any] | None = None if numbers is None else []
    treedefs = [flatten(child, inside, inner) for child in children]
    if not inside:
        return ("=", type(x), identify(x), x)
    arrays.extend(inside)
    if numbers is not None and inner is not None:
        numbers.extend(inner)
    return ("node", _Node(container, form, x, len(treedefs)), *treedefs)


def _flatten_traced(x: Any, numbers: list[Any] | None) -> TreeDef:
    """Return an object that a compiler traces as a constant; raise if it holds arrays."""
    cls = type(x)
    inside: list[Any] = []
    treedef: TreeDef = None
    if cls is partial:
        treedef = ("partial", *flatten((x.func, x.args, x.keywords), inside, numbers)[1:])
    elif issubclass(cls, Mapping):
        flatten(list(x.values()), inside, [])
    elif issubclass(cls, (list, AbstractSet, ValuesView, deque)):
        flatten(list(x), inside, [])
    elif _field_names(cls):
        flatten([getattr(x, name) for name in _field_names(cls)], inside, [])
    else:
        _refuse_container(x)
    if inside:
        _refuse_untraceable(cls)
    # A compiler regards functions of the same code as equal, whatever their closures and defaults are. With
    # `id` it also checks that the function is the same object.
    return treedef or ("=", cls, id(x) if cls is FunctionType else None, x)


@tracing.constant_in_traces
def _field_names(cls: type) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass."""
    return tuple(getattr(cls, "__dataclass_fields__", ()))


@tracing.constant_in_traces
def _refuse_container(x: object) -> None:
    """Raise if an object is a container, because a compiler would treat the arrays in it as constants."""
    if containers.find_container(x) is not None:
        _refuse_untraceable(type(x))
    _refuse_hidden(x)


@tracing.constant_in_traces
def _refuse_untraceable(cls: type) -> Never:
    """Raise for arrays in a container that compiled code cannot rebuild."""
    raise hidden_arrays_error(f"{with_article(cls.__name__)} in compiled code", "a tuple or a dict of them")


def traceable(treedef: TreeDef) -> TreeDef:
    """Return the structure of a result that a compiler can make; raise for other containers."""
    if isinstance(treedef, str) or treedef[0] == "=":
        return treedef
    kind, data, *children = treedef
    if kind == "node":
        _refuse_untraceable(data.container.cls)
    if kind == "dict":
        data = data[0], tuple(data[1])
    return (kind, data, *map(traceable, children))


def without_objects(treedef: TreeDef, objects: list[Any]) -> TreeDef:
    """Return a structure that a compiler can treat as a constant, and append the objects in it to a list.

    A compiler traces this function. It accepts an object as a constant only as an argument by itself.
    """
    if type(treedef) is str:
        return treedef
    if treedef[0] == "=":
        if treedef[1] in LEAVES:
            return treedef
        objects.append(treedef[3])
        return "object"
    return (*treedef[:2], *[without_objects(child, objects) for child in treedef[2:]])


def with_objects(treedef: TreeDef, objects: Iterator[Any]) -> TreeDef:
    """Undo `without_objects`."""
    if treedef == "object":
        x = next(objects)
        return ("=", type(x), identify(x), x)
    return _map_children(lambda child: with_objects(child, objects), treedef)


@tracing.constant_in_traces
def _refuse_hidden(x: Any) -> None:
    """Raise if an object that cannot be flattened holds arrays, or may hold them."""
    cls = type(x)
    what = with_article(cls.__name__)
    if cls.__module__ in _STANDARD and hasattr(cls, "__next__"):
        raise hidden_arrays_error(what, "list(x)")
    for kinds, read in _UNREBUILT.items():
        if issubclass(cls, kinds):
            inside: list[Any] = []
            flatten(read(x), inside, [])
            if inside:
                raise hidden_arrays_error(what, f"{read.__name__}(x)")


class _Node:
    """A container in a `TreeDef`. Two are equal if their classes and keys are, whatever their children."""

    def __init__(self, container: Any, form: Any, x: Any, count: int) -> None:
        self.container = container
        self.form = form
        self.labels: list[str] = [f"[{i}]" for i in range(count)]
        rest = form
        if isinstance(form, containers.Structure):
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


def unflatten(treedef: TreeDef, arrays: Iterator[Any], numbers: Iterator[Any]) -> Any:
    """Build the tree of a structure from arrays and numbers."""
    if treedef == "*":
        return next(arrays)
    if treedef == "int" or treedef == "float":  # noqa: PLR1714 -- a compiler traces this
        return next(numbers)
    kind = treedef[0]
    if kind == "=":
        return treedef[3]
    parts = [unflatten(child, arrays, numbers) for child in treedef[2:]]
    if kind == "tuple":
        return tuple(parts)
    if kind == "dict":
        keys, order = treedef[1]
        items = dict(zip([key[3] for key in keys], parts, strict=True))
        return items if order is None else {key: items[key] for key in order}
    if kind == "named":
        return tuple.__new__(treedef[1], parts)  # a compiler cannot call a class that it has from a constant
    if kind == "partial":
        return partial(parts[0], *parts[1], **parts[2])
    return treedef[1].container.unflatten(treedef[1].form, parts) if kind == "node" else parts


def mask_leaves(treedef: TreeDef, chosen: Iterator[bool]) -> TreeDef:
    """Return the structure with None for all leaves except the chosen arrays."""
    if treedef == ARRAY:
        return ARRAY if next(chosen) else NONE
    if isinstance(treedef, str) or treedef[0] == "=":
        return NONE
    return _map_children(lambda child: mask_leaves(child, chosen), treedef)


def children_of(treedef: TreeDef) -> tuple[TreeDef, ...]:
    """Return the structures of the children of a container; nothing for a leaf."""
    children: tuple[TreeDef, ...] = () if isinstance(treedef, str) or treedef[0] == "=" else treedef[2:]
    return children


def _map_children(fn: Callable[[TreeDef], TreeDef], treedef: TreeDef) -> TreeDef:
    """Return the structure of a container with other children; a leaf as it is."""
    children = children_of(treedef)
    return (*treedef[:2], *map(fn, children)) if children else treedef


def number_slots(treedef: TreeDef) -> list[str]:
    """Return the kinds of the numbers in a structure, "int" or "float", in order."""
    if isinstance(treedef, str) and treedef != ARRAY:
        return [treedef]
    return [kind for child in children_of(treedef) for kind in number_slots(child)]


def leaves_like(treedef: TreeDef, tree: Any, wrong: Callable[[], OptionError]) -> list[Any]:
    """Return what a tree has in the place of each array of a structure. None may stand for any subtree."""
    if treedef == ARRAY:
        if isinstance(tree, (tuple, list, dict, str)):
            raise wrong()
        return [tree]
    children = children_of(treedef)
    parts = repeat(None) if tree is None or not children else _children_like(treedef, tree)
    if parts is None:
        raise wrong()
    return [
        leaf for child, part in zip(children, parts, strict=False) for leaf in leaves_like(child, part, wrong)
    ]


def _children_like(treedef: TreeDef, tree: Any) -> list[Any] | None:
    """Return the children of a tree that belong to those of a structure; None if it is another container."""
    kind, data, *children = treedef
    found: list[Any] | None = None
    if kind == "node":
        if type(tree) is data.container.cls:
            found = list(data.container.flatten(tree)[0])
    elif kind == "dict":
        keys = [key[3] for key in data[0]]
        if isinstance(tree, dict) and tree.keys() == set(keys):
            found = [tree[key] for key in keys]
    elif isinstance(tree, (tuple, list)):
        found = list(tree)
    return found if found is not None and len(found) == len(children) else None


def argument_treedefs(treedef: TreeDef) -> list[TreeDef]:
    """Return the structures of all arguments from that of ``(args, kwargs)``."""
    return [*children_of(treedef[2]), *children_of(treedef[3])]


def has_arrays(treedef: TreeDef) -> bool:
    """Return True if there is an array in the structure."""
    return bool(treedef == ARRAY) or any(map(has_arrays, children_of(treedef)))


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
    if treedef == ARRAY:
        return [name]
    children = children_of(treedef)
    labels = [f"[{i}]" for i in range(len(children))]
    if children and treedef[0] == "dict":
        labels = [f"[{key[3]!r}]" for key in treedef[1][0]]
    elif children and treedef[0] == "named":
        labels = [f".{field}" for field in treedef[1]._fields]
    elif children and treedef[0] == "node":
        labels = treedef[1].labels
    return [
        path
        for label, child in zip(labels, children, strict=True)
        for path in leaf_paths(child, name + label)
    ]
