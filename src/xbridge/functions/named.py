"""The option `arrays=` of `aligned`: arguments of these parameters become arrays, also lists and numbers.

An exporter of memory becomes a host array first, which may decide where results go. Numbers and lists never
decide, so they are converted when the library of the function is known.
"""

from __future__ import annotations

from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, NamedTuple

from xbridge._engine import verbs
from xbridge._engine.source import resolve_source
from xbridge._plan.options import CallOptions
from xbridge._registry.registry import are_arrays, backend_for, get
from xbridge.backends import HOST
from xbridge.errors import OptionError, XBridgeError, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge._core.protocol import Array


class ArrayParameters(NamedTuple):
    """The parameters of a function that `arrays=` names."""

    function: str
    positions: frozenset[int]
    """The positions of those that may be passed by position."""
    names: frozenset[str]
    """The names of those that may be passed by keyword."""
    rest: int | None
    """The first position of ``*args``, if that is named; else None."""
    known: frozenset[str] | None
    """The keywords that do not go to ``**kwargs``, if that is named; else None."""

    def map(
        self, fn: Callable[[Any], Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments, with `fn` applied to the named ones that are neither arrays nor None."""
        return (
            tuple([self._apply_at(fn, x, i) for i, x in enumerate(args)]),
            {name: self._apply_at(fn, x, name) for name, x in kwargs.items()},
        )

    def _apply_at(self, fn: Callable[[Any], Any], x: Any, place: int | str) -> Any:
        if isinstance(place, int):
            is_named = place in self.positions or (self.rest is not None and place >= self.rest)
        else:
            is_named = place in self.names or (self.known is not None and place not in self.known)
        if not is_named or x is None or are_arrays(type(x)):
            return x
        try:
            return fn(x)
        except XBridgeError as error:
            raise error.at(f"argument {place!r} of {self.function}") from error


def import_exporter(x: Any) -> Any:
    """Return an array for an exporter, read-only if it is NumPy's; a number or a list is returned as it is.

    Raise for any other object.
    """
    if resolve_source(x).is_literal():
        return x
    made = make_array(x, None)
    return protect_host(made, made) if backend_for(type(made)) is get(HOST) else made


def protect_host(host: Any, x: Array) -> Any:
    """Make a host array read-only, which is the conversion of `x`. If it is `x` itself, make a view of it."""
    if host.flags.writeable:
        host = host.view() if host is x else host
        host.flags.writeable = False
    return host


def make_array(x: Any, library: str | None, dtype: object = None) -> Any:
    """Return an array as `xbridge.asarray` does."""
    return verbs.make_array(x, library, CallOptions(dtype=dtype))


def read_array_parameters(given: object, fn: Callable[..., Any], function: str) -> ArrayParameters | None:
    """Return the parameters of a function that `arrays=` names; raise if there is no such parameter."""
    if given is None:
        return None
    names = _list_names(given)
    action = f"take arrays={shown(given)}"
    if names is None:
        raise OptionError.build(action, "it is not a tuple of names of parameters", "arrays=('x',)")
    try:
        parameters = signature(fn).parameters
    except (TypeError, ValueError) as error:
        raise OptionError.build(
            action, f"{function} has no signature that Python can read", "a function around it, made by def"
        ) from error
    wrong = [name for name in names if name not in parameters]
    if wrong:
        raise OptionError.build(
            action,
            f"{function} has no parameter {wrong[0]!r}",
            f"arrays={tuple(parameters)}" if parameters else f"{function} without arrays=",
        )
    chosen = [(i, parameters[name]) for i, name in enumerate(parameters) if name in names]
    by_place = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return ArrayParameters(
        function,
        frozenset(i for i, p in chosen if p.kind in by_place),
        frozenset(p.name for _, p in chosen if p.kind in by_name),
        next((i for i, p in chosen if p.kind is Parameter.VAR_POSITIONAL), None),
        frozenset(p.name for p in parameters.values() if p.kind in by_name)
        if any(p.kind is Parameter.VAR_KEYWORD for _, p in chosen)
        else None,
    )


def _list_names(given: object) -> list[str] | None:
    """Return the given name or names as a list; None if they are not strings."""
    each = [given] if isinstance(given, str) else given
    if not isinstance(each, (tuple, list, set, frozenset)):
        return None
    names = [name for name in each if isinstance(name, str)]
    return names if len(names) == len(each) else None
