"""The option `arrays=` of `aligned`: arguments of these parameters become arrays, also lists and numbers.

An exporter of memory becomes a host array first, which may decide where results go. Numbers and lists never
decide, so they are converted when the library of the function is known.
"""

from __future__ import annotations

from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, NamedTuple

from xbridge import asarray
from xbridge.errors import OptionError, XBridgeError, shown
from xbridge.extend import HOST, backend_for, get_backend
from xbridge.functions.leaves import LITERALS, are_arrays

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge.protocol import Array


class ArrayParameters(NamedTuple):
    """The parameters of a function that `arrays=` names."""

    function: str
    names: frozenset[str]
    positional: tuple[str, ...]
    """The names of all parameters that may be passed by position."""
    keywords: frozenset[str]
    """The names of those that may be passed by keyword."""
    rest: str
    """The name of ``*args``, if there is one."""
    more: str
    """The name of ``**kwargs``, if there is one."""

    def map(
        self, fn: Callable[[Any], Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments, with `fn` applied to the named ones that are neither arrays nor None."""
        places = [*self.positional[: len(args)], *[self.rest] * (len(args) - len(self.positional))]
        return (
            tuple([self._apply_at(fn, x, i, places[i]) for i, x in enumerate(args)]),
            {
                key: self._apply_at(fn, x, key, key if key in self.keywords else self.more)
                for key, x in kwargs.items()
            },
        )

    def _apply_at(self, fn: Callable[[Any], Any], x: Any, place: int | str, name: str) -> Any:
        if name not in self.names or x is None or are_arrays(type(x)):
            return x
        try:
            return fn(x)
        except XBridgeError as error:
            raise error.at(f"argument {place!r} of {self.function}") from error


def import_exporter(x: Any) -> Any:
    """Return an array for an exporter, read-only if it is NumPy's; a number or a list is returned as it is.

    Raise for any other object.
    """
    if issubclass(type(x), LITERALS):
        return x
    made = asarray(x)
    return protect_host(made, made) if backend_for(type(made)) is get_backend(HOST) else made


def protect_host(host: Any, x: Array) -> Any:
    """Make a host array read-only, which is the conversion of `x`. If it is `x` itself, make a view of it."""
    if host.flags.writeable:
        host = host.view() if host is x else host
        host.flags.writeable = False
    return host


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
    both = Parameter.POSITIONAL_OR_KEYWORD

    def of_kind(*kinds: Any) -> list[str]:
        return [name for name, parameter in parameters.items() if parameter.kind in kinds]

    return ArrayParameters(
        function,
        frozenset(names),
        tuple(of_kind(Parameter.POSITIONAL_ONLY, both)),
        frozenset(of_kind(Parameter.KEYWORD_ONLY, both)),
        "".join(of_kind(Parameter.VAR_POSITIONAL)),
        "".join(of_kind(Parameter.VAR_KEYWORD)),
    )


def _list_names(given: object) -> list[str] | None:
    """Return the given name or names as a list; None if they are not strings."""
    each = [given] if isinstance(given, str) else given
    if not isinstance(each, (tuple, list, set, frozenset)):
        return None
    names = [name for name in each if isinstance(name, str)]
    return names if len(names) == len(each) else None
