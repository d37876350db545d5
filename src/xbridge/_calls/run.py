"""Calls of aligned functions: choose the libraries, and run the function as it is or as a rule.

The first array that a graph or a transform follows decides where results go, else the first array. If nothing
is followed, the function runs as it is. If something is, the call becomes a rule: the function's library
derives it, and the caller's library embeds it in its graphs and transforms.
"""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

from xbridge._align_back import Restore
from xbridge._calls.explain import CallPlan
from xbridge._calls.flatten import flatten
from xbridge._calls.function import latest_form, narrowing, program_key, protected
from xbridge._core.dtypes import UNNAMED, holds_every
from xbridge._core.entry_points import entry_point
from xbridge._engine import verbs
from xbridge._engine.source import Source, leading_index, resolve_like, resolve_source
from xbridge._plan.options import read_options
from xbridge._plan.rules import chosen
from xbridge.backends import HOST
from xbridge.backends._forms import arguments, has_arrays, paths, unflatten
from xbridge.backends._registry import backend_for, fast_converters, generation, get
from xbridge.backends._rules import MOST, inexact, latest
from xbridge.errors import DTypeError, OptionError, XBridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xbridge._calls.function import Function
    from xbridge._core.protocol import Array, Backend
    from xbridge._plan.steps import Options
    from xbridge.backends._rules import Form, Rule


def wrapper(function: Function) -> Callable[..., Any]:
    """Return the function that calls an aligned function."""
    fn = function.fn

    @wraps(fn)
    @entry_point
    def call(*args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            shortcut = function.shortcuts.get(tuple(map(type, args)))
            result = None if shortcut is None else shortcut.run(args)
            if result is not None:
                return result
        arrays: list[Array] = []
        numbers: list[Any] = []
        form = flatten((args, function.in_order(kwargs)), arrays, numbers)
        if not arrays:
            return fn(*args, **kwargs)
        sources = [resolve_source(x) for x in arrays]
        at = _leading(sources)
        caller = sources[at].backend
        library = _library(function, caller)
        if library is not caller and _is_embedded(function, caller, arrays):
            return _embedded(function, form, arrays, numbers, caller, at, library)
        return _direct(function, (form, arrays, numbers), sources, at, library, args, kwargs)

    vars(call)["__xbridge__"] = function
    function.explain = lambda *args, **kwargs: explain(function, args, kwargs)
    return call


def explain(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallPlan:
    """Return what a call with these arguments would do, without running it."""
    arrays: list[Array] = []
    numbers: list[Any] = []
    form = flatten((args, function.in_order(kwargs)), arrays, numbers)
    if not arrays:
        raise OptionError.build(f"explain a call of {function.name}", "no argument is an array", "an array")
    sources = [resolve_source(x) for x in arrays]
    at = _leading(sources)
    caller = sources[at].backend
    library = _library(function, caller)
    plans = {}
    for path, x in zip(paths(form), arrays, strict=True):
        plans[path] = verbs.explain(x, library.name, requires_grad=None, **function.keywords)
    followed = library is not caller and _is_embedded(function, caller, arrays)
    report = function.rule(library.name, form, tuple(numbers), None).report()
    return CallPlan(function.name, library.name, caller.name, followed, plans, **report)


def _leading(sources: list[Source]) -> int:
    """Return the index of the array that decides: the first that is followed, else the first."""
    for i, source in enumerate(sources):
        if source.backend.follows is not None and source.backend.follows(source.array):
            return i
    at = leading_index(sources)
    assert at is not None  # noqa: S101 -- there is an array
    return at


def _library(function: Function, caller: Backend) -> Backend:
    """Return the backend of the function."""
    if function.backend is not None:
        return get(function.backend)
    return caller if function.like is None else resolve_like(function.like).backend


def _is_embedded(function: Function, caller: Backend, arrays: list[Array]) -> bool:
    """Return True if the caller's library runs the call as a rule.

    A library without transforms does so for functions with a signature, to compute later.
    """
    if caller.run is None:
        return False
    if caller.follows is None:
        return function.given.signature is not None
    return any(backend_for(type(x)) is caller and caller.follows(x) for x in arrays)


def _embedded(
    function: Function,
    form: Form,
    arrays: list[Array],
    numbers: list[Any],
    caller: Backend,
    at: int,
    library: Backend,
) -> Any:
    """Run the call as a rule within the graphs and transforms of the caller's library."""
    assert caller.run is not None  # noqa: S101 -- the caller checks it
    options = read_options((library,), **function.keywords)
    device = caller.array_info(arrays[at]).device
    xs: list[Array] = []
    for i, x in enumerate(arrays):
        try:
            if backend_for(type(x)) is not caller:
                x = verbs.to_backend(x, caller.name, device=device, dtype=None, copy=None, grad=None)  # noqa: PLW2901
            xs.append(_prepared(x, caller, library, options))
        except XBridgeError as error:
            raise error.at(f"{paths(form)[i]} of {function.name}") from error
    if caller.trace is not None and caller.is_tracing():
        ys = caller.trace(program_key(function.key, form, library.name), xs, numbers)
        return unflatten(latest_form(), iter(ys), iter(()))
    rule = function.rule(library.name, form, tuple(numbers), options.device)
    ys = caller.run(rule, xs)
    form = latest.form
    if options.grad == "keep":
        _refuse_cut(rule, xs, ys, form, caller)
    return unflatten(form, iter(ys), iter(()))


def _prepared(x: Array, caller: Backend, library: Backend, options: Options) -> Array:
    """Cast an array in its own library, so that the graph contains the cast. Cut its graph if asked."""
    if options.dtype is not None:
        info = caller.array_info(x)
        dtype = (
            chosen(options.dtype, info.dtype, library, info.device)
            if options.dtype in UNNAMED
            else options.dtype
        )
        if dtype != info.dtype:
            if options.dtype in UNNAMED and not (
                holds_every(info.dtype, dtype) or caller.unsupported(x, leaving=True)
            ):
                caller.check_cast(x, dtype)
            x = verbs.to_backend(x, caller.name, device=None, dtype=dtype, copy=None, grad=None)
    if options.grad == "detach":
        x = verbs.to_backend(x, caller.name, device=None, dtype=None, copy=None, grad="detach")
    return x


def _refuse_cut(rule: Rule, xs: Sequence[Array], ys: Sequence[Array], form: Form, caller: Backend) -> None:
    """Raise if a graph ends here: the function has no gradient for an array that is followed."""
    assert caller.follows is not None  # noqa: S101 -- an array is followed
    kinds = inexact(map(caller.array_info, xs))
    ins = tuple(kind and caller.follows(x) for x, kind in zip(xs, kinds, strict=True))
    if any(ins):
        rule.derive("vjp", ins, inexact(map(caller.array_info, ys)), form)


def _direct(
    function: Function,
    tree: tuple[Form, list[Array], list[Any]],
    sources: list[Source],
    at: int,
    library: Backend,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run the function as it is, and convert the arrays of its result back."""
    form, arrays, numbers = tree
    name = function.name
    if library.check_call is not None:
        library.check_call(name)
    begun = generation()
    try:
        made = verbs.align_sources(
            [_guarded(source, library, function.keywords) for source in sources],
            lambda i: f"{paths(form)[i]} of {name}",
            function.like,
            library.name if function.like is None else function.backend,
            begun=begun,
            **function.keywords,
        )
    except DTypeError as error:
        raise narrowing(error, arrays, library, function.keywords) from error
    restore = Restore(tuple(map(verbs.home, sources)), at)
    restore.home()
    if library.name == HOST:
        made = tuple(y if y is x else protected(y, x) for x, y in zip(arrays, made, strict=True))
    _take_shortcut(function, sources, library, args, kwargs)
    values, named = unflatten(form, iter(made), iter(numbers))
    given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    own = {
        key: given[key] for key, child in zip(given, arguments(form), strict=True) if not has_arrays(child)
    }
    result = function.fn(
        *[own.get(i, value) for i, value in enumerate(values)],
        **{key: own.get(key, value) for key, value in named.items()},
    )
    if any(result is x for x in own.values()):
        return result
    return _restored(result, restore, function)


def _guarded(source: Source, library: Backend, keywords: dict[str, Any]) -> Source:
    """Return an input whose memory the function cannot write to: a read-only one is copied if necessary."""
    if library.rule is None or library.readonly or library.assumes_immutable or keywords["copy"] is not None:
        return source
    if source.backend.name != HOST or not source.is_array:
        return source
    view = source.array.view()
    view.flags.writeable = False
    return Source(view, source.backend)


def _restored(result: Any, restore: Restore, function: Function) -> Any:
    """Convert the arrays of a result back."""
    refuse_late(result, function.name)
    try:
        return restore(result, dtype=function.narrowing)
    except XBridgeError as error:
        raise error.at(f"the result of {function.name}") from error


class Shortcut(NamedTuple):
    """A call of which all arguments are ordinary arrays of one library, without options."""

    function: Function
    caller: Backend
    library: Backend

    def run(self, args: tuple[Array, ...]) -> Any:
        """Return the result if nothing is followed; None if the call is to be examined."""
        caller, library = self.caller, self.library
        follows, convert = caller.follows, fast_converters[library.name]
        on_host = library.name == HOST
        given = []
        for x in args:
            if follows is not None and follows(x):
                return None
            try:
                y = convert[type(x)](x)
            except KeyError:
                return None
            if y is None:
                return None
            given.append(protected(y, x) if on_host else y)
        if library.check_call is not None:
            library.check_call(self.function.name)
        result = self.function.fn(*given)
        back = fast_converters[caller.name].get(type(result))
        made = None if back is None else back(result)
        if made is None:
            home = verbs.home(resolve_source(args[0]))
            made = _restored(result, Restore((home,), 0), self.function)
        return made


def _take_shortcut(
    function: Function,
    sources: list[Source],
    library: Backend,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Let the next call with arguments of these types skip all that does not change their results."""
    caller = sources[0].backend
    kinds = tuple(map(type, args))
    if (
        len(function.shortcuts) < MOST
        and not kwargs
        and function.is_plain
        and library is not caller
        and (library.name == HOST or library.assumes_immutable)
        and all(kind in caller.fast_types for kind in kinds)
        and not (library.is_tracing() or caller.is_tracing())
    ):
        function.shortcuts[kinds] = Shortcut(function, caller, library)


def refuse_late(result: object, name: str) -> None:
    """Raise if a result comes later than the call."""
    later = isinstance(result, (map, filter, zip)) or inspect.isgenerator(result)
    if later or (inspect.isawaitable(result) and backend_for(type(result)) is None):  # Dask's are both
        raise late(name)


def late(name: str) -> OptionError:
    """Return the error for a function whose results come later than the call."""
    return OptionError.build(
        f"align {name}", "its results come later than it returns", "align_back inside it"
    )


def name_of(fn: Callable[..., object]) -> str:
    """Return the name of a function, or raise if it is not one that returns a result."""
    if not callable(fn) or isinstance(fn, staticmethod):
        kind = type(fn).__name__
        wraps_one = isinstance(fn, (classmethod, staticmethod))
        hint = f"@{kind} above @aligned" if wraps_one else "@aligned(backend='torch')"
        raise OptionError.build(f"align a {kind}", "it is not a function", hint)
    name = str(getattr(fn, "__qualname__", type(fn).__name__))
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise late(name)
    return name
