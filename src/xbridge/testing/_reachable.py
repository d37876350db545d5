"""Find and restore the state that a function keeps between calls: caches, buffers and counters.

A cache that is wrong for every array but the first gives the same wrong result each time, so that two calls
in a row agree. The fault shows if the cache is emptied between them. So the containers that a function can
reach through its globals, closure, defaults and attributes are found, and are restored in place.
"""

from __future__ import annotations

import dis
import sys
from collections import deque
from contextlib import suppress
from copy import deepcopy
from functools import cache, partial
from operator import is_
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from xbridge import known_backends
from xbridge.extend import entries_for
from xbridge.testing._outcome import catch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import CellType

_LIBRARIES = frozenset(
    {
        *("xbridge", "array_api_compat", "hypothesis", "pytest"),
        "_pytest",  # which each function with an `assert` uses, as pytest has rewritten it
        *(root for name in known_backends() for entry in entries_for(name) for root in entry.roots),
    }
)
"""Roots of packages whose state is not that of a function which uses them."""

_VALUES = (int, float, complex, str, bytes, type(None), np.generic, np.dtype, np.ufunc, BuiltinFunctionType)
"""Types of objects without state."""

_LARGEST_BUFFER = 1 << 20
"""The size in bytes above which an array is regarded as a constant."""


class ReachableState:
    """The mutable objects that a function can reach, and their present contents.

    What `functools.cache` has stored for the function is forgotten, because that cannot be put back.
    """

    def __init__(self, f: Callable[..., Any]) -> None:
        self.roots: frozenset[str] = roots_of(f)
        """The packages in which the function and those that it calls are defined."""
        self.is_empty: bool = True
        """True if nothing was found that may change, so that the function keeps no state."""
        self._undo: list[Callable[[], object]] = []
        self._seen: dict[int, object] = {}
        self._left: list[tuple[Any, frozenset[str]]] = [(f, frozenset())]
        while self._left:  # not by recursion: containers may be nested deeper than Python's stack
            catch(partial(self._visit, *self._left.pop()))  # objects may raise when they are looked at

    def restore(self) -> None:
        """Put all contents back."""
        for undo in self._undo:
            catch(undo)  # a container may refuse to be changed

    def _visit(self, x: Any, names: frozenset[str]) -> None:
        """Find the mutable objects behind an object, in a module behind the names that a function uses."""
        if isinstance(x, _VALUES) or id(x) in self._seen:
            return
        self._seen[id(x)] = x  # alive, so that no other object gets its address
        if isinstance(x, FunctionType):
            if root_of(x.__module__) in self.roots:
                self._visit_function(x)
        elif isinstance(x, ModuleType):
            if root_of(x.__name__) in self.roots:
                self._visit_variables(vars(x), names)
        elif isinstance(x, type):
            if root_of(x.__module__) in self.roots:
                self._undo.append(partial(_restore_class, x, dict(vars(x))))
                self._visit_all(vars(x).values(), names)
        elif hasattr(x, "cache_clear"):
            x.cache_clear()
            self._undo.append(x.cache_clear)
            self.is_empty = False
            self._left.append((getattr(x, "__wrapped__", None), names))
        elif isinstance(x, tuple | frozenset | partial | MethodType | staticmethod | classmethod | property):
            self._visit_all(_parts(x), names)
        else:
            self._visit_mutable(x, names)

    def _visit_all(self, objects: Iterable[Any], names: frozenset[str]) -> None:
        self._left += [(one, names) for one in objects if not issubclass(type(one), _VALUES)]

    def _visit_function(self, f: FunctionType) -> None:
        names, (assigned, stores_attributes) = frozenset(_names(f.__code__)), _effects(f.__code__)
        for name in assigned - f.__globals__.keys():
            self._undo.append(partial(f.__globals__.pop, name, None))
        self.is_empty &= not assigned and not stores_attributes
        self._visit_variables(f.__globals__, names)
        for cell, contents in _cells(f):
            self._undo.append(partial(setattr, cell, "cell_contents", contents))
            self._left.append((contents, names))
        self._visit_all((*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()), names)
        if vars(f) or stores_attributes:
            self._left.append((vars(f), names))

    def _visit_variables(self, variables: dict[str, Any], names: frozenset[str]) -> None:
        """Visit variables of a module, and remember what they are bound to."""
        for name in names & variables.keys():
            self._undo.append(partial(variables.__setitem__, name, variables[name]))
            self._left.append((variables[name], names))

    def _visit_mutable(self, x: Any, names: frozenset[str]) -> None:
        """Remember the contents of a container, an array or an instance."""
        self.is_empty = False
        if isinstance(x, dict | list | deque | bytearray | set):
            copy: Any = dict if isinstance(x, dict) else set if isinstance(x, set) else list
            fill = x.update if isinstance(x, dict | set) else x.extend
            self._undo.append(partial(_refill, x, fill, copy(x)))
            self._visit_all(x.values() if isinstance(x, dict) else x, names)
        elif isinstance(x, np.ndarray):
            if x.flags.writeable and not x.dtype.hasobject and x.nbytes <= _LARGEST_BUFFER:
                self._undo.append(partial(np.copyto, x, x.copy()))
        else:
            if hasattr(x, "load_state_dict") and hasattr(x, "state_dict"):  # of torch, Flax and others
                self._undo.append(partial(x.load_state_dict, deepcopy(x.state_dict())))
            if root_of(type(x).__module__) in self.roots:
                own = [type(x), vars(x)] if hasattr(x, "__dict__") else [type(x)]
                self._left += [(one, names) for one in own]


def roots_of(f: Callable[..., Any]) -> frozenset[str]:
    """Return the root packages of a function and of what it uses, without Python's and array libraries."""
    while isinstance(f, partial):
        f = f.func
    f = getattr(f, "__func__", f)
    own, used = {root_of(getattr(f, "__module__", "")), root_of(type(f).__module__)}, set[str]()
    if isinstance(f, FunctionType):
        values = [f.__globals__[name] for name in {*_names(f.__code__)} & f.__globals__.keys()]
        values += [contents for _, contents in _cells(f)]
        used = {root_of(getattr(x, "__module__", None) or getattr(x, "__name__", None)) for x in values}
    return frozenset(own | used) - _LIBRARIES - sys.stdlib_module_names - {""}


def root_of(module: object) -> str:
    """Return the root package of the name of a module."""
    return module.partition(".")[0] if isinstance(module, str) else ""


def _cells(f: FunctionType) -> Iterator[tuple[CellType, Any]]:
    """Yield the variables of outer functions, with their values, that have one already."""
    for cell in f.__closure__ or ():
        with suppress(ValueError):
            yield cell, cell.cell_contents


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names of variables and attributes in a function and the functions in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


@cache
def _effects(code: CodeType) -> tuple[frozenset[str], bool]:
    """Return the variables outside of a function that it assigns, and whether it stores attributes."""
    steps = [*dis.get_instructions(code)]
    inner = [_effects(one) for one in code.co_consts if isinstance(one, CodeType)]
    names = {
        step.argval
        for step in steps
        if step.opname == "STORE_GLOBAL" or (step.opname == "STORE_DEREF" and step.argval in code.co_freevars)
    }
    stores = any(step.opname == "STORE_ATTR" for step in steps) or any(within for _, within in inner)
    return frozenset(names.union(*(assigned for assigned, _ in inner))), stores


def _restore_class(cls: type, contents: dict[str, Any]) -> None:
    """Give a class its former attributes."""
    for name in vars(cls).keys() - contents.keys():
        type.__delattr__(cls, name)  # not by a metaclass, which may refuse
    for name, value in contents.items():
        if name not in vars(cls) or vars(cls)[name] is not value:
            type.__setattr__(cls, name, value)


def _parts(x: Any) -> Iterator[Any]:
    """Yield what an immutable object holds."""
    if isinstance(x, tuple | frozenset):
        yield from x
    elif isinstance(x, partial):
        yield from (x.func, x.args, x.keywords)
    elif isinstance(x, property):
        yield x.fget
    else:
        yield x.__func__
        yield getattr(x, "__self__", None)


def _refill(container: Any, fill: Callable[[Any], None], contents: Any) -> None:
    """Give a container its former contents, unless it has them: it may belong to another thread."""
    if not _holds(container, contents):
        container.clear()
        fill(contents)


def _holds(container: Any, contents: Any) -> bool:
    """Return True if a container holds the same objects as another one."""
    if len(container) != len(contents) or not all(map(is_, container, contents)):
        return False
    return not isinstance(container, dict) or all(map(is_, container.values(), contents.values()))
