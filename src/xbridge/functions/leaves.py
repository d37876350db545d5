"""The leaves of trees: which objects are arrays, which never are, and which may hold some."""

from __future__ import annotations

from gc import get_referents
from types import FunctionType, ModuleType

from xbridge.extend import backend_for

NUMBERS = (bool, int, float, complex)
"""The number types of Python."""

LITERALS = (*NUMBERS, list, tuple, range)
"""The types of numbers and of nested lists of them, of which `xbridge.asarray` makes arrays."""

LEAVES = (str, bytes, type(None), *NUMBERS)
"""Types of arguments that are never arrays, and have no arrays in them."""


def are_arrays(cls: type) -> bool:
    """Return True if a backend owns instances of a class. `numpy.str_`, a string too, does not count."""
    return backend_for(cls) is not None and not issubclass(cls, (str, bytes))


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
