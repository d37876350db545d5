"""Hints for inputs that are not arrays, by their class: what the user can type instead."""

from __future__ import annotations

from typing import Any

from xbridge._core.literals import LITERALS
from xbridge.errors import UnsupportedArrayError, type_of

IN_A_TREE = "xbridge.tree.to_backend for the arrays in it"
_AS_A_LIST = f"list(x), and asarray if it holds numbers, or {IN_A_TREE}"
_BATCHES = "prefetch(x, 'torch'), which converts its batches"
_DAYS = "numpy.datetime64(x).astype('int64')"

_BY_NAME = {
    "NoneType": "an array in its place",
    **dict.fromkeys(("function", "method", "builtin_function_or_method"), "x()"),
    "module": "an array of it",
    "dtype": "an array of that dtype",
    "DataLoader": _BATCHES,
    "TensorDataset": "x.tensors[0]",
    "Dataset": "x[0], and xbridge.tree.to_backend",
    "GroupBy": "{key: group for key, group in x}, and xbridge.tree.to_backend with exporters=True",
    "NAType": "float('nan') in its place",
    "date": _DAYS,
    "timedelta": "asarray(x.total_seconds())",
}
"""Hints by the name of a class, or of a base."""

_BY_ATTRIBUTE = {
    "state_dict": "xbridge.tree.to_backend for the arrays of x.state_dict()",
    "toarray": "x.toarray()",
    "compute": "x.compute()",
    "collect": "x.collect()",
    "as_py": "asarray(x.as_py())",
    "result": "x.result()",
    "getbuffer": "numpy.frombuffer(x.getbuffer(), dtype)",
    "isdigit": "asarray(float(x)) if it spells a number, or reading the file that it names",
    "__float__": "asarray(float(x))",
    "__fspath__": "numpy.load(x)",
    **dict.fromkeys(("_fields", "__dataclass_fields__", "__attrs_attrs__"), IN_A_TREE),
    "keys": f"dict(x), and {IN_A_TREE}",
    **dict.fromkeys(("__iter__", "__getitem__"), _AS_A_LIST),
    "__dict__": f"vars(x), and {IN_A_TREE}",
}
"""Hints by an attribute that the class of an object has."""

_ITEMS = {
    "str": "[float(i) for i in x]",
    "Decimal": "[float(i) for i in x]",
    "Fraction": "[float(i) for i in x]",
    "NoneType": "[float('nan') if i is None else i for i in x]",
    "NAType": "float('nan') in its place",
    "date": "numpy.array(x, 'datetime64[us]').astype('int64')",
    "timedelta": "[i.total_seconds() for i in x]",
    "dict": "xbridge.tree.to_backend(x, 'numpy', scalars=True)",
}
"""Hints for a list, by the name of the class of an item that is not a number."""


def hint_for_object(cls: type) -> str:
    """Return a hint for an object of a class."""
    if issubclass(cls, dict):
        return IN_A_TREE
    named = _of_class(cls, _BY_NAME)
    if named:
        return named
    words = {word for base in cls.__mro__ for word in vars(base)}
    return next((hint for word, hint in _BY_ATTRIBUTE.items() if word in words), "an array")


def item_error(items: Any) -> UnsupportedArrayError | None:
    """Return the error for a list with an item that is not a number; None if there is no advice for it."""
    for i, item in enumerate(items):
        hint = _of_class(type(item), _ITEMS)
        if hint:
            reason = f"item {i} is {'None' if item is None else type_of(item)}"
            return UnsupportedArrayError.build("make an array of this list", reason, hint)
    return None


def is_mistaken(cls: type) -> bool:
    """Return True if there is advice for a list with items of a class."""
    return bool(_of_class(cls, _ITEMS))


def literal_error(x: object, target: str) -> UnsupportedArrayError:
    """Return the error for a number or a list that was given to a conversion of arrays."""
    one, tree = f"asarray(x, backend={target!r})", f"xbridge.tree.to_backend(x, {target!r})"
    items: list[Any] = [*x] if type(x) in (list, tuple) else []  # type: ignore[misc] # it is one of them
    if any(isinstance(item, dict) for item in items):
        hint = f"xbridge.tree.to_backend(x, {target!r}, scalars=True)"
    elif items and not any(issubclass(type(item), (*LITERALS, str, type(None))) for item in items):
        hint = f"{one} for one array, or {tree} for a list of arrays"
    else:
        hint = one
    return UnsupportedArrayError.build(f"convert {type_of(x)}", "numbers and lists are not arrays", hint)


def _of_class(cls: type, hints: dict[str, str]) -> str:
    return next((hints[base.__name__] for base in cls.__mro__ if base.__name__ in hints), "")
