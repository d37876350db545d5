"""Refuse results without usable arrays: those that come after the call, or hide arrays in objects."""

from __future__ import annotations

import inspect
from gc import get_referents
from types import FunctionType, ModuleType

from xbridge._registry.registry import are_arrays, backend_for
from xbridge.errors import OptionError, UnsupportedArrayError


def refuse_async_result(result: object, name: str) -> None:
    """Raise if a result comes later than the call."""
    later = isinstance(result, (map, filter, zip)) or inspect.isgenerator(result)
    if later or (inspect.isawaitable(result) and backend_for(type(result)) is None):  # Dask's are both
        raise async_result_error(name)


def async_result_error(name: str) -> OptionError:
    """Return the error for a function whose results come later than the call."""
    return OptionError.build(
        f"align {name}", "its results come later than it returns", "align_back inside it"
    )


def hidden_arrays_error(what: str, hint: str) -> UnsupportedArrayError:
    """Return the error for arrays in an object that cannot be built again with other arrays."""
    reason = "it cannot be made again with other arrays"
    return UnsupportedArrayError.build(f"convert the arrays in {what}", reason, hint)


def holds_arrays(x: object) -> bool:
    """Return True if an array can be reached from an object, not counting modules, classes and globals."""
    seen: dict[int, object] = {}
    rest = [x]
    while rest:
        x = rest.pop()
        if id(x) in seen or isinstance(x, (type, ModuleType)):
            continue
        seen[id(x)] = x
        if are_arrays(type(x)):
            return True
        if isinstance(x, FunctionType):
            rest += [x.__closure__, x.__defaults__, x.__kwdefaults__, vars(x)]
        else:
            rest += get_referents(x)
    return False
