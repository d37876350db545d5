"""The option `arrays=` of `aligned`: arguments of these parameters become arrays, also lists and numbers.

An exporter of memory becomes a host array first, which may decide where results go. Numbers and lists never
decide, so they are converted when the library of the function is known.
"""

from __future__ import annotations

import inspect
from inspect import Parameter
from typing import TYPE_CHECKING, Any, NamedTuple

from xbridge import asarray
from xbridge.errors import OptionError, XBridgeError, shown
from xbridge.extend import HOST, backend_for, get_backend
from xbridge.functions.treedef import LITERALS, are_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from xbridge.protocol import Array

_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_BY_KEYWORD = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


class ArrayParameters(NamedTuple):
    """The parameters of a function that `arrays=` names."""

    function: str
    signature: inspect.Signature
    names: Collection[str]

    def map(
        self, fn: Callable[[Any], Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments, after `fn` was applied to the named ones that are neither arrays nor None."""
        parameters = self.signature.parameters
        by_kind = {p.kind: p.name for p in parameters.values()}
        places = [p.name for p in parameters.values() if p.kind in _BY_POSITION]
        rest, more = (by_kind.get(kind) for kind in _VARIABLE)
        owners = [*places[: len(args)], *[rest] * (len(args) - len(places))]
        keywords = {key for key in kwargs if key in parameters and parameters[key].kind in _BY_KEYWORD}
        return tuple([self._apply(fn, x, name, name) for x, name in zip(args, owners, strict=True)]), {
            key: self._apply(fn, x, key, key if key in keywords else more) for key, x in kwargs.items()
        }

    def _apply(self, fn: Callable[[Any], Any], x: Any, label: str | None, name: str | None) -> Any:
        if name not in self.names or x is None or are_arrays(type(x)):
            return x
        try:
            return fn(x)
        except XBridgeError as error:
            raise error.at(f"argument {label!r} of {self.function}") from error


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
    """Return the parameters of a function that `arrays=` names; raise if there is no such parameter."""
    if given is None:
        return None
    action = f"take arrays={shown(given)}"
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, (tuple, list, set, frozenset)) or not all(isinstance(n, str) for n in names):
        raise OptionError.build(action, "it is not a tuple of names of parameters", "arrays=('x',)")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError) as error:
        raise OptionError.build(
            action, f"{function} has no signature that Python can read", "a function around it, made by def"
        ) from error
    parameters = signature.parameters
    wrong = [name for name in names if name not in parameters]
    if wrong:
        named = tuple(name for name, parameter in parameters.items() if parameter.kind not in _VARIABLE)
        hint = f"arrays={named}" if named else f"{function} without arrays="
        raise OptionError.build(action, f"{function} has no parameter {wrong[0]!r}", hint)
    return ArrayParameters(function, signature, names)
