"""Read numbers, and nested lists of numbers and arrays.

Numbers become one host array by NumPy's rules, unless NumPy would round an integer without a warning. Arrays
in a list are collected unread, so that the caller can stack them in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from xbridge._core.dtypes import DTYPES, category, exact_integers, holds_every
from xbridge._core.literals import LITERALS, NUMBERS, SEQUENCES
from xbridge._core.protocol import HostArray
from xbridge._host.advice import is_mistaken, item_error
from xbridge._host.memory import NATIVE, native_dtype
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

_DEEPEST = 64
_MANY = 1 << 16
"""The most rows of nested lists that are read before it is clear that the lists do not contain themselves."""
_ROWS, _NUMBERS = frozenset((list, tuple)), frozenset(NUMBERS)
_ALONE = {kind: frozenset((kind,)) for kind in (*NUMBERS, list, tuple)}
"""The set of one type, because to make it takes longer than to look it up."""


class Nest(NamedTuple):
    """What nested lists hold, in order, and the shape of the lists around it."""

    shape: tuple[int, ...]
    leaves: list[Any]
    """Numbers, arrays, and the nests of rows that stand beside them."""
    kinds: frozenset[type]

    @property
    def noun(self) -> str:
        return "list" if self.shape else "number"

    def array_types(self) -> list[type]:
        own = [kind for kind in dict.fromkeys(map(type, self.leaves)) if not is_literal_type(kind)]
        inner = [leaf.array_types() for leaf in self.leaves if type(leaf) is Nest]
        return [*own, *chain.from_iterable(inner)]


def is_literal(x: object) -> bool:
    return is_literal_type(type(x))


def is_literal_type(cls: type) -> bool:
    """Return True for the types of numbers and sequences that are not arrays."""
    return issubclass(cls, LITERALS) and not issubclass(cls, np.generic)


def are_sequences(kinds: frozenset[type]) -> bool:
    """Return True if these are types of sequences alone, whose items are opened."""
    if kinds <= _NUMBERS:  # also if there are none
        return False
    return kinds <= _ROWS or all(issubclass(kind, SEQUENCES) for kind in kinds)


def flatten(x: Nested) -> Nest:
    """Return what nested lists hold, unread; a number is in no list. Rows beside arrays are nests.

    Each row is read once, because another thread may change it meanwhile.
    """
    return flatten_rows(x, [x], types_of([x]))


def flatten_rows(x: Nested, items: list[Any], kinds: frozenset[type], *shape: int) -> Nest:
    """Go on to flatten nested lists, whose items of these types were read to this shape."""
    with Chained(lambda error: _unusable_error(f"a part of it failed with {error!r}")):
        return _flatten(x, items, kinds, [*shape], 0)


def _flatten(x: Nested, items: list[Any], kinds: frozenset[type], shape: list[int], level: int) -> Nest:
    while are_sequences(kinds):
        if level + len(shape) == _DEEPEST or (len(items) > _MANY and _is_endless(items[0])):
            raise _ragged_error(f"it is nested more than {_DEEPEST} deep, or contains itself")
        rows, items, lengths = items, [], set()
        for row in rows:
            if type(row) is range:  # without the GIL, Python begins to list what memory cannot hold
                np.empty(len(row), np.intp)
            start = len(items)
            items += row
            lengths.add(len(items) - start)
        if len(lengths) > 1:
            raise _ragged_error("its rows differ in length")
        shape += lengths
        kinds = types_of(items)
    if kinds <= _NUMBERS:
        return Nest(tuple(shape), items, kinds)
    if any(map(is_mistaken, kinds.difference(LITERALS))):
        raise item_error(x) or _unusable_error("not all of its items are numbers")
    if not any(issubclass(kind, SEQUENCES) for kind in kinds):
        return Nest(tuple(shape), items, kinds)
    level += len(shape)
    leaves = [
        _flatten(item, [item], types_of([item]), [], level) if issubclass(type(item), SEQUENCES) else item
        for item in items
    ]
    nest = Nest(tuple(shape), leaves, types_of(leaves))
    if not nest.array_types():
        raise _ragged_error("its rows differ in length")
    return nest


def types_of(items: Sequence[Any]) -> frozenset[type]:
    kind = type(items[0]) if items else None
    for item in items:  # a third of the time of `set(map(type, items))`
        if type(item) is not kind:
            return frozenset(map(type, items))
    return _ALONE.get(kind) or (frozenset((kind,)) if kind else frozenset())  # type: ignore[arg-type] # None is no key


def _is_endless(row: Nested) -> bool:
    """Return True if a row is nested too deep, or contains itself. If it is so, all rows beside it are."""
    for _ in range(_DEEPEST):
        if not issubclass(type(row), SEQUENCES) or not row:
            return False
        row = row[0]
    return True


def read_numbers(
    nest: Nest, floating: str | None, nearest: Callable[[str], str], *, rounding: bool = False
) -> HostArray:
    """Return numbers as one host array, of the dtype that NumPy chooses.

    With `floating`, integers among floats must be exact in that dtype. With `rounding`, large integers may
    become floats. `nearest` returns the dtype that the target has for a wide one, for the hint of an error.
    """
    content = nest.leaves if nest.shape else nest.leaves[0]
    host = np.array(content)
    is_whole = host.dtype.kind in "biu" or nest.kinds == {float}
    # NumPy rounds integers without a warning, such as those in [-1, 2**63], or keeps them as objects.
    limit = exact_integers(floating or "float64")[1]
    if not (is_whole or (host.dtype.kind in "fc" and bool((np.abs(host) < limit).all()))):
        host = np.array(content, _choose_dtype(nest, floating, nearest, rounding=rounding))
    return _fold(host, nest.shape)


def array_of(kinds: frozenset[type]) -> tuple[Callable[[tuple[int, ...], Nested], HostArray | None], str]:
    """Return the function that makes a host array of a shape, and of Python numbers of these types.

    It returns None for an integer that NumPy's default dtype of integers does not hold. The second result is
    the dtype of the array.
    """
    array, dtype = np.array, np.array([kind() for kind in kinds]).dtype  # NumPy is faster if it has the dtype

    def make(shape: tuple[int, ...], x: Nested) -> HostArray | None:
        try:
            host = array(x, dtype)
        except OverflowError:
            return None
        return _fold(host, shape) if len(shape) > 1 else host

    return make, dtype.name


def _fold(host: HostArray, shape: tuple[int, ...]) -> HostArray:
    """Give a new array another shape, in place if it has items: a view would be another kind of array."""
    if len(shape) < 2:
        return host
    if not host.size:  # `resize` gives it strides that no array of empty lists has
        return np.empty(shape, host.dtype)
    host.resize(shape, refcheck=False)
    return host


def are_between(numbers: Iterable[Any], first: int, last: int) -> bool:
    for n in numbers:  # noqa: SIM110 -- `all` with a generator takes half as long again
        if type(n) is int and not first <= n <= last:
            return False
    return True


def array_of_scalars(kinds: frozenset[type]) -> Callable[[Sequence[Any]], HostArray | None]:
    """Return the function that makes a host array of NumPy scalars, and Python numbers beside them.

    The array has their common dtype. `kinds` are their types. The function returns None if a value might be
    lost, or if the types do not tell the dtypes.
    """
    weak = kinds.intersection(NUMBERS)
    names = [np.dtype(kind).name for kind in kinds - weak]
    try:
        common = promote(names, [kind() for kind in weak])
    except DTypeError:
        return lambda _: None
    native = native_dtype(common)
    may_lose = (complex in weak and native.char != "D") or (float in weak and native not in NATIVE)
    if may_lose or not all(holds_every(name, common) for name in names):
        return lambda _: None
    limits: dict[type, tuple[float, float]] = {int: exact_integers(common)}
    if float in weak and native.char not in "dD":
        most = float(np.finfo(native).max)
        limits[float] = -most, most

    def convert(scalars: Sequence[Any]) -> HostArray | None:
        for x in scalars:
            limit = limits.get(type(x))
            if limit and not limit[0] <= x <= limit[1]:
                return None
        return np.array(scalars, native)

    return convert


def _choose_dtype(nest: Nest, floating: str | None, nearest: Callable[[str], str], *, rounding: bool) -> str:
    """Return the dtype of numbers with large integers; raise if an integer would be rounded."""
    numbers, alone = nest.leaves, not nest.shape
    integers = [n for n in numbers if isinstance(n, int)]
    dtype = "complex128" if any(isinstance(n, complex) for n in numbers) else "float64"
    made, reason = "an", ""
    if not _are_finite(integers, dtype):
        reason = "it is larger than any float" if alone else "an integer is larger than any float"
    elif len(integers) == len(numbers):
        if min(numbers) >= 0 and max(numbers) < 1 << 64:
            return "uint64"
        if not rounding:
            reason = "it fits no integer dtype" if alone else "its integers fit no integer dtype together"
    elif floating and not all(_is_exact(n, floating) for n in integers):
        narrow = floating if dtype == "float64" else "complex128" if floating == "float64" else "complex64"
        made, reason = with_article(narrow), f"an integer would be rounded in {narrow}"
    if reason:
        action, there = f"make {made} array of this {nest.noun}", nearest(dtype)
        hint = f"dtype={there!r}"
        if not _are_finite(integers, there):
            hint = "numpy.array(x, object)"
        elif not all(_is_exact(n, there) for n in integers):
            hint = f"{hint} to accept rounding"
        raise ValueLossError.build(action, reason, hint)
    return dtype


def _are_finite(integers: list[int], dtype: str) -> bool:
    most = float(np.finfo(native_dtype(dtype)).max)
    return all(-most <= n <= most for n in integers)


def _is_exact(n: int, floating: str) -> bool:
    zeros = (n & -n).bit_length() - 1
    return n == 0 or (abs(n) >> zeros) < exact_integers(floating)[1]


def sample(number: HostArray) -> complex:
    """Return a Python number of the kind of `number`, as an example for promotion."""
    return {"b": False, "i": 0, "u": 0, "f": 0.0, "c": 0j}[number.dtype.kind]


def promote(names: list[str], weak: list[complex]) -> str:
    """Return the dtype of a list of arrays, as NumPy promotes. Python numbers are weak."""
    if not DTYPES.keys() >= set(names):
        raise _no_common_dtype_error(names)
    try:
        strong = np.result_type(*map(native_dtype, names))
        if category(strong.name) == "float" and not any(isinstance(n, complex) for n in weak):
            return strong.name
        return np.result_type(strong, *weak).name
    except (TypeError, ValueError) as error:
        raise _no_common_dtype_error(names) from error


def _no_common_dtype_error(names: list[str]) -> DTypeError:
    odd = next((name for name in names if name not in DTYPES), None)
    action = f"stack arrays of {' and '.join(dict.fromkeys(names))}"
    wide = ("float32", "float64", "complex64", "complex128")
    holding = (word for word in wide if all(holds_every(name, word) for name in names))
    hint = "" if odd else f"dtype={next(holding, wide[-1])!r}"
    return DTypeError.build(action, "they have no common dtype", hint)


def _ragged_error(reason: str) -> OptionError:
    hint = "[asarray(row, backend='numpy') for row in x] for a list of arrays"
    return OptionError.build("make an array of this list", reason, hint)


def _unusable_error(reason: str) -> UnsupportedArrayError:
    return UnsupportedArrayError.build("make an array of this list", reason)
