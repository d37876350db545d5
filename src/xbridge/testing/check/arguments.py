"""Arguments with which a function of arrays can be called: by its annotations and the types of its numpydoc.

A parameter that says nothing of its type may be an array. What is inferred is tried: the arguments of a
function are the first ones with which it returns something. Optional parameters keep their defaults.
"""

from __future__ import annotations

import ast
import inspect
import re
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xbridge.testing._outcome import outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xbridge.protocol import HostArray

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments, with arrays of NumPy."""

_SHAPES: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((4, 3),),
    ((6,),),
    ((3, 3),),
    ((4, 3), (3,)),
    ((3, 3), (3,)),
    ((4, 3), (4,)),
    ((2, 3, 4),),
    ((2, 4, 6, 2),),
    ((),),
    ((1,),),
)
"""The shapes that are tried for arrays without a documented one: of the first array, and of all others."""

_KINDS = ("float", "int", "bool", "complex")
"""The kinds of numbers that are tried for arrays without a documented one."""

_SIDES = (4, 3, 5, 2)
"""The lengths of documented axes, in the order in which their names are met."""

_PLAIN_VALUES = (("int", 2), ("bool", False), ("float|scalar|number", 0.5))
"""Words in types, and the value for a parameter of such a type."""


class Slot(NamedTuple):
    """A required parameter."""

    name: str
    is_keyword: bool
    kinds: tuple[str, ...] = ()
    """The kinds of numbers that an array may have; none if the parameter is no array."""
    sides: tuple[str, ...] = ()
    """The documented axes of an array, as names and numbers."""
    length: int = 0
    """The number of arrays in a list, if the parameter takes a list."""
    value: Any = None
    """The value of a parameter that is no array."""


def arguments_of(f: Callable[..., Any]) -> Iterator[Arguments]:
    """Yield the arguments to try for a function; nothing if a required parameter cannot be guessed."""
    slots = _slots(f)
    if slots is None or not any(slot.kinds for slot in slots):
        return
    kinds = [kind for kind in _KINDS if any(kind in slot.kinds for slot in slots)]
    is_documented = all(slot.sides for slot in slots if slot.kinds)
    for kind, shapes in product(kinds, _SHAPES[:1] if is_documented else _SHAPES):
        yield _filled(slots, kind, shapes)


def _slots(f: Callable[..., Any]) -> list[Slot] | None:
    """Return the required parameters of a function; None if one of them cannot be guessed."""
    if isinstance(f, np.ufunc):
        return [Slot(f"x{n}", is_keyword=False, kinds=_KINDS) for n in range(f.nin)]
    found = outcome(partial(inspect.signature, f))
    if found.error is not None:
        return None
    documented, slots = _documented(f), []
    for parameter in found.result.parameters.values():
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            hint = parameter.annotation
            hint = hint.__name__ if isinstance(hint, type) else str(hint)
            hint = "" if parameter.annotation is parameter.empty else hint
            slot = _slot(parameter, documented.get(parameter.name) or hint)
            if slot is None:
                return None
            slots.append(slot)
    return slots


def _documented(f: Callable[..., Any]) -> dict[str, str]:
    """Return the types that a docstring gives as numpydoc does, `x, y : type`, by the parameter's name."""
    found: dict[str, str] = {}
    for names, text in re.findall(r"^([\w*][\w*, ]*?) : (.+)$", inspect.getdoc(f) or "", re.MULTILINE):
        for name in names.split(","):
            found.setdefault(name.strip().lstrip("*"), text)
    return found


def _slot(parameter: inspect.Parameter, text: str) -> Slot | None:
    """Return a required parameter of a type; None if no value can be guessed."""
    slot = Slot(parameter.name, parameter.kind is parameter.KEYWORD_ONLY)
    if choices := re.match(r"\{.*?\}", text):
        listed = outcome(lambda: ast.literal_eval(f"[{choices[0][1:-1]}]"))
        return slot._replace(value=listed.result[0]) if listed.result else None
    is_array = re.search(r"array|tensor|matrix", text, re.IGNORECASE)
    if is_array or text in ("", "Any", "typing.Any"):
        kinds = tuple(kind for kind in _KINDS if re.search(kind, text, re.IGNORECASE)) or _KINDS
        shape = re.search(r"\((\w+(?:, *\w+)*),?\)", text) if "," in text else None
        sides = tuple(re.split(", *", shape[1])) if shape else ()
        is_list = re.match(r"(list|tuple|sequence|iterable)\b", text, re.IGNORECASE)
        return slot._replace(kinds=kinds, sides=() if is_list else sides, length=2 if is_list else 0)
    for words, value in _PLAIN_VALUES:
        if re.search(rf"\b({words})", text):
            return slot._replace(value=value)
    return None


def _filled(slots: list[Slot], kind: str, shapes: tuple[tuple[int, ...], ...]) -> Arguments:
    """Return values for all parameters: arrays of a kind, if they may have it, and of the given shapes."""
    args, kwargs, turn = [], {}, 0
    lengths: dict[str, int] = {}
    for slot in slots:
        value = slot.value
        if slot.kinds:
            own = kind if kind in slot.kinds else slot.kinds[0]
            made = []
            for _ in range(slot.length or 1):
                shape = tuple(_length(side, lengths) for side in slot.sides)
                made.append(numbers(own, shape or shapes[min(turn, len(shapes) - 1)], turn))
                turn += 1
            value = made if slot.length else made[0]
        if slot.is_keyword:
            kwargs[slot.name] = value
        else:
            args.append(value)
    return tuple(args), kwargs


def _length(side: str, lengths: dict[str, int]) -> int:
    """Return the length of an axis: its number, or one length for each name."""
    return int(side) if side.isdigit() else lengths.setdefault(side, _SIDES[len(lengths) % len(_SIDES)])


def numbers(kind: str, shape: tuple[int, ...], turn: int) -> HostArray:
    """Return distinct small numbers of a kind, in increasing order at first, and other ones for each `turn`.

    They are fractions of a power of two and at most a few units large, so that sums and products are exact.
    """
    size = int(np.prod(shape, dtype=int))
    steps = np.arange(size) if turn == 0 else (np.arange(size) * 5 + 3 * turn) % max(size, 1)
    if kind == "bool":
        made = (steps + steps // 3 + turn) % 2 == 0
    elif kind == "int":
        made = steps % 7 + 1
    else:
        made = (1 + steps + (steps * steps) % 5 / 8) / 8
        made = made + 1j * made[::-1] if kind == "complex" else made
    return np.array(made.reshape(shape), order="C")
