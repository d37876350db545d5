"""Refuse results without usable arrays: those that come after the call, or hide arrays in objects."""

from __future__ import annotations

import inspect
from gc import get_referents
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

from xbridge._registry.registry import are_arrays, backend_for
from xbridge.errors import OptionError, with_article
from xbridge.functions.treedef import LEAVES, children_of, hidden_arrays_error

if TYPE_CHECKING:
    from xbridge.functions.treedef import TreeDef


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


def refuse_hidden_arrays(treedef: TreeDef) -> None:
    """Raise if a constant of a result holds arrays, which would leave their library unconverted."""
    for child in children_of(treedef):
        refuse_hidden_arrays(child)
    if treedef[0] == "=" and treedef[1] not in LEAVES and _holds_arrays(treedef[3]):
        raise hidden_arrays_error(with_article(treedef[1].__name__), "a tuple or a dict of them")


def _holds_arrays(x: object) -> bool:
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
