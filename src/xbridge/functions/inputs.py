"""The arguments of a call: those that `arrays=` names, and the conversion to the library of the function.

An exporter of memory that `arrays=` names becomes a host array first, which may decide where results go.
Numbers and lists never decide, so they are converted when the library of the function is known.

The function cannot write to the memory of its arguments, and a result is no buffer that it keeps.
"""

from __future__ import annotations

import inspect
import re
import sys
from contextlib import suppress
from inspect import Parameter
from typing import TYPE_CHECKING, Any

from xbridge import asarray
from xbridge.errors import OptionError, XBridgeError, shown
from xbridge.extend import HOST, Options, backend_for, call_cache, each, get_backend
from xbridge.functions.treedef import LITERALS, are_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xbridge.protocol import Array, Backend, HostArray

PLAIN = Options()
"""The options of a function for which none was given."""

_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_BY_KEYWORD = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)

_BASELINE_REFCOUNT = 2
"""References to an item of a list, or to the base of an array, while they are counted."""


def map_named(
    names: dict[int | str, str],
    fn: Callable[[Any], Any],
    function: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments, after `fn` was applied to the named ones that are neither arrays nor None."""

    def apply(place: int | str, x: Any) -> Any:
        if place not in names or x is None or are_arrays(type(x)):
            return x
        try:
            return fn(x)
        except XBridgeError as error:
            raise error.at(f"argument {names[place]!r} of {function}") from error

    made = [apply(i, x) for i, x in enumerate(args)]
    return tuple(made), {key: apply(key, x) for key, x in kwargs.items()}


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


def find_named(given: object, fn: Callable[..., Any], function: str) -> dict[int | str, str] | None:
    """Return the parameters that `arrays=` names, by position and by keyword; raise if one does not exist.

    Those of ``*args`` and ``**kwargs``, and of functions in C that have no signature, have no names.
    """
    if given is None:
        return None
    parameters: list[Parameter] = []
    with suppress(TypeError, ValueError):
        parameters += inspect.signature(fn).parameters.values()
    places: list[tuple[int | str, str]] = [
        *enumerate([p.name for p in parameters if p.kind in _BY_POSITION]),
        *[(p.name, p.name) for p in parameters if p.kind in _BY_KEYWORD],
    ]
    known = list(dict.fromkeys([name for _, name in places]))
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, (tuple, list, set, frozenset)) or not all(isinstance(x, str) for x in names):
        reason = f"it names no parameters of {function}"
    elif not all(name in known for name in names):
        reason = f"{function} has no such parameter"
    else:
        return {place: name for place, name in places if name in names}
    hint = f"arrays={tuple(known)}" if known else "a function around it, made by def"
    raise OptionError.build(f"take arrays={shown(given)}", reason, hint)


def error_at(error: XBridgeError, place: str) -> XBridgeError:
    """Return an error of a conversion with the argument or result that it is about.

    A dtype that its hint names is an option of the decorator.
    """
    hint = re.sub(r"^(naming it: )?(dtype='\w+')", r"aligned(..., \2)", error.hint)
    return error.build(error.action, error.reason, hint).at(place)


# -- to the library of the function --------------------------------------------------------------------------
def convert_inputs(xs: Sequence[Array], library: Backend, options: Options) -> list[Array]:
    """Convert arguments to the library of a function, which must not write to their memory.

    An error has the index of its argument.
    """
    table = call_cache.direct[library.name] if options == PLAIN else {}
    ys: list[Any] = []
    rest: dict[bool, list[int]] = {}
    for i, x in enumerate(xs):
        copy = must_copy(x, library, options)
        ys.append(None if copy else table.get(type(x), call_cache.decline)(x))  # enough for ordinary arrays
        if ys[i] is None:
            rest.setdefault(copy, []).append(i)
    for copy, at in rest.items():
        asked = options._replace(copy=copy or options.copy)
        try:
            made = each([xs[i] for i in at], library, asked)
        except XBridgeError as error:
            error.remap_index(at)
            raise
        for i, y in zip(at, made, strict=True):
            ys[i] = y
    if library.name != HOST:
        return ys
    return [y if y is x else protect_host(y, x) for x, y in zip(xs, ys, strict=True)]


def could_write(owner: Backend, library: Backend, options: Options) -> bool:
    """Return True if a function could write to arrays of a library: NumPy's are passed to it read-only."""
    is_guarded = library.name == HOST or library.assumes_immutable or owner is library
    return options.copy is None and not is_guarded and not (owner.assumes_immutable and owner.readonly)


def must_copy(x: Array, library: Backend, options: Options) -> bool:
    """Return True if the function could write to the memory of an argument."""
    owner = backend_for(type(x))
    if owner is None or not could_write(owner, library, options):
        return False
    return bool(owner.name != HOST or isinstance(x, owner.scalar_types) or x.flags.writeable)


def copy_if_kept(ys: Sequence[HostArray]) -> list[HostArray]:
    """Return arrays that nothing but this list refers to: a function may fill the same buffer in each call.

    A view refers to the array that owns its memory.
    """
    held = [
        sys.getrefcount(ys[i]) > _BASELINE_REFCOUNT
        or (isinstance(ys[i].base, type(ys[i])) and sys.getrefcount(ys[i].base) > _BASELINE_REFCOUNT)
        for i in range(len(ys))
    ]
    return [y.copy() if kept and y.flags.writeable else y for y, kept in zip(ys, held, strict=True)]
