"""Hints for inputs that are not arrays, by their class: what the user can type instead.

A hint is a call that a test has run with such an object, and whose values it has compared. For any other
object there is none, and the message says only why it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from math import isfinite
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, TypeVar

import numpy as np

from xbridge._core.devices import CPU
from xbridge._core.dtypes import DTYPES, exact_integers
from xbridge._core.literals import LITERALS, NUMBERS
from xbridge._core.protocol import Backend, HostArray
from xbridge._core.tracing import constant_in_traces
from xbridge.errors import FOREIGN_ERRORS, UnsupportedArrayError, XBridgeError, type_of

E = TypeVar("E", bound=XBridgeError)

IN_A_TREE = "xbridge.tree.to_backend(x, 'numpy')"
_FLOATS = "[float(i) for i in x]"
FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType)

_BY_NAME = {
    "DataLoader": "xbridge.prefetch(x, 'numpy')",
    "PyCapsule": "asarray(torch.from_dlpack(x), backend='numpy')",
}
"""Hints by the name of a class, or of a base."""

_READERS = {
    ".npy": "numpy.load(x)",
    ".npz": "xbridge.tree.to_backend(dict(numpy.load(x)), 'numpy')",
    **dict.fromkeys((".pt", ".pth"), "xbridge.tree.to_backend(torch.load(x), 'numpy')"),
}
"""Hints for the name of a file, by its suffix."""

_BY_ATTRIBUTE = {
    "state_dict": "xbridge.tree.to_backend(x.state_dict(), 'numpy')",
    **{word: f"x.{word}()" for word in ("__jax_array__", "toarray", "todense", "to_tensor")},
    "__float__": "asarray(float(x), backend='numpy')",
    **{word: f"x.{word}()" for word in ("compute", "collect", "result")},
    **dict.fromkeys(("_fields", "__dataclass_fields__", "__attrs_attrs__"), IN_A_TREE),
    "get_tensor": "dict(zip(x.keys(), map(x.get_tensor, x.keys())))",
    "keys": "xbridge.tree.to_backend(dict(x), 'numpy')",
}
"""Hints by an attribute that the class of an object has."""

_ITEMS = {
    **dict.fromkeys(("Decimal", "Fraction"), _FLOATS),
    "NoneType": "[float('nan') if i is None else i for i in x]",
    "NAType": "[float('nan') if i is pandas.NA else i for i in x]",
    "dict": "xbridge.tree.to_backend(x, 'numpy', scalars=True)",
    **dict.fromkeys((*(cls.__name__ for cls in FUNCTIONS), "date", "timedelta", "str", "bytes"), ""),
    **dict.fromkeys(("set", "frozenset", "dict_values", "generator", "map"), ""),
}
"""Hints for a list, by the name of the class of an item that is not a number. Text may spell numbers."""


def aim(error: E, target: Backend) -> E:
    """Return an error whose hint converts to the target. Hints are written for NumPy."""
    hint = error.hint.replace("'numpy'", repr(target.name))
    if target.name != "numpy":
        hint = hint.replace("to_numpy(x, dtype=", f"to_backend(x, {target.name!r}, dtype=")
    if target.unsupported_dtype("float64", CPU):
        hint = hint.replace("'float64'", "'float32'")
    aimed = error.build(error.action, error.reason, hint)
    aimed.__cause__ = error.__cause__
    return aimed


def hint_for_object(x: object) -> str:
    """Return a hint for an object that is not an array; "" if there is none."""
    cls = type(x)
    if issubclass(cls, dict):
        values: list[object] = [*dict.values(x)]  # type: ignore[arg-type] # it is a dict
        has_numbers = any(issubclass(type(value), NUMBERS) for value in values)
        return f"{IN_A_TREE[:-1]}, scalars=True)" if has_numbers else IN_A_TREE
    if issubclass(cls, str) and _spell_numbers([x]):
        return _BY_ATTRIBUTE["__float__"]
    if issubclass(cls, (str, PurePath)):
        return _READERS.get(PurePath(x).suffix.lower(), "")  # type: ignore[arg-type] # it is one
    if cls.__name__ == "PyCapsule" and '"dltensor' not in repr(x):  # of another protocol, or used up
        return ""
    hint = _hint_for_class(cls, _BY_NAME) or _hint_for_methods(cls)
    return "" if hint == _BY_ATTRIBUTE["__float__"] and not _spell_numbers([x]) else hint


def _hint_for_methods(cls: type) -> str:
    """Return a hint by what the objects of a class can do."""
    members = {word: it for base in reversed(cls.__mro__) for word, it in vars(base).items()}
    words = members.keys()
    if {"shape", "dtype", "__getitem__"} <= words and "todense" not in words:  # a dtype has a shape too
        return "x[...]"
    if {"__iter__", "__len__"} <= words and words.isdisjoint(_BY_ATTRIBUTE):
        one, tree = "asarray(list(x), backend='numpy')", "xbridge.tree.to_backend(list(x), 'numpy')"
        return f"{one} if it holds numbers, or {tree} for the arrays in it"
    word = next((word for word in _BY_ATTRIBUTE if word in words), "")
    return _BY_ATTRIBUTE[word] if members.get(word) is not None else ""  # pandas' groups have None for keys


def hint_for_items(x: HostArray) -> str:
    """Return a hint for an array of text or of Python objects."""
    items = x.ravel().tolist()
    if items and None not in map(_shape_and_dtype, items):
        alike = len(set(map(_shape_and_dtype, items))) == 1
        return "asarray(x.tolist(), backend='numpy')" if alike else IN_A_TREE.replace("x,", "x.tolist(),")
    are_floats = _spell_numbers(items) and not all(isinstance(item, int) for item in items)
    dtype = "" if are_floats else _dtype_of_integers(items)
    if dtype:
        return f"x.astype({dtype!r})"
    if _spell_numbers(items):
        return "x.astype(float)"
    if all(map(_is_text, items)):
        return "numpy.unique(x, return_inverse=True)[1] for labels, or x.tolist()"
    return "x.tolist()"


def _shape_and_dtype(item: Any) -> tuple[object, object] | None:
    """Return what arrays of one stack have in common; None if an item is no array, or has no numbers."""
    dtype = getattr(item, "dtype", None) if _has_shape(item) else None
    name = getattr(dtype, "name", str(dtype).rpartition(".")[2])
    return (tuple(item.shape), dtype) if name in DTYPES and not np.ma.isMaskedArray(item) else None


def _has_shape(item: object) -> bool:
    return any("shape" in vars(base) for base in type(item).__mro__)


def _spell_numbers(items: Sequence[object]) -> bool:
    """Return True if Python can read each item as a float, which rounds none that is an integer."""
    if any(map(_is_complex, items)):  # its real part alone
        return False
    try:
        floats = np.array([*items, None], object).astype(float)  # None keeps rows of equal length apart
        large = np.flatnonzero(np.abs(floats) >= exact_integers("float64")[1])
        return all(_is_kept(items[i], float(floats[i])) for i in large.tolist())
    except FOREIGN_ERRORS:
        return False


def _is_kept(item: Any, number: float) -> bool:
    """Return True unless an item is or spells another integer than a float, or a number beyond all floats."""
    exact = Decimal(str(item, "ascii") if isinstance(item, bytes) else item) if _is_text(item) else item
    if not isfinite(number):
        return bool(exact == number)
    return int(exact) == number or int(exact) != exact


def _is_complex(item: object) -> bool:
    return isinstance(item, (complex, np.complexfloating))


def _is_text(item: object) -> bool:
    return isinstance(item, (str, bytes))


def _dtype_of_integers(items: list[Any]) -> str:
    """Return NumPy's dtype for items that are or spell integers; "" if there is none."""
    if any(map(_is_complex, items)):
        return ""
    try:
        integers = [item if isinstance(item, int) else int(item) for item in items]
    except FOREIGN_ERRORS:
        return ""
    dtype = np.array(integers).dtype
    are_exact = all(_is_text(item) or item == n for item, n in zip(items, integers, strict=True))
    return dtype.name if are_exact and dtype.kind in "biu" else ""


def item_error(x: Any) -> UnsupportedArrayError | None:
    """Return the error for a list with an item that is not a number; None if all are numbers or arrays.

    The items of rows are looked at too.
    """
    items = [(f"{i}", item) for i, item in enumerate(x)]
    is_nested = bool(items) and all(type(row) in (list, tuple) for _, row in items)
    if is_nested:
        items = [(f"{i}, {j}", item) for i, row in enumerate(x) for j, item in enumerate(row)]
    mistaken = [(place, item) for place, item in items if is_mistaken(type(item))]
    if not mistaken:
        return None
    place, item = mistaken[0]
    reason = f"item {place} is {'None' if item is None else type_of(item)}"
    kinds = {type(one) for _, one in mistaken}
    hint = "" if is_nested else _hint_for_list([one for _, one in items], kinds)
    return UnsupportedArrayError.build("make an array of this list", reason, hint)


def _hint_for_list(items: list[Any], mistaken: set[type]) -> str:
    """Return a hint for a list, some items of which are no numbers; "" if none keeps all values."""
    if any(map(_has_shape, items)):
        return ""
    are_text = mistaken <= {str, bytes, int, float}
    hints = {_FLOATS} if are_text else {_hint_for_class(cls, _ITEMS) for cls in mistaken}
    hint = hints.pop() if len(hints) == 1 else ""
    if hint != _FLOATS or _spell_numbers(items):
        return hint
    return "[int(i) for i in x]" if _dtype_of_integers(items) else ""


@constant_in_traces
def is_mistaken(cls: type) -> bool:
    """Return True if a list with items of a class is no array."""
    return any(base.__name__ in _ITEMS for base in cls.__mro__)


def literal_error(x: object, target: str) -> UnsupportedArrayError:
    """Return the error for a number or a list that was given to a conversion of arrays."""
    one, tree = f"asarray(x, backend={target!r})", f"xbridge.tree.to_backend(x, {target!r})"
    items: list[Any] = [*x] if type(x) in (list, tuple) else []  # type: ignore[misc] # it is one of them
    if isinstance(x, tuple) and _has_arrays(x):  # several results, such as those of `torch.max` or of an LSTM
        return UnsupportedArrayError.build(f"convert {type_of(x)}", "it is a tuple of arrays", tree)
    if any(isinstance(item, dict) for item in items):
        hint = f"xbridge.tree.to_backend(x, {target!r}, scalars=True)"
    elif items and all(map(_is_array_like, items)):
        hint = f"{one} for one array, or {tree} for a list of arrays"
    else:
        hint = one
    return UnsupportedArrayError.build(f"convert {type_of(x)}", "numbers and lists are not arrays", hint)


def _has_arrays(x: tuple[Any, ...]) -> bool:
    return any(_has_arrays(item) if isinstance(item, tuple) else _is_array_like(item) for item in x)


def _is_array_like(item: object) -> bool:
    return not issubclass(type(item), (*LITERALS, dict, str, type(None)))


def _hint_for_class(cls: type, hints: dict[str, str]) -> str:
    return next((hints[base.__name__] for base in cls.__mro__ if base.__name__ in hints), "")
