"""Calls of aligned functions: choose the libraries, and run the function as it is or as a rule.

The first array that a graph or a transform follows decides where results go, else the first array. If nothing
is followed, the function runs as it is. If something is, the call becomes a rule: the function's library
derives it, and the caller's library embeds it in its graphs and transforms.
"""

from __future__ import annotations

import inspect
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, NamedTuple

from xbridge._core.devices import CPU, SHARDED
from xbridge._core.dtypes import UNNAMED, holds_every
from xbridge._core.dynamo import no_result, traced_as
from xbridge._core.entry_points import marked
from xbridge._core.tracebacks import shorten
from xbridge._derive.functions import MOST, inexact, latest
from xbridge._derive.treedef import ARRAY, arguments, has_arrays, paths, unflatten
from xbridge._engine import verbs
from xbridge._engine.learned import PLAIN, are_constant, converter
from xbridge._engine.source import Source, leading_index, resolve_like, resolve_source
from xbridge._functions.explain import CallPlan
from xbridge._functions.flatten import LEAVES, flatten
from xbridge._functions.function import could_write, latest_form, narrowing, program_key
from xbridge._functions.named import as_made, imported, protected
from xbridge._functions.results import late, refuse_late
from xbridge._plan.options import read_options
from xbridge._plan.rules import chosen
from xbridge._registry.registry import (
    are_arrays,
    backend_for,
    fast_converters,
    generation,
    get,
    never,
    repeat_align,
)
from xbridge.backends import HOST
from xbridge.errors import DTypeError, OptionError, XBridgeError, with_article
from xbridge.tree.restore import Restore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array, Backend
    from xbridge._derive.functions import Form, Rule
    from xbridge._functions.function import Function
    from xbridge._plan.steps import Options


class _Unknown:
    """A class, because it is the same object in another process."""


_UNKNOWN: Any = _Unknown
"""What a shortcut returns if the call is to be examined."""


def wrapper(function: Function) -> Callable[..., Any]:
    """Return the function that calls an aligned function."""
    fn = function.fn

    @wraps(fn)
    @marked
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            result = _repeated(function, args, kwargs)
            if result is not _UNKNOWN:
                return result
            read = _read(function, args, kwargs)
            if not read.arrays:
                return _alone(function, read)
            if read.library is not read.caller and _is_embedded(function, read.caller, read.arrays):
                return _embedded(function, read)
            return _direct(function, read)
        except XBridgeError as error:
            shorten(error)
            raise

    vars(call)["__xbridge__"] = function
    function.explain = partial(explain, function)
    if not hasattr(fn, "__qualname__"):  # an object that can be called
        call.__qualname__, call.__name__ = function.name, function.name.rpartition(".")[2]
    return call


@traced_as(lambda *_: _UNKNOWN)
def _repeated(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a call that is known by its types, or `_UNKNOWN`."""
    shortcut = function.shortcuts.get(_kinds(args, kwargs))
    return _UNKNOWN if shortcut is None else shortcut.run(args, kwargs)


def explain(function: Function, /, *args: Any, **kwargs: Any) -> CallPlan:
    """Return what a call with these arguments would do, without running it."""
    read = _read(function, args, kwargs)
    if not read.arrays:
        raise OptionError.build(
            f"explain a call of {function.name}", "no argument is an array", "explain(f, x)"
        )
    caller, library = read.caller, read.library
    plans = {}
    for path, source in zip(paths(read.form), read.sources, strict=True):
        x = _guarded(source, library, function.keywords).array
        isolated = _is_isolated(function, library, (type(x),))
        plans[path] = verbs.explain(
            x, library.name, isolated=isolated, requires_grad=None, **function.keywords
        )
    followed = library is not caller and _is_embedded(function, caller, read.arrays)
    report = function.rule(library.name, caller.name, read.form, tuple(read.numbers), None).report()
    return CallPlan(function.name, library.name, caller.name, followed, plans, **report)


class Read(NamedTuple):
    """The arguments of a call, their arrays, and the libraries of the call."""

    begun: int
    """The generation before the libraries were found."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    """In the order of the form."""
    form: Form
    arrays: list[Array]
    numbers: list[Any]
    sources: list[Source]
    at: int
    """The index of the array that decides."""
    caller: Backend
    library: Backend


def _read(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Read:
    """Find the arrays in the arguments of a call, and make those that are arrays by name."""
    named = function.named
    if named is None:
        return _found(function, args, kwargs, ())
    args, kwargs = named.map(imported, args, kwargs)
    found = _found(function, args, kwargs, ())
    # Numbers get the default dtypes of the library that decides, unless the user names a dtype.
    dtype = function.keywords["dtype"]
    news: list[Array] = []

    def make(x: Any) -> Array:
        inside: list[Array] = []
        flatten(x, inside, [])
        if inside or (found.arrays and (dtype is None or function.narrowing)):
            y = as_made(x, found.caller.name)
        else:
            y = as_made(x, found.library.name, dtype)
        news.append(y)
        return y

    args, kwargs = named.map(make, args, kwargs)
    return _found(function, args, kwargs, news, alone=not found.arrays) if news else found


def _found(
    function: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    news: Sequence[Array],
    *,
    alone: bool = False,
) -> Read:
    """Find the arrays in the arguments of a call. Those that xbridge made decide last, or not at all."""
    arrays: list[Array] = []
    numbers: list[Any] = []
    begun, kwargs = generation(), function.in_order(kwargs)
    try:
        form = flatten((args, kwargs), arrays, numbers)
    except XBridgeError as error:
        raise error.at(f"an argument of {function.name}") from error
    if alone or not arrays:
        caller = get(HOST)
        return Read(begun, args, kwargs, form, [], numbers, [], 0, caller, _library(function, caller))
    sources = [resolve_source(x) for x in arrays]
    at = _leading(sources, news)
    caller = sources[at].backend
    return Read(begun, args, kwargs, form, arrays, numbers, sources, at, caller, _library(function, caller))


def _leading(sources: list[Source], news: Sequence[Array]) -> int:
    """Return the index of the array that decides: the first that is followed, else the first."""
    for i, source in enumerate(sources):
        if source.backend.follows is not None and source.backend.follows(source.array):
            return i
    given = [i for i, source in enumerate(sources) if not any(source.array is x for x in news)]
    at = leading_index([sources[i] for i in given])
    return 0 if at is None else given[at]


def _library(function: Function, caller: Backend) -> Backend:
    """Return the backend of the function."""
    if function.backend is not None:
        return get(function.backend)
    return caller if function.like is None else resolve_like(function.like).backend


def _is_embedded(function: Function, caller: Backend, arrays: Sequence[Array]) -> bool:
    """Return True if the caller's library runs the call as a rule.

    A library without transforms does so for functions with a signature, to compute later.
    """
    if caller.run is None:
        return False
    if caller.follows is None:
        return function.given.signature is not None
    return any(backend_for(type(x)) is caller and caller.follows(x) for x in arrays)


def _embedded(function: Function, read: Read) -> Any:
    """Run the call as a rule within the graphs and transforms of the caller's library."""
    form, arrays, numbers, caller, library = read.form, read.arrays, read.numbers, read.caller, read.library
    assert caller.run is not None  # noqa: S101 -- the caller checks it
    options = read_options((library,), **function.keywords)
    device = caller.array_info(arrays[read.at]).device
    xs: list[Array] = []
    kept = "keep" if options.grad == "keep" else None
    for i, x in enumerate(arrays):
        try:
            if backend_for(type(x)) is not caller:
                x = verbs.to_backend(x, caller.name, device=device, dtype=None, copy=None, grad=kept)  # noqa: PLW2901
            xs.append(_prepared(x, caller, library, options))
        except XBridgeError as error:
            raise error.at(f"{paths(form)[i]} of {function.name}") from error
    if caller.trace is not None and caller.is_tracing():
        ys = caller.trace(program_key(function.key, form, library.name, caller.name), xs, numbers)
        return unflatten(latest_form(), iter(ys), iter(()))
    rule = function.rule(library.name, caller.name, form, tuple(numbers), options.device)
    _take_shortcut(function, read)
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


def _alone(function: Function, read: Read) -> Any:
    """Run the function without an array to decide. Results become NumPy's, if they can have values."""
    library = read.library
    if library.check_call is not None:
        library.check_call(function.name)
    result = function.fn(*read.args, **read.kwargs)
    given = (*read.args, *read.kwargs.values())
    if library.is_tracing() or any(result is x for x in given):
        return result
    refuse_late(result, function.name)
    if not all(map(_has_values, _arrays_of(result, function))):
        return result
    return _restored(result, Restore(((HOST, CPU, ""),), 0), function)


def _has_values(x: Array) -> bool:
    """Return False for an array that a transform follows."""
    backend = resolve_source(x).backend
    followed = backend.follows is not None and backend.follows(x)
    return not (followed and backend.unsupported(x, leaving=True))


def _direct(function: Function, read: Read) -> Any:
    """Run the function as it is, and convert the arrays of its result back."""
    begun, args, kwargs, form, arrays, numbers, sources, at, _, library = read
    name = function.name
    if library.check_call is not None:
        library.check_call(name)
    inputs = [_guarded(source, library, function.keywords) for source in sources]
    target = library.name if function.like is None else function.backend
    xs = tuple([source.array for source in inputs])
    isolated = _is_isolated(function, library, map(type, xs))
    try:
        made = None if isolated else repeat_align(xs, function.like, target, **function.keywords)
        made = made or verbs.align_sources(
            inputs,
            lambda i: f"{paths(form)[i]} of {name}",
            function.like,
            target,
            begun=begun,
            isolated=isolated,
            **function.keywords,
        )
    except DTypeError as error:
        raise narrowing(error, arrays, library, function.keywords) from error
    restore = Restore(tuple(map(verbs.home, sources)), at)
    restore.home()
    if library.name == HOST:
        made = tuple(y if y is x else protected(y, x) for x, y in zip(arrays, made, strict=True))
    _take_shortcut(function, read)
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
    if not _copies_readonly(library) or keywords["copy"] is not None:
        return source
    if source.backend.name != HOST or not source.is_array:
        return source
    return Source(protected(source.array, source.array), source.backend)


def _copies_readonly(library: Backend) -> bool:
    """Return True if a function of a library gets a copy of a host array that is read-only."""
    return not library.readonly and could_write(library)


def _is_isolated(function: Function, library: Backend, kinds: Iterable[type]) -> bool:
    """Return True if the arguments are to be planned, so that the function cannot write to their memory.

    That takes longer than to pass host arrays as read-only, which is enough if the library copies those.
    """
    if function.keywords["copy"] is not None:
        return False
    host = get(HOST).array_types if _copies_readonly(library) else ()
    return could_write(library, [kind for kind in kinds if not issubclass(kind, host)])


def _restored(result: Any, restore: Restore, function: Function) -> Any:
    """Convert the arrays of a result back."""
    refuse_late(result, function.name)
    try:
        made = restore(result, dtype=function.narrowing)
    except XBridgeError as error:
        raise error.at(f"the result of {function.name}") from error
    if not are_arrays(type(result)):
        _arrays_of(result, function)
    return made


def _arrays_of(result: Any, function: Function) -> list[Array]:
    """Return the arrays of a result, or raise if they cannot be found."""
    arrays: list[Array] = []
    try:
        flatten(result, arrays, [])
    except XBridgeError as error:
        raise error.at(f"the result of {function.name}") from error
    return arrays


class _Step(NamedTuple):
    """What a shortcut does with an argument that is an array."""

    convert: Callable[[Array], Array | None]
    follows: Callable[[Array], bool] | None
    """Asks if the array is followed, if that would change what is done."""
    device_of: Callable[[Array], Device] | None
    """Asks for the device of an array of the function's library, if that has devices."""
    guard: bool
    """True for a host array that the function could write to."""


class Shortcut:
    """A call whose arguments are ordinary arrays, numbers, text and None.

    In any doubt the call is examined: if an array is followed that cannot be embedded, or is on another
    device than the others, or on several.
    """

    __slots__ = (
        "_begun",
        "_caller",
        "_form",
        "_function",
        "_home",
        "_library",
        "_mixed",
        "_only_host",
        "_rule",
        "_steps",
    )

    def __init__(
        self, function: Function, read: Read, kinds: Sequence[type], owners: dict[type, Backend]
    ) -> None:
        self._begun = read.begun
        self._function, self._caller, self._library = function, read.caller, read.library
        self._rule: Rule | None = None
        self._home = next(i for i, kind in enumerate(kinds) if kind in owners)
        self._mixed = not set(kinds).issubset((*LEAVES, *read.caller.fast_types))
        """True if arrays are of several libraries."""
        self._only_host = self._mixed or not function.is_plain
        """True if arrays of the function's library have to be in host memory."""
        embeds = function.is_plain and set(kinds).issubset(read.caller.fast_types) and not read.kwargs
        self._form = read.form if embeds else None
        """The form of a call that can be embedded: all arguments are arrays, and none has a name."""
        self._steps = [
            self._step(kind, owners[kind], i) if kind in owners else None for i, kind in enumerate(kinds)
        ]

    @property
    def is_learned(self) -> bool:
        """True if all conversions are known."""
        return all(step is None or step.convert is not never for step in self._steps)

    def _step(self, kind: type, backend: Backend, at: int) -> _Step:
        library, given = self._library, self._function.keywords
        own = backend is library
        place = None if library.host_only and given["device"] is None else "cpu"
        words = PLAIN if self._function.is_plain else (place, given["dtype"], given["copy"], given["grad"])
        return _Step(
            converter(library.name, kind, words),
            None if own and not (self._mixed and at > self._home) else backend.follows,
            backend.device_of if own and not backend.host_only else None,
            backend.name == HOST and given["copy"] is None and _copies_readonly(library),
        )

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result, or `_UNKNOWN` before anything ran."""
        if self._begun != generation():  # a backend may have been replaced
            return _UNKNOWN
        library = self._library
        xs = (*args, *kwargs.values()) if kwargs else args
        on_host, device, given = library.name == HOST, None, []
        for x, step in zip(xs, self._steps):  # noqa: B905 -- as many as there are types
            if step is None:
                given.append(x)
                continue
            convert, follows, device_of, guard = step
            if follows is not None and follows(x):
                return self._embedded(xs)
            if device_of is not None:
                here = device_of(x)
                if here == SHARDED or here != (device or (CPU if self._only_host else here)):
                    return _UNKNOWN
                device = here
            y = convert(protected(x, x) if guard else x)
            if y is None:
                return _UNKNOWN
            given.append(protected(y, x) if on_host and y is not x else y)
        if library.check_call is not None:
            library.check_call(self._function.name)
        count, fn = len(args), self._function.fn
        result = fn(*given[:count], **dict(zip(kwargs, given[count:], strict=True))) if kwargs else fn(*given)
        return self._returned(result, xs[self._home], device or CPU)

    def _returned(self, result: Any, x: Array, device: Device) -> Any:
        """Convert the result back to the library and the device of an argument."""
        caller = self._caller
        made = fast_converters[caller.name].get(type(result), never)(result)
        if made is not None and self._function.narrowing is None:
            there = caller.device_of(result) if made is result else CPU
            if there == device:
                return made
        return _restored(result, Restore((verbs.home(resolve_source(x)),), 0), self._function)

    def _embedded(self, xs: tuple[Any, ...]) -> Any:
        """Run the call as a rule."""
        caller = self._caller
        if self._form is None or caller.is_tracing():
            return _UNKNOWN
        assert caller.run is not None  # noqa: S101 -- it comes with `follows`
        rule = self._rule
        if rule is None:
            libraries = self._library.name, caller.name
            rule = self._rule = self._function.rule(*libraries, self._form, (), None)
        ys = caller.run(rule, list(xs))
        form = latest.form
        return ys[0] if form == ARRAY else unflatten(form, iter(ys), iter(()))


def _kinds(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the types of all arguments, and the names of those that have one."""
    return (*map(type, args), *kwargs, *map(type, kwargs.values())) if kwargs else tuple(map(type, args))


@traced_as(no_result)
def _take_shortcut(function: Function, read: Read) -> None:
    """Let the next call with arguments of these types skip all that does not change their results."""
    caller, library = read.caller, read.library
    key, kinds = _kinds(read.args, read.kwargs), [*map(type, (*read.args, *read.kwargs.values()))]
    arrays = set(kinds).difference(LEAVES)
    owners = {kind: owner for kind in arrays if (owner := backend_for(kind)) and kind in owner.fast_types}
    if (
        (key in function.shortcuts or len(function.shortcuts) < MOST)
        and function.like is None
        and are_constant(tuple(function.keywords.values()))
        and read_options((library,), **function.keywords).device in (None, CPU)
        and not _is_embedded(function, caller, ())
        and (read.at == 0 or arrays.issubset(caller.fast_types))
        and owners.keys() == arrays
        and not (library.is_tracing() or caller.is_tracing())
        and not _is_isolated(function, library, arrays)
    ):
        shortcut = Shortcut(function, read, kinds, owners)
        if shortcut.is_learned:
            function.shortcuts[key] = shortcut


def name_of(fn: Callable[..., object]) -> str:
    """Return the name of a function, or raise if it is not one that returns a result."""
    if isinstance(fn, type):
        raise OptionError.build(
            f"align the class {fn.__name__}", "it is not a function", "@aligned above its methods"
        )
    if not callable(fn) or isinstance(fn, staticmethod):
        kind = type(fn).__name__
        wraps_one = isinstance(fn, (classmethod, staticmethod))
        hint = f"@{kind} above @aligned" if wraps_one else "@aligned(backend='torch')"
        raise OptionError.build(f"align {with_article(kind)}", "it is not a function", hint)
    own = (getattr(fn, word, None) for word in ("__qualname__", "__name__"))
    name = next((str(word) for word in own if word), type(fn).__name__)
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise late(name)
    return name
