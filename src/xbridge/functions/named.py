"""The option `arrays=` of `aligned`: arguments of these parameters become arrays, also lists and numbers.

An exporter of memory becomes a host array first, which may decide where results go. Numbers and lists never
decide, so they are converted when the library of the function is known.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from inspect import Parameter
from typing import TYPE_CHECKING, Any, NamedTuple

from xbridge import asarray
from xbridge.errors import OptionError, XBridgeError, shown
from xbridge.extend import HOST, backend_for, get_backend
from xbridge.functions.treedef import LITERALS, are_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from xbridge.protocol import Array

_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class ArrayParameters(NamedTuple):
    """The parameters of a function that `arrays=` names."""

    function: str
    positional: list[str]
    """All parameters of the function that can be given by position."""
    names: Collection[str]

    def map(
        self, fn: Callable[[Any], Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments, after `fn` was applied to the named ones that are neither arrays nor None."""
        places = dict(zip(self.positional, args, strict=False))
        made = [self._apply(fn, x, name) for name, x in places.items()]
        return (*made, *args[len(made) :]), {key: self._apply(fn, x, key) for key, x in kwargs.items()}

    def _apply(self, fn: Callable[[Any], Any], x: Any, name: str) -> Any:
        if name not in self.names or x is None or are_arrays(type(x)):
            return x
        try:
            return fn(x)
        except XBridgeError as error:
            raise error.at(f"argument {name!r} of {self.function}") from error


def import_exporter(x: Any, dtype: object) -> Any:
    """Return an array for an exporter, read-only if it is NumPy's; a number or a list is returned as it is.

    Raise for any other object.
    """
    if issubclass(type(x), LITERALS):
        return x
    made = asarray(x, dtype=dtype)
    return protect_host(made, made) if backend_for(type(made)) is get_backend(HOST) else made


def protect_host(host: Any, x: Array) -> Any:
    """Make a host array read-only, which is the conversion of `x`. If it is `x` itself, make a view of it."""
    if host is x:
        host = host.view()  # also of a read-only array: if it owns its memory, its flag could be set again
    host.flags.writeable = False
    return host


def read_array_parameters(given: object, fn: Callable[..., Any], function: str) -> ArrayParameters | None:
    """Return the parameters of a function that `arrays=` names; raise if there is no such parameter.

    Those of ``*args`` and ``**kwargs``, and of functions in C that have no signature, have no names.
    """
    if given is None:
        return None
    parameters: list[Parameter] = []
    with suppress(TypeError, ValueError):
        parameters += inspect.signature(fn).parameters.values()
    positional = [p.name for p in parameters if p.kind in _BY_POSITION]
    known = [*positional, *[p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY]]
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, (tuple, list, set, frozenset)) or not all(name in known for name in names):
        hint = f"arrays={tuple(known)}" if known else "a function around it, made by def"
        raise OptionError.build(f"take arrays={shown(given)}", f"{function} has no such parameter", hint)
    return ArrayParameters(function, positional, names)
