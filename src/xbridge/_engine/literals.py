"""Convert numbers and lists as similar ones were converted before, without a plan for each item."""

from __future__ import annotations

from itertools import compress
from operator import not_
from typing import TYPE_CHECKING, Any

from xbridge._core.literals import NUMBERS
from xbridge._engine.convert import convert
from xbridge._engine.numbers import from_numbers, number_converter
from xbridge._engine.repeat import compose
from xbridge._engine.source import Source
from xbridge._engine.stack import from_arrays, is_scalar, stack_filler
from xbridge._host import sequences
from xbridge._plan.steps import Options
from xbridge._registry.call_cache import decline, unchanged
from xbridge._registry.registry import backend_for, get
from xbridge.backends import HOST

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge._core.protocol import Array, Backend
    from xbridge._engine.repeat import Convert

    _Filler = Callable[[list[Any], tuple[int, ...]], Array | None]
    """From items, and the shape of the nested lists around them."""

_NUMBER_TYPES = frozenset(NUMBERS)


def choose_converter(source: Source) -> tuple[Callable[..., Array], Any, list[Backend]]:
    """Choose the function that converts an input.

    Return the function, its first argument, and the backends of the arrays in it, the leading one first.
    """
    if not source.is_literal():
        return convert, source, [source.backend]
    content = sequences.copy_lists(source.array)
    nest = sequences.nest(content)
    if nest is None:
        return from_numbers, content, [source.backend]
    kinds = dict.fromkeys(map(type, compress(nest.leaves, map(not_, nest.weak))))
    backends = {kind: backend_for(kind) or source.backend for kind in kinds}
    proper = [backend for kind, backend in backends.items() if not issubclass(kind, backend.scalar_types)]
    return from_arrays, nest, [*proper, *backends.values()]


def literal_converter(cls: type, target: Backend | None, options: Options) -> Convert:
    """Return the function that converts numbers, or lists, of a type as similar ones were, or returns None.

    Without a target, the first array decides, and numbers become NumPy's. What is done with a list depends on
    the types of its items, so that is decided once for a set of types.
    """
    if options.copy is False:  # only nothing can be shared
        return decline
    if cls in NUMBERS:
        make, finish, fit = number_converter(frozenset((cls,)), target, options)
        convert_number = compose(make, finish)
        return convert_number if fit is None else lambda n: convert_number(n) if fit((n,)) else None
    if cls not in sequences.ROWS:  # a class may hide its items
        return decline
    fillers: dict[object, _Filler] = {}

    def convert_list(obj: Any) -> Array | None:
        found = sequences.outline([*obj])  # another thread may change a list meanwhile
        if found is None:
            return None
        shape, items, kind = found
        key = kind, type(items[0]) if items else None
        fill = fillers.get(key)
        if fill is None:
            fill = _find_filler(items, target, options)
            if fill is None:
                return None
            fillers[key] = fill
        return fill(items, shape)

    return convert_list


def _find_filler(items: list[Any], target: Backend | None, options: Options) -> _Filler | None:
    """Return the function that makes one array of such items without a plan for each, or None."""
    kinds = frozenset(map(type, items))
    if kinds <= _NUMBER_TYPES:
        return _number_filler(kinds, target, options)
    if target is None:
        target = get(HOST) if all(map(is_scalar, kinds)) else backend_for(type(items[0]))
        if target is None or (is_scalar(type(items[0])) and target.name != HOST):
            return None
    return stack_filler(kinds, target, options)


def _number_filler(kinds: frozenset[type], target: Backend | None, options: Options) -> _Filler:
    """Return the function that makes an array of the numbers of a list, if they pass the test."""
    make, finish, fit = number_converter(kinds, target, options)

    def fill(numbers: list[Any], shape: tuple[int, ...]) -> Array | None:
        host = make(numbers) if fit is None or fit(numbers) else None
        if host is None:
            return None
        if len(shape) > 1:
            host = sequences.fold(host, shape)
        return host if finish is unchanged else finish(host)

    return fill
