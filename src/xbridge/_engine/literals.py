"""Make arrays of Python numbers and lists as similar ones were made before, without a plan for each.

The first list of numbers of a program needs no more than this module: `_api` tries it before it imports the
rest of the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from xbridge._core.devices import CPU
from xbridge._core.dtypes import category, exact_integers
from xbridge._core.literals import NUMBERS
from xbridge._core.protocol import Array, Backend, HostArray
from xbridge._core.tracing import none_in_traces
from xbridge._host import sequences
from xbridge._host.memory import astype_checked
from xbridge._registry import registry
from xbridge._registry.call_cache import cache_version, cached, decline, lookup_direct, store, unchanged
from xbridge._registry.registry import get
from xbridge.backends import HOST
from xbridge.errors import XBridgeError

Convert = Callable[[Any], Any]
Filler = Callable[[tuple[int, ...], Any], Array | None]
"""From the shape of nested lists and the items in them; or from () and a number."""


@none_in_traces
def make_array(obj: Any, name: Any) -> Array | None:
    """Make an array of numbers without options, and cache the call; return None if it has to be planned."""
    target = get(HOST if name is None else name)
    version, key = cache_version(), ("asarray", name, type(obj), type(None), None, None, None, None)
    if key in cached or registry.observers or "host" in target.gaps or target.is_tracing():
        return None

    def find(kinds: frozenset[type], _: type) -> Filler | None:
        return number_filler(kinds, target) if kinds.issubset(NUMBERS) else None

    convert = literal_converter(type(obj), find)
    y = convert(obj)
    if y is not None:
        store(key, version, convert)
    return y


def number_filler(
    kinds: frozenset[type], target: Backend, named: str | None = None, finish: Convert | None = None
) -> Filler:
    """Return the function that makes an array of Python numbers of these types, or returns None.

    It declines integers that would be rounded, or wrapped, without an error. `named` is the dtype that the
    caller named. `finish` converts the host array. Without it the result has the target's default dtype,
    and the target has arrays on the host.
    """
    make, given = sequences.array_of(kinds)
    convert = finish or (unchanged if target.name == HOST else _default_converter(given, target))
    find_limits: Callable[[], tuple[int, int]] | None = None
    if kinds <= {bool, int}:
        if named and category(named) == "int" and named != "int64":
            find_limits = partial(exact_integers, named)
    elif int in kinds:
        floating = "float64" if named or target.name == HOST else None

        def limits_of_floats() -> tuple[int, int]:
            # A default dtype may change between calls. Of the next integer, others are rounded to it.
            most = exact_integers(floating or target.default_dtype("float", CPU))[1] - 1
            return -most, most

        find_limits = limits_of_floats

    if find_limits is None and convert is unchanged:
        return make

    def fill(shape: tuple[int, ...], numbers: Any) -> Array | None:
        if find_limits and not sequences.are_between(numbers if shape else (numbers,), *find_limits()):
            return None
        host = make(shape, numbers)
        return host if host is None else convert(host)

    return fill


def _default_converter(given: str, target: Backend) -> Convert:
    """Return the function that converts host arrays of a dtype to the default one of a target."""
    kind = category(given)

    def convert(host: HostArray) -> Array | None:
        dtype = target.default_dtype(kind, CPU)
        try:
            cast = host if dtype == given else astype_checked(host, dtype)
        except XBridgeError:  # a value would be lost: the plan says which
            return None
        return lookup_direct(target.name, type(cast))(cast)

    return convert


def literal_converter(cls: type, find: Callable[[frozenset[type], type], Filler | None]) -> Convert:
    """Return the function that converts numbers, or lists, of a type as similar ones were, or returns None.

    What is done with a list depends on the types of its items, so `find` decides it once for a set of types,
    and for the type of the first item, which may decide the target.
    """
    if cls in NUMBERS:
        return partial(find(frozenset((cls,)), cls) or decline, ())
    if cls is not list and cls is not tuple:  # a class may hide its items
        return decline
    fillers: dict[object, Filler] = {}

    def convert_list(x: Any) -> Array | None:
        items = [*x]  # another thread may change a list meanwhile
        shape: tuple[int, ...] = (len(items),)
        kinds = sequences.types_of(items)
        fill = fillers.get(kinds)
        if fill is not None:  # a flat list of one type, which needs no more
            return fill(shape, items)
        if sequences.are_sequences(kinds):
            try:
                shape, items, kinds = sequences.flatten_rows(items, items, kinds, *shape)
            except XBridgeError:  # the plan raises it with a hint
                return None
        first = type(next(iter(items), None))  # it may decide
        key = (kinds, first) if len(kinds) > 1 else kinds
        fill = fillers.get(key)
        if fill is None:
            fill = find(kinds, first)
            if fill is None:
                return None
            fillers[key] = fill
        return fill(shape, items)

    return convert_list
