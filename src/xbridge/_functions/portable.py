"""Aligned functions that are no functions of Python, because those are pickled by their name only."""

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
    """An aligned function whose name stands for the function that it calls, or for nothing.

    It is pickled by that function and the options of `aligned`. A partial calls without a frame of its own.
    """

    __module__: str
    __qualname__: str

    def as_made_by(self, aligned: Callable[..., Any], options: dict[str, Any]) -> Portable:
        """Return it, after it was told how to make it again."""
        update_wrapper(self, self.func)
        vars(self).update(__wrapped__=vars(self.func)["__wrapped__"], _made_by=(aligned, options))
        return self

    def __get__(self, instance: object, owner: object = None) -> object:
        """Bind it as a method, as a function is bound."""
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        """Return what stands for a function."""
        return repr(self.func)

    def __reduce__(self) -> str | tuple[object, ...]:
        """Pickle it by its name, if that has come to stand for it."""
        if _named(self) is self:
            return self.__qualname__
        aligned, options = vars(self)["_made_by"]
        library = options["backend"]
        if isinstance(library, ModuleType):
            options = {**options, "backend": get(library).name}
        return _made_again, (aligned, vars(self)["__wrapped__"], options)


def is_portable(fn: Callable[..., Any]) -> bool:
    """Return True for a function that is not just being decorated, so that its name stays its own."""
    return not hasattr(fn, "__qualname__") or _named(fn) is getattr(fn, "__func__", fn)


def _named(x: Any) -> object:
    """Return what the name of a function stands for, if it is in a module."""
    try:
        return attrgetter(x.__qualname__)(sys.modules[x.__module__])
    except (AttributeError, KeyError):
        return None


def _made_again(aligned: Callable[..., Any], fn: Callable[..., Any], options: dict[str, Any]) -> Any:
    return aligned(**options)(fn)
