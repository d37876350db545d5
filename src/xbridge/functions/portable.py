"""Aligned functions that can be pickled.

Python pickles a function by its name. The name of a function that was wrapped without the decorator syntax,
as in ``g = aligned(f)``, is that of `f`. So such a wrapper is an object, which pickles `f` and the options.
"""

from __future__ import annotations

import sys
from functools import partial, update_wrapper
from operator import attrgetter
from types import MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from xbridge._registry.registry import get

if TYPE_CHECKING:
    from collections.abc import Callable


class Portable(partial[Any]):
    """An aligned function that is not the object of its name, and is pickled by the options of `aligned`.

    It is a `functools.partial`, because that calls the function without a frame of its own.
    """

    __module__: str
    __qualname__: str

    def as_made_by(self, aligned: Callable[..., Any], options: dict[str, Any]) -> Portable:
        """Store how to make this object again, for pickling, and return it."""
        update_wrapper(self, self.func)
        vars(self).update(__wrapped__=vars(self.func)["__wrapped__"], _made_by=(aligned, options))
        return self

    def __get__(self, instance: object, owner: object = None) -> object:
        """Bind it to an object as a method, as a function would be."""
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        """Return the representation of the function."""
        return repr(self.func)

    def __reduce__(self) -> str | tuple[object, ...]:
        """Pickle it by its name if a module has it under that name, else by the function and the options."""
        if _find_by_name(self) is self:
            return self.__qualname__
        aligned, options = vars(self)["_made_by"]
        library = options["backend"]
        if isinstance(library, ModuleType):
            options = {**options, "backend": get(library).name}
        return _remake, (aligned, vars(self)["__wrapped__"], options)


def is_portable(fn: Callable[..., Any]) -> bool:
    """Return True if a wrapper of the function needs `Portable`.

    It does not while the function is being decorated: its name does not exist yet, and will be the wrapper's.
    """
    return not hasattr(fn, "__qualname__") or _find_by_name(fn) is getattr(fn, "__func__", fn)


def _find_by_name(x: Any) -> object:
    """Return the object that the module of a function has under its name; None if there is none."""
    try:
        return attrgetter(x.__qualname__)(sys.modules[x.__module__])
    except (AttributeError, KeyError):
        return None


def _remake(aligned: Callable[..., Any], fn: Callable[..., Any], options: dict[str, Any]) -> Any:
    return aligned(**options)(fn)
