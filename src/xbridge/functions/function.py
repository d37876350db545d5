"""The functions that `aligned` wraps, with the options of the user and a cache of rules."""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakValueDictionary

from xbridge.errors import OptionError
from xbridge.extend import get_backend, tracing
from xbridge.functions.inputs import read_array_parameters
from xbridge.functions.libraries import functions_of, rule_of
from xbridge.functions.programs import Program
from xbridge.functions.rules import Call, get_or_make, latest
from xbridge.functions.treedef import traceable, with_constants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from xbridge.extend import Options
    from xbridge.functions.rules import Definition, DerivableFunction
    from xbridge.functions.treedef import TreeDef

functions: WeakValueDictionary[str, Function] = WeakValueDictionary()
"""The functions in use, by key, because a compiler can keep a string in a program and not the object."""


class Function:
    """A function that `aligned` wraps, with its options, its declarations, and its rules by treedef."""

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        backend: str | None,
        options: Options,
        given: Definition,
        arrays: object = None,
    ) -> None:
        self.fn, self.name, self.backend, self.given = fn, name, backend, given
        self.options = options
        self.arrays, self.named = arrays, read_array_parameters(arrays, fn, name)
        self.explain: Callable[..., Any] = fn
        self.rules: dict[Any, DerivableFunction] = {}
        self.programs: list[Program] = []
        """The calls in compiled programs, which live as long as the function."""
        self.key = f"{name}#{uuid4().hex}"
        functions[self.key] = self

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle what the user gave, without rules and compiled code."""
        given = self.fn, self.name, self.backend, self.options, self.given, self.arrays
        return Function, given, {"explain": self.explain}

    @property
    def dtype(self) -> str | dict[str, str] | None:
        """The dtype that the user names, or maps from those of the arrays."""
        return self.options.dtype or dict(self.options.by_dtype) or None

    def order_keywords(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return keyword arguments in the order of the parameters.

        A declared derivative returns gradients in this order, and `signature` lists arrays in it.
        """
        if len(kwargs) < 2 or self.given[:3] == (None, None, None):
            return kwargs
        with suppress(TypeError, ValueError):  # a function in C may have no signature
            names = inspect.signature(self.fn).parameters
            kwargs = {**{name: kwargs[name] for name in names if name in kwargs}, **kwargs}
        return kwargs

    def rule(self, library: str, array_library: str, treedef: TreeDef) -> DerivableFunction:
        """Return the rule for calls of a structure, whose results go to the library `array_library`."""
        find_modes = functions_of(get_backend(library)).modes
        modes = find_modes and find_modes()
        key = (library, array_library, treedef, modes)
        try:
            found = self.rules.get(key)
        except TypeError as error:
            raise OptionError.build(
                f"call {self.name}",
                f"an argument that is not an array has no hash: {error}",
                "a tuple or a frozenset instead, or an array",
            ) from error
        if found is not None and found.is_outdated:
            self.rules.pop(key, None)

        def make() -> DerivableFunction:
            return rule_of(Call(self.name, self.fn, self.options, self.given, *key))

        return get_or_make(self.rules, key, make)


@tracing.constant_in_traces
def program_key(function: str, traced: TreeDef, library: str, array_library: str, *objects: object) -> str:
    """Return a key that stands for a call in a compiled program. `objects` are its constants."""
    own = functions[function]
    traceable(traced)  # raises for a packed sequence, whose lengths stay as they are

    def find(ints: Sequence[int], floats: Sequence[float]) -> DerivableFunction:
        constants: dict[str, Iterator[Any]] = {
            "int": map(int, ints),
            "float": map(float, floats),
            "object": iter(objects),
        }
        return own.rule(library, array_library, with_constants(traced, constants))

    program = Program(own.name, find)
    own.programs.append(program)
    return program.key


@tracing.constant_in_traces
def latest_traceable() -> TreeDef:
    """Return the latest treedef, of containers that a compiler can make."""
    return traceable(latest.treedef)
