"""The structure of a tree without its arrays: flatten trees, build them, and compare their structures.

A `TreeDef` consists of nested tuples, and is the key of a rule. Constants are part of it, and are compared by
type and value. Integers and floats are not, because a compiler may turn them into variables. Containers are
those of `xbridge.tree`, whose own `TreeSpec` is the structure of one tree, made for speed with many leaves,
and not hashable.

A compiler traces `flatten`, `unflatten` and `without_objects` line by line, which limits their Python.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Mapping, ValuesView
from collections.abc import Set as AbstractSet
from dataclasses import is_dataclass
from functools import cache, partial
from itertools import repeat
from types import FunctionType, MemberDescriptorType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from xbridge._core import tracing
from xbridge._core.literals import NUMBERS
from xbridge._core.tracing import constant_in_traces
from xbridge._registry.registry import are_arrays
from xbridge.errors import FOREIGN_ERRORS, UnsupportedArrayError, with_article
from xbridge.tree.containers import Structure, find_container, is_struct_sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Never

    from xbridge.errors import OptionError

TreeDef: TypeAlias = Any
"""The structure of a tree: `ARRAY`, "int", "float", or a tuple of a kind, its data and its children."""

ARRAY = "*"
"""The structure of an array."""

NONE = ("=", type(None), None, None)
"""The structure of None."""

FIRST_CHILD = {"tuple": 1, "list": 1, "named": 2, "node": 2, "dict": 3, "data": 3, "partial": 1}
"""The kinds of containers, and the index of the first child in the structure of each."""

_BUILTIN = (Mapping, list, AbstractSet, ValuesView, deque)
_STANDARD = ("builtins", "itertools")
"""The modules of iterators, which can be read only once, so that arrays in them cannot be found."""

_UNREBUILT: dict[Any, Callable[[Any], Any]] = {
    Mapping: dict,
    SimpleNamespace: vars,
    (AbstractSet, ValuesView): list,
}
"""Classes that cannot be made again with other arrays, and the call that makes a container of one."""

LEAVES = (str, bytes, type(None), *NUMBERS)
"""Types of arguments that are never arrays, and have no arrays in them."""


def flatten(x: Any, arrays: list[Any], numbers: list[Any] | None) -> TreeDef:
    """Return the treedef of a tree, and append its arrays and numbers. With None, numbers are arrays too."""
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
        treedef = _flatten_traced(x, arrays, numbers)
        if treedef is not None:
            return treedef
    elif numbers is not None and type(x) in tracing.symbolic_numbers:
        numbers.append(x)
        return tracing.symbolic_numbers[type(x)]
    node = _open_container(x)
    if node is None:
        _refuse_hidden(x)
        return ("=", type(x), identify(x), x)
    container, children, treedef = node
    inside: list[Any] = []
    inner: list[Any] | None = None if numbers is None else []
    treedefs = [flatten(child, inside, inner) for child in children]
    if not inside:
        return ("=", type(x), identify(x), x)
    arrays.extend(inside)
    if numbers is not None and inner is not None:
        numbers.extend(inner)
    named = _named_tuple_like(type(x))
    if named is not None:
        return ("named", named, *treedefs)
    return ("node", _Node(container, treedef, x, len(treedefs)), *treedefs)


def _flatten_traced(x: Any, arrays: list[Any], numbers: list[Any] | None) -> TreeDef:
    """Flatten an object as a compiler can follow it, by its attributes; return None if it cannot."""
    cls = type(x)
    inside: list[Any] = []
    treedef: TreeDef = None
    if cls is partial:
        treedef = ("partial", *flatten((x.func, x.args, x.keywords), inside, numbers)[1:])
    elif issubclass(cls, _BUILTIN):
        flatten(list(x.values() if issubclass(cls, Mapping) else x), inside, [])
    else:
        return _flatten_traced_fields(x, arrays, numbers)
    if inside:
        refuse_untraceable(cls)
    return treedef


def _flatten_traced_fields(x: Any, arrays: list[Any], numbers: list[Any] | None) -> TreeDef:
    """Flatten a named tuple or a dataclass as a compiler can follow it; another object is a constant."""
    cls = type(x)
    named = _named_tuple_like(cls)
    if named is not None:
        return ("named", named, *[flatten(child, arrays, numbers) for child in x])
    slots = _slots_of(cls)
    if slots is None:
        refuse_container(x)
        # A compiler regards functions of the same code as equal, whatever their closures and defaults are.
        # With `id` it also checks that the function is the same object.
        return ("=", cls, id(x) if cls is FunctionType else None, x)
    stored = [*vars(x)] if hasattr(x, "__dict__") else []
    names = [*[name for name in slots if hasattr(x, name)], *stored]
    return ("data", cls, tuple(names), *[flatten(getattr(x, name), arrays, numbers) for name in names])


@constant_in_traces
def _slots_of(cls: type) -> tuple[str, ...] | None:
    """Return the names of the slots of a dataclass; None if a class is no dataclass."""
    if not is_dataclass(cls):
        return None
    inside = [(name, it) for of in cls.__mro__ for name, it in vars(of).items()]
    return tuple([name for name, it in inside if isinstance(it, MemberDescriptorType)])


@constant_in_traces
def refuse_container(x: object) -> None:
    """Raise if an object is a container, because a compiler would treat the arrays in it as constants."""
    if find_container(x) is not None:
        refuse_untraceable(type(x))
    _refuse_hidden(x)


@constant_in_traces
def refuse_untraceable(cls: type) -> Never:
    """Raise for arrays in a container that compiled code cannot rebuild."""
    what = f"{with_article(cls.__name__)} in compiled code"
    raise hidden_arrays_error(what, "a tuple, a dict or a dataclass of them")


def traceable(treedef: TreeDef) -> TreeDef:
    """Return the treedef of a result with containers that a compiler can make."""
    if isinstance(treedef, str) or treedef[0] == "=":
        return treedef
    if treedef[0] != "node":
        return _map_children(traceable, treedef)
    cls: type = treedef[1].container.cls
    given = treedef[1].treedef
    if not is_dataclass(cls) or not isinstance(given, Structure) or given.keys:
        refuse_untraceable(cls)
    constants = [("=", type(it), None, it) for it in given.attributes.values()]
    names = (*given.fields, *given.attributes)
    return ("data", cls, names, *map(traceable, children_of(treedef)), *constants)


def without_objects(treedef: TreeDef, objects: list[Any]) -> TreeDef:
    """Return a treedef that a compiler can treat as a constant, and append the objects in it to a list.

    A compiler traces this function. It accepts an object as a constant only as an argument by itself.
    """
    if type(treedef) is str:
        return treedef
    if treedef[0] == "=":
        if treedef[1] in LEAVES:
            return treedef
        objects.append(treedef[3])
        return "object"
    start = FIRST_CHILD[treedef[0]]
    return (*treedef[:start], *[without_objects(child, objects) for child in treedef[start:]])


def with_objects(treedef: TreeDef, objects: Iterator[Any]) -> TreeDef:
    """Undo `without_objects`."""
    if treedef == "object":
        x = next(objects)
        return ("=", type(x), identify(x), x)
    if isinstance(treedef, str) or treedef[0] == "=":
        return treedef
    return _map_children(lambda child: with_objects(child, objects), treedef)


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
    for kinds, read in _UNREBUILT.items():
        if issubclass(cls, kinds):
            inside: list[Any] = []
            flatten(read(x), inside, [])
            if inside:
                raise hidden_arrays_error(what, f"{read.__name__}(x)")


def hidden_arrays_error(what: str, hint: str) -> UnsupportedArrayError:
    """Return the error for arrays in an object that cannot be built again with other arrays."""
    reason = "it cannot be made again with other arrays"
    return UnsupportedArrayError.build(f"convert the arrays in {what}", reason, hint)


@constant_in_traces
def _named_tuple_like(cls: type) -> Any:
    """Return a named tuple class for a struct sequence whose fields are its items; None for other classes."""
    words = vars(cls)
    like = is_struct_sequence(cls) and words["n_fields"] == words["n_sequence_fields"]
    return _make_named_tuple_class(cls) if like else None


@cache  # such classes are few, and made by C code that keeps them
def _make_named_tuple_class(cls: type) -> Any:
    """Return a named tuple class like `torch.return_types.max`, because it is a tree for JAX."""
    base: Any = NamedTuple(cls.__name__, [(word, Any) for word in vars(cls)["__match_args__"]])  # type: ignore[misc] # names are data
    own = {
        "__slots__": (),
        "__module__": cls.__module__,
        "__origin__": cls,
        "__reduce__": lambda x: (_load_named_tuple, (cls, tuple(x))),  # pickle could not find the class
    }
    return type(cls.__name__, (base,), own)


def _load_named_tuple(cls: type, items: tuple[Any, ...]) -> Any:
    """Return a named tuple for a struct sequence from its pickle."""
    return _make_named_tuple_class(cls)(*items)


def has_struct_sequences(treedef: TreeDef) -> bool:
    """Return True if named tuples replace struct sequences in a treedef."""
    return (treedef[0] == "named" and hasattr(treedef[1], "__origin__")) or any(
        map(has_struct_sequences, children_of(treedef))
    )


class _Node:
    """A container in a `TreeDef`. Two are equal if their classes and keys are, whatever their children."""

    def __init__(self, container: Any, treedef: Any, x: Any, count: int) -> None:
        self.container = container
        self.treedef = treedef
        self.labels: list[str] = [f"[{i}]" for i in range(count)]
        rest = treedef
        if isinstance(treedef, Structure):
            self.labels = container.paths(x, treedef)
            rest = (self.labels, [*treedef.attributes.items()])
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


def unflatten(treedef: TreeDef, arrays: Iterator[Any], numbers: Iterator[Any]) -> Any:
    """Build the tree of a structure from arrays and numbers."""
    if treedef == "*":
        return next(arrays)
    if treedef == "int" or treedef == "float":  # noqa: PLR1714 -- a compiler traces this
        return next(numbers)
    kind = treedef[0]
    if kind == "=":
        return treedef[3]
    if kind == "dict":
        return dict(
            zip(treedef[1], [unflatten(child, arrays, numbers) for child in treedef[3:]], strict=True)
        )
    if kind == "named":
        # A compiler cannot call a class that it has from a constant.
        return tuple.__new__(treedef[1], [unflatten(child, arrays, numbers) for child in treedef[2:]])
    if kind == "data":
        made = object.__new__(treedef[1])  # without `__init__`, which may compute fields
        for name, child in zip(treedef[2], treedef[3:], strict=True):
            object.__setattr__(made, name, unflatten(child, arrays, numbers))
        return made
    if kind == "node":
        parts = [unflatten(child, arrays, numbers) for child in treedef[2:]]
        return treedef[1].container.unflatten(treedef[1].treedef, parts)
    parts = [unflatten(child, arrays, numbers) for child in treedef[1:]]
    if kind == "partial":
        return partial(parts[0], *parts[1], **parts[2])
    return tuple(parts) if kind == "tuple" else parts


def mask_leaves(treedef: TreeDef, chosen: Iterator[bool]) -> TreeDef:
    """Return the structure with None for all leaves except the chosen arrays."""
    if treedef == ARRAY:
        return ARRAY if next(chosen) else NONE
    if isinstance(treedef, str) or treedef[0] == "=":
        return NONE
    return _map_children(lambda child: mask_leaves(child, chosen), treedef)


def children_of(treedef: TreeDef) -> tuple[TreeDef, ...]:
    """Return the structures of the children of a container; nothing for a leaf."""
    if isinstance(treedef, str) or treedef[0] == "=":
        return ()
    children: tuple[TreeDef, ...] = treedef[FIRST_CHILD[treedef[0]] :]
    return children


def _map_children(fn: Callable[[TreeDef], TreeDef], treedef: TreeDef) -> TreeDef:
    """Return the structure of a container with other children."""
    return (*treedef[: FIRST_CHILD[treedef[0]]], *map(fn, children_of(treedef)))


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
    if isinstance(treedef, str) or treedef[0] == "=":
        return []
    parts = repeat(None) if tree is None else _children_like(treedef, tree, wrong)
    return [
        leaf
        for child, part in zip(children_of(treedef), parts, strict=False)
        for leaf in leaves_like(child, part, wrong)
    ]


def outline(treedef: TreeDef) -> TreeDef:
    """Return what is the same in trees with other constants of the same types and other orders of keys.

    A list, a tuple and a named tuple count as one kind.
    """
    if isinstance(treedef, str):
        return treedef
    if treedef[0] == "=":
        return treedef[:2]
    children = map(outline, children_of(treedef))
    if treedef[0] == "dict":
        return "dict", frozenset(zip(treedef[1], treedef[2], children, strict=True))
    return (*_kind_of(treedef), *children)


def _kind_of(treedef: TreeDef) -> tuple[Any, ...]:
    """Return what precedes the children of a container, the same for a list, a tuple and a named tuple."""
    head: tuple[Any, ...] = treedef[: FIRST_CHILD[treedef[0]]]
    return ("tuple",) if head[0] in ("list", "named") else head


def reorder_leaves(
    treedef: TreeDef, given: TreeDef, xs: Iterator[Any], wrong: Callable[[], OptionError]
) -> list[Any]:
    """Return the arrays `xs` of the tree `given` in the order of `treedef`: the keys of dicts may differ."""
    if outline(treedef) != outline(given):
        raise wrong()
    ordered, ys = order_like(treedef, given, xs)
    if not _matches(treedef, ordered):
        raise wrong()
    return ys


def _matches(treedef: TreeDef, other: TreeDef) -> bool:
    """Return True for the same structure and constants, in trees of one outline and order."""
    if treedef == other:
        return True
    children = children_of(treedef)
    is_another_class = treedef[0] == other[0] == "named" and treedef[1] != other[1]
    return bool(children) and not is_another_class and all(map(_matches, children, children_of(other)))


def order_like(first: TreeDef, treedef: TreeDef, xs: Iterator[Any]) -> tuple[TreeDef, list[Any]]:
    """Return a form and its arrays with the keys in the order of another form of the same outline."""
    if treedef == ARRAY:
        return treedef, [next(xs)]
    children = children_of(treedef)
    if not children:
        return treedef, []
    head, at = treedef[: FIRST_CHILD[treedef[0]]], list(range(len(children)))
    if treedef[0] == "dict":
        head = first[:3]
        order = list(zip(first[1], first[2], strict=True))
        at = [order.index(key) for key in zip(treedef[1], treedef[2], strict=True)]
    others = children_of(first)
    parts = {i: order_like(others[i], child, xs) for i, child in zip(at, children, strict=True)}
    made = [parts[i] for i in sorted(parts)]
    return (*head, *[child for child, _ in made]), [x for _, inside in made for x in inside]


def _children_like(treedef: TreeDef, tree: Any, wrong: Callable[[], OptionError]) -> list[Any]:
    count = len(treedef) - FIRST_CHILD[treedef[0]]
    if treedef[0] == "dict":
        children = (
            [tree[key] for key in treedef[1]]
            if isinstance(tree, dict) and tree.keys() == set(treedef[1])
            else None
        )
    elif treedef[0] == "data":
        children = [getattr(tree, name) for name in treedef[2]] if type(tree) is treedef[1] else None
    elif treedef[0] == "node":
        container = treedef[1].container
        children = list(container.flatten(tree)[0]) if type(tree) is container.cls else None
    else:
        children = list(tree) if isinstance(tree, (tuple, list)) else None
    if children is None or len(children) != count:
        raise wrong()
    return children


def argument_treedefs(treedef: TreeDef) -> list[TreeDef]:
    """Return the structures of all arguments from that of ``(args, kwargs)``."""
    return [*treedef[1][1:], *treedef[2][3:]]


def has_arrays(treedef: TreeDef) -> bool:
    """Return True if there is an array in the structure."""
    return bool(treedef == ARRAY) or any(map(has_arrays, children_of(treedef)))


def argument_paths(treedef: TreeDef) -> list[str]:
    """Return the names of the arrays, for errors, from the structure of ``(args, kwargs)``."""
    keys = [*range(len(treedef[1]) - 1), *treedef[2][1]]
    return [
        path
        for key, child in zip(keys, argument_treedefs(treedef), strict=True)
        for path in _leaf_paths(child, f"argument {key!r}")
    ]


def _leaf_paths(treedef: TreeDef, name: str) -> list[str]:
    if treedef == ARRAY:
        return [name]
    children = children_of(treedef)
    if treedef[0] == "dict":
        labels = [f"[{key!r}]" for key in treedef[1]]
    elif treedef[0] == "named":
        labels = [f".{field}" for field in treedef[1]._fields]
    elif treedef[0] == "data":
        labels = [f".{name}" for name in treedef[2]]
    elif treedef[0] == "node":
        labels = treedef[1].labels
    else:
        labels = [f"[{i}]" for i in range(len(children))]
    return [
        path
        for label, child in zip(labels, children, strict=True)
        for path in _leaf_paths(child, name + label)
    ]
