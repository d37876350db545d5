"""Read numbers, and nested lists of numbers and arrays.

Numbers become one host array by NumPy's rules, unless NumPy would round an integer without a warning. Arrays
in a list are collected unread, so that the caller can stack them in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from xbridge._core.dtypes import DTYPES, category, exact_integers, holds_every
from xbridge._core.literals import LITERALS, NUMBERS, SEQUENCES
from xbridge._core.protocol import HostArray
from xbridge._host.advice import is_mistaken, item_error
from xbridge._host.memory import check_cast, native_dtype
from xbridge.errors import (
    Chained,
    DTypeError,
    OptionError,
    UnsupportedArrayError,
    ValueLossError,
    with_article,
)

Nested: TypeAlias = Any
"""A number, an array, or a list, tuple or range of nested things."""

_NO_ARRAYS = (*LITERALS, str, type(None))
_DEEPEST = 64
_MANY = 1 << 16
"""The most rows of nested lists that are read before it is clear that the lists do not contain themselves."""
ROWS: frozenset[type] = frozenset((list, tuple))
"""The types of nested lists. Their subclasses may hide what they hold."""
WHOLE = frozenset((bool, int))
"""Python's number types without fractions."""
_NAMES = {np.dtype(name): name for name in DTYPES if hasattr(np, name)}
"""The names of NumPy's own dtypes, in a table because `dtype.name` runs slow Python code."""


_OF_TYPES = {dtype.type: dtype for dtype in _NAMES}
"""The dtypes of NumPy's own scalars. Its other types, such as those of times, have several dtypes each."""


Kind: TypeAlias = "type | frozenset[type] | None"
"""What the items of a list are, as `kind_of_items` returns it."""


class Nest(NamedTuple):
    """The arrays at one depth of a nested list, in order, and the shape of the lists around them."""

    shape: tuple[int, ...]
    leaves: list[Any]
    weak: list[bool]
    """True for each leaf that is a Python number, which takes the dtype of the arrays."""


def is_literal(x: object) -> bool:
    """Return True if `x` is a number or a sequence and not an array."""
    return issubclass(type(x), LITERALS) and not issubclass(type(x), np.generic)


def copy_lists(x: Nested, level: int = 0) -> Nested:
    """Return a copy of nested lists: another thread may change a list meanwhile."""
    if type(x) is not list and type(x) is not tuple:
        return x
    if level == _DEEPEST:
        raise _ragged_error(f"it is nested more than {_DEEPEST} deep, or contains itself")
    items = [*x]
    return items if ROWS.isdisjoint(map(type, items)) else [copy_lists(item, level + 1) for item in items]


def nest(x: Nested) -> Nest | None:
    """Return the arrays in nested lists, with the shape of the lists; None if there are only numbers."""
    with Chained(_part_error):
        kinds = set(map(type, x)) if issubclass(type(x), (list, tuple)) else set()
        mistake = item_error(x) if any(is_mistaken(kind) for kind in kinds) else None
        if mistake:
            raise mistake
        if kinds and not any(issubclass(kind, _NO_ARRAYS) for kind in kinds):
            return Nest((len(x),), list(x), [False] * len(x))
        depth = _depth(x, 0)
        if depth < 0:
            return None
        leaves: list[Any] = []
        shape = _collect_leaves(x, depth, leaves)
        return Nest(shape, leaves, [is_literal(leaf) for leaf in leaves])


def literal(
    x: Nested, floating: str | None, nearest: Callable[[str], str], *, rounding: bool = False
) -> HostArray:
    """Return numbers as one host array, of the dtype that NumPy chooses.

    With `floating`, integers among floats must be exact in that dtype. With `rounding`, large integers may
    become floats. `nearest` returns the dtype that the target has for a wide one, for the hint of an error.
    """
    try:
        host = np.array(x)
    except ValueError as error:
        raise _ragged_error("its rows differ in length") from error
    no_integers = type(x) is float or (type(x) is list and set(map(type, x)) == {float})
    if host.dtype.kind in "biu" or no_integers or (host.dtype.kind in "fc" and _is_small(host, floating)):
        return host
    return _convert_large_integers(x, floating, nearest, rounding=rounding)


def kind_of_items(x: Iterable[Any]) -> Kind:
    """Return the type of all items; a set of their types if there are several, None if there is no item."""
    kind: Kind = None
    for item in x:  # a third of the time of `set(map(type, x))`
        if kind is not type(item):
            if kind is not None:
                return frozenset(map(type, x))
            kind = type(item)
    return kind


def outline(x: list[Any]) -> tuple[tuple[int, ...], list[Any], Kind] | None:
    """Return the shape of a list of rows, the items of the rows, and their kind; None if ragged.

    Rows are lists and tuples, and those of rows are opened too. Nothing is asked of the items. Another thread
    may change the rows meanwhile, but not the list itself.
    """
    shape, rows, kind = [len(x)], x, kind_of_items(x)
    while kind in ROWS or (type(kind) is frozenset and kind <= ROWS):
        if len(rows) > _MANY or len(shape) == _DEEPEST:
            return None
        items: list[Any] = [*rows[0]]
        length = size = len(items)
        for row in rows[1:]:
            items += row
            size += length
            if len(items) != size:
                return None
        shape.append(length)
        rows, kind = items, kind_of_items(items)
    return tuple(shape), rows, kind


def array_of(kinds: frozenset[type]) -> Callable[[Nested], HostArray | None]:
    """Return the function that makes a host array of Python numbers of these types.

    It returns None for an integer that NumPy's default dtype of integers does not hold.
    """
    array, dtype = np.array, np.array([kind() for kind in kinds]).dtype  # NumPy is faster if it has the dtype

    def make(x: Nested) -> HostArray | None:
        try:
            return array(x, dtype)
        except OverflowError:
            return None

    return make


def fold(host: HostArray, shape: tuple[int, ...]) -> HostArray:
    """Give a new array another shape, in place if it has items: a view would be another kind of array."""
    if not host.size:  # `resize` gives it strides that no array of empty lists has
        return np.empty(shape, host.dtype)
    host.resize(shape, refcheck=False)
    return host


def are_between(numbers: Iterable[Any], first: int, last: int) -> bool:
    """Return True if all integers among numbers are in a range."""
    for n in numbers:  # noqa: SIM110 -- `all` with a generator takes half as long again
        if type(n) is int and not first <= n <= last:
            return False
    return True


def array_of_scalars(kinds: frozenset[type]) -> Callable[[list[Any]], HostArray | None]:
    """Return the function that makes a host array of NumPy scalars, and Python numbers beside them.

    The array has their common dtype. `kinds` are their types. Return None if a value might be lost.
    """
    if kinds <= _OF_TYPES.keys() and len(kinds) == 1:
        dtype = _OF_TYPES[next(iter(kinds))]
        return lambda scalars: np.array(scalars, dtype)
    return partial(_of_scalars, kinds)


def _of_scalars(kinds: frozenset[type], scalars: list[Any]) -> HostArray | None:
    strong = kinds.difference(NUMBERS)
    firsts: list[Any] = [next(x for x in scalars if type(x) is kind) for kind in strong]
    names = {type(x): _dtype_name(x.dtype) for x in firsts}
    if not strong or not all(name in DTYPES for name in names.values()):
        return None
    if len(kinds) == 1:
        return np.array(scalars, firsts[0].dtype)
    try:
        dtype = promote(list(names.values()), [kind() for kind in kinds - strong])
    except DTypeError:
        return None
    lossless = {kind for kind, name in names.items() if holds_every(name, dtype)}
    return of_numbers(scalars, dtype, kinds - lossless)


def of_numbers(numbers: list[Any], dtype: str, kinds: Iterable[type]) -> HostArray | None:
    """Return numbers as a host array of a dtype; None if one of a number of these types is lost."""
    native = native_dtype(dtype)
    for kind in kinds:
        if kind is float and native.char in "dD":
            continue
        group = np.array([x for x in numbers if type(x) is kind])
        if kind is int and group.dtype.kind not in "iu":
            return None
        try:
            check_cast(group, dtype)
        except ValueLossError:
            return None
    return np.array(numbers, native)


def _is_small(host: HostArray, floating: str | None) -> bool:
    """Return True if all values are so small that an integer among them is exact."""
    return bool((np.abs(host) < exact_integers(floating or "float64")[1]).all())


def _convert_large_integers(
    x: Nested, floating: str | None, nearest: Callable[[str], str], *, rounding: bool
) -> HostArray:
    """Convert numbers that NumPy would round without a warning, such as [-1, 2**63], or keep as objects."""
    with Chained(_part_error):
        numbers = list(_iterate_flat(x))
    if not all(isinstance(n, NUMBERS) for n in numbers):
        raise (
            item_error(x if issubclass(type(x), SEQUENCES) else ())
            or _unusable_error("not all of its items are numbers")
        )
    integers = [n for n in numbers if isinstance(n, int)]
    dtype = "complex128" if any(isinstance(n, complex) for n in numbers) else "float64"
    alone, made, reason = not issubclass(type(x), SEQUENCES), "an", ""
    if not _are_finite(integers, dtype):
        reason = "it is larger than any float" if alone else "an integer is larger than any float"
    elif len(integers) == len(numbers):
        if min(numbers) >= 0 and max(numbers) < 1 << 64:
            return np.array(x, np.uint64)
        if not rounding:
            reason = "it fits no integer dtype" if alone else "its integers fit no integer dtype together"
    elif floating and not all(_is_exact(n, floating) for n in integers):
        narrow = floating if dtype == "float64" else "complex128" if floating == "float64" else "complex64"
        made, reason = with_article(narrow), f"an integer would be rounded in {narrow}"
    if reason:
        action, there = f"make {made} array of this {'number' if alone else 'list'}", nearest(dtype)
        hint = f"dtype={there!r}"
        if not _are_finite(integers, there):
            hint = "numpy.array(x, object)"
        elif not all(_is_exact(n, there) for n in integers):
            hint = f"{hint} to accept rounding"
        raise ValueLossError.build(action, reason, hint)
    with Chained(_part_error):
        return np.array(x, dtype)


def _are_finite(integers: list[int], dtype: str) -> bool:
    """Return True if a floating or complex dtype reaches as far as the integers."""
    most = float(np.finfo(native_dtype(dtype)).max)
    return all(-most <= n <= most for n in integers)


def _is_exact(n: int, floating: str) -> bool:
    """Return True if a floating dtype has enough digits for an integer."""
    zeros = (n & -n).bit_length() - 1
    return n == 0 or (abs(n) >> zeros) < exact_integers(floating)[1]


def sample(number: HostArray) -> complex:
    """Return a Python number of the kind of `number`, as an example for promotion."""
    return {"b": False, "i": 0, "u": 0, "f": 0.0, "c": 0j}[number.dtype.kind]


def promote(names: list[str], weak: list[complex]) -> str:
    """Return the dtype of a list of arrays, as NumPy promotes. Python numbers are weak."""
    try:
        strong = np.result_type(*(native_dtype(name) for name in names if name in DTYPES))
        if all(name in DTYPES for name in names):
            stays = category(_dtype_name(strong)) == "float" and not any(isinstance(n, complex) for n in weak)
            return _dtype_name(strong if stays else np.result_type(strong, *weak))
    except (TypeError, ValueError) as error:
        raise _no_common_dtype_error(names) from error
    raise _no_common_dtype_error(names)


def _dtype_name(dtype: np.dtype[Any]) -> str:
    return _NAMES.get(dtype) or dtype.name


def _no_common_dtype_error(names: list[str]) -> DTypeError:
    odd = next((name for name in names if name not in DTYPES), None)
    action = f"stack arrays of {' and '.join(dict.fromkeys(names))}"
    wide = ("float32", "float64", "complex64", "complex128")
    holding = (word for word in wide if all(holds_every(name, word) for name in names))
    hint = f"leaving out what is {odd}" if odd else f"dtype={next(holding, wide[-1])!r}"
    return DTypeError.build(action, "they have no common dtype", hint)


def _iterate_flat(x: Nested) -> Iterator[Any]:
    if issubclass(type(x), SEQUENCES):
        for item in x:
            yield from _iterate_flat(item)
    else:
        yield x


def _depth(x: Nested, level: int) -> int:
    """Return the number of lists above the deepest array in `x`; -1 if there is no array.

    It raises an error for a range that memory cannot hold, which would take long to look through.
    """
    if not is_literal(x):
        return -1 if x is None or issubclass(type(x), str) else level
    if type(x) is range:  # without the GIL, Python begins to list what memory cannot hold
        np.empty(len(x), np.intp)
    if not issubclass(type(x), (list, tuple)):
        return -1
    if level == _DEEPEST:
        raise _ragged_error(f"it is nested more than {_DEEPEST} deep, or contains itself")
    deepest = -1
    for item in x:
        if type(item) not in NUMBERS:
            deepest = max(deepest, _depth(item, level + 1))
    return deepest


def _collect_leaves(x: Nested, depth: int, leaves: list[Any]) -> tuple[int, ...]:
    """Append the items that are `depth` lists deep, and return the shape of those lists."""
    if depth == 0:
        leaves.append(x)
        return ()
    if not issubclass(type(x), SEQUENCES):
        if is_literal(x) or not getattr(x, "shape", ()):
            raise _ragged_error("it holds arrays and numbers at different depths")
        if any(tuple(getattr(n, "shape", ())) != tuple(x.shape[1:]) for n in x):
            raise _ragged_error("it holds a table beside rows")
    shape: tuple[int, ...] | None = None
    for item in x:
        found = _collect_leaves(item, depth - 1, leaves)
        if shape is not None and found != shape:
            raise _ragged_error("its rows differ in length")
        shape = found
    return (len(x), *(shape or ()))


def _ragged_error(reason: str) -> OptionError:
    return OptionError.build(
        "make an array of this list",
        reason,
        "rows of one length, or [asarray(row, backend='numpy') for row in x] for a list of arrays",
    )


def _part_error(error: Exception) -> UnsupportedArrayError:
    return _unusable_error(f"a part of it failed with {error!r}")


def _unusable_error(reason: str) -> UnsupportedArrayError:
    return UnsupportedArrayError.build("make an array of this list", reason, "a list of numbers or arrays")
