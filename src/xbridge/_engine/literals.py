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
from xbridge._host.sequences import Nest
from xbridge._registry import registry
from xbridge._registry.call_cache import cache_version, lookup_direct, store, store_by_key, unchanged
from xbridge._registry.registry import get
from xbridge.backends import HOST
from xbridge.errors import XBridgeError

Convert = Callable[[Any], Any]
Wrap = Callable[[Convert], Callable[..., Any]]
Filler = Callable[[tuple[int, ...], Any], Array | None]
"""From the shape of nested lists and the items in them; or from () and a number."""

CACHED = (*NUMBERS, list, tuple)
"""The types whose calls are cached: another class may hide its items."""


@none_in_traces
def make_array(obj: Any, name: Any) -> Array | None:
    """Make an array of numbers without options, and cache the call; return None if it has to be planned."""
    target, cls = get(HOST if name is None else name), type(obj)
    version = cache_version()
    if registry.observers or "host" in target.gaps or target.is_tracing() or cls not in CACHED:
        return None
    try:
        nest = sequences.flatten(obj)
    except XBridgeError:  # the plan raises it with a hint
        return None
    if not nest.kinds.issubset(NUMBERS):
        return None
    fill = default_filler(nest.kinds, target)
    y = fill(nest.shape, nest.leaves if nest.shape else obj)
    if y is not None:
        cache_filler(("asarray", name, cls, type(None), None, None, None, None), version, nest, fill)
    return y


def default_filler(kinds: frozenset[type], target: Backend) -> Filler:
    """Return the function that makes an array of numbers of these types in the target's default dtype."""
    fill = number_filler(kinds, target)
    given = sequences.array_of(kinds)[1]
    return fill if target.name == HOST else chain(fill, _default_converter(given, target))


def number_filler(kinds: frozenset[type], target: Backend, named: str | None = None) -> Filler:
    """Return the function that makes a host array of Python numbers of these types, or returns None.

    It declines integers that would be rounded, or wrapped, without an error when the array is converted: to
    the dtype that the caller named, or else to the target's default dtype.
    """
    make, _ = sequences.array_of(kinds)
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
    if find_limits is None:
        return make

    def fill(shape: tuple[int, ...], numbers: Any) -> Array | None:
        are_exact = sequences.are_between(numbers if shape else (numbers,), *find_limits())
        return make(shape, numbers) if are_exact else None

    return fill


def chain(fill: Filler, finish: Convert) -> Filler:
    """Return the function that makes an array by the first function, and finishes it by the other."""

    def fill_and_finish(shape: tuple[int, ...], items: Any) -> Array | None:
        y = fill(shape, items)
        return None if y is None else finish(y)

    return fill_and_finish


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


def cache_filler(
    call: tuple[object, ...], version: int, nest: Nest, fill: Filler, finish: Wrap = unchanged
) -> None:
    """Cache how a number, or a list, became an array, for others whose items have the same types.

    What is done with a list depends on no more than these types, and on the type of the first item, which may
    decide the target. `finish` completes the function that repeats the call.
    """
    if nest.shape:
        key = _items_key(nest.kinds, nest.leaves)
        store_by_key(call, version, fill, key, lambda table: finish(_dispatch_on_items(table)))
    else:
        store(call, version, finish(partial(fill, ())))


def _dispatch_on_items(table: dict[object, Filler]) -> Convert:
    """Return the function that converts a list as the table says for the types of its items, or declines."""
    find = table.get

    def convert_list(x: Any) -> Array | None:
        items = [*x]  # another thread may change a list meanwhile
        shape: tuple[int, ...] = (len(items),)
        kind = type(items[0]) if items else None
        for item in items:  # written out: a flat list of one type needs no more
            if type(item) is not kind:
                break
        else:
            fill = find(kind)
            if fill is not None:
                return fill(shape, items)
        kinds = sequences.types_of(items)
        if sequences.are_sequences(kinds):
            try:
                shape, items, kinds = sequences.flatten_rows(items, items, kinds, *shape)
            except XBridgeError:  # the plan raises it with a hint
                return None
        fill = find(_items_key(kinds, items))
        return None if fill is None else fill(shape, items)

    return convert_list


def _items_key(kinds: frozenset[type], items: list[Any]) -> object:
    return (kinds, type(items[0])) if len(kinds) > 1 else next(iter(kinds), None)
