"""Convert numbers and lists as similar ones were converted before, without a plan for each item."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from xbridge._core.literals import NUMBERS
from xbridge._engine.convert import convert
from xbridge._engine.numbers import from_numbers, number_filler
from xbridge._engine.source import Source
from xbridge._engine.stack import from_arrays, is_scalar, stack_filler
from xbridge._host import sequences
from xbridge._plan.steps import Options
from xbridge._registry.call_cache import decline
from xbridge._registry.registry import backend_for, get
from xbridge.backends import HOST

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge._core.protocol import Array, Backend
    from xbridge._engine.numbers import Filler
    from xbridge._engine.repeat import Convert

_NUMBER_TYPES = frozenset(NUMBERS)


def choose_converter(source: Source) -> tuple[Callable[..., Array], Any, list[Backend]]:
    """Choose the function that converts an input.

    Return the function, its first argument, and the backends of the arrays in it, the leading one first.
    """
    if not source.is_literal():
        return convert, source, [source.backend]
    nest = sequences.flatten(source.array)
    backends = {kind: backend_for(kind) or source.backend for kind in nest.array_types()}
    if not backends:
        return from_numbers, nest, [source.backend]
    proper = [backend for kind, backend in backends.items() if not issubclass(kind, backend.scalar_types)]
    return from_arrays, nest, [*proper, *backends.values()]


def literal_converter(cls: type, target: Backend | None, options: Options) -> Convert:
    """Return the function that converts numbers, or lists, of a type as similar ones were, or returns None.

    Without a target, the first array decides, and numbers become NumPy's. What is done with a list depends on
    the types of its items, so that is decided once for a set of types.
    """
    if options.copy is False or options.order:
        return decline
    if cls in NUMBERS:
        return partial(number_filler(frozenset((cls,)), target, options), ())
    if cls not in sequences.ROWS:  # a class may hide its items
        return decline
    fillers: dict[object, Filler] = {}

    def convert_list(obj: Any) -> Array | None:
        found = sequences.outline([*obj])  # another thread may change a list meanwhile
        if found is None:
            return None
        shape, items, kind = found
        key = (kind, type(items[0])) if type(kind) is frozenset else kind  # the first item may decide
        fill = fillers.get(key)
        if fill is None:
            fill = _find_filler(items, target, options)
            if fill is None:
                return None
            fillers[key] = fill
        return fill(shape, items)

    return convert_list


def _find_filler(items: list[Any], target: Backend | None, options: Options) -> Filler | None:
    """Return the function that makes one array of such items without a plan for each, or None."""
    kinds = frozenset(map(type, items))
    if kinds <= _NUMBER_TYPES:
        return number_filler(kinds, target, options)
    if target is None:
        target = get(HOST) if all(map(is_scalar, kinds)) else backend_for(type(items[0]))
        if target is None or (is_scalar(type(items[0])) and target.name != HOST):
            return None
    return stack_filler(kinds, target, options)
