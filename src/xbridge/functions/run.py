"""Run calls of aligned functions: directly, or embedded in a graph or transform of another library.

The first tracked array, which requires grad or is traced, decides where results go; without one, the first
array does. Its library is called the array library. If no array is tracked, the function just runs on
converted arrays. Otherwise the call becomes a rule: the function's library makes its derivatives, and the
array library embeds it in its graphs and transforms.
"""

from __future__ import annotations

from functools import partial, wraps
from typing import TYPE_CHECKING, Any, NamedTuple

from xbridge._core import tracing
from xbridge._core.devices import CPU, SHARDED
from xbridge._core.dtypes import UNNAMED, holds_every
from xbridge._core.entry_points import marked
from xbridge._core.tracebacks import shorten
from xbridge._core.tracing import none_in_traces
from xbridge._engine import verbs
from xbridge._engine.each import by_type
from xbridge._engine.source import Source, TargetChoice, leading_index, resolve_like, resolve_source
from xbridge._plan.options import CallOptions, find_converter, read_options
from xbridge._plan.rules import chosen
from xbridge._registry.call_cache import cache_version, cached, decline, direct, store, unchanged
from xbridge._registry.registry import are_arrays, backend_for, get
from xbridge.backends import HOST
from xbridge.errors import DTypeError, OptionError, XBridgeError
from xbridge.functions.explain import CallPlan
from xbridge.functions.function import (
    could_write,
    latest_traceable,
    latest_treedef,
    program_key,
    raise_with_hint,
)
from xbridge.functions.libraries import functions_of
from xbridge.functions.named import import_exporter, make_array, protect_host
from xbridge.functions.results import refuse_async_result
from xbridge.functions.rules import latest, mask_inexact, sharded_call_error
from xbridge.functions.treedef import (
    ARRAY,
    LEAVES,
    argument_paths,
    argument_treedefs,
    flatten,
    has_arrays,
    unflatten,
    without_objects,
)
from xbridge.tree.restore import Restore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from xbridge._core.protocol import Array, Backend
    from xbridge._plan.steps import Options
    from xbridge.functions.function import Function
    from xbridge.functions.rules import DerivableFunction
    from xbridge.functions.treedef import TreeDef


def wrap_function(function: Function) -> Callable[..., Any]:
    """Return the function that calls an aligned function."""
    fn = function.fn

    @wraps(fn)
    @marked
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            found = _call_cached(function, args, kwargs)
            if found is not None:
                return found[0]
            read = _read_inputs(function, args, kwargs)
            if not read.arrays:
                return _run_without_arrays(function, read)
            if read.library is not read.array_library and _is_embedded(
                function, read.array_library, read.arrays
            ):
                return _run_embedded(function, read)
            return _run_directly(function, read)
        except XBridgeError as error:
            shorten(error)
            raise

    vars(call)["__xbridge__"] = function
    function.explain = partial(explain, function)
    if not hasattr(fn, "__qualname__"):  # a callable object
        call.__qualname__, call.__name__ = function.name, function.name.rpartition(".")[2]
    return call


@none_in_traces
def _call_cached(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
    """Return the result of a cached call for arguments of these types in a tuple; None without one."""
    run = cached.get(("aligned", function.key, _types_of(args, kwargs)))
    return None if run is None else run(function, args, kwargs)


def explain(function: Function, /, *args: Any, **kwargs: Any) -> CallPlan:
    """Return what a call with these arguments would do, without running it."""
    read = _read_inputs(function, args, kwargs)
    if not read.arrays:
        raise OptionError.build(
            f"explain a call of {function.name}", "no argument is an array", "explain(f, x)"
        )
    array_library, library = read.array_library, read.library
    plans = {}
    for path, source in zip(argument_paths(read.treedef), read.sources, strict=True):
        x = _guard_source(source, library, function.options).array
        isolated = _is_isolated(function, library, (type(x),))
        plans[path] = verbs.explain(x, library.name, function.options, isolated=isolated)
    followed = library is not array_library and _is_embedded(function, array_library, read.arrays)
    report = function.rule(library.name, array_library.name, read.treedef, tuple(read.numbers), None).report()
    return CallPlan(function.name, library.name, array_library.name, followed, plans, **report)


class CallInputs(NamedTuple):
    """The arguments of a call, their arrays, and the libraries of the call."""

    version: int
    """The version of the call cache before the libraries were found."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    """The keyword arguments, in the order in which `treedef` has them."""
    treedef: TreeDef
    arrays: list[Array]
    numbers: list[Any]
    sources: list[Source]
    leading: int
    """The index of the array that decides."""
    array_library: Backend
    """The backend of that array, to which results go."""
    library: Backend
    """The backend of the function."""


def _read_inputs(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallInputs:
    """Find the arrays in the arguments of a call, after those named by `arrays=` were made arrays."""
    named = function.named
    if named is None:
        return _find_arrays(function, args, kwargs, ())
    args, kwargs = named.map(import_exporter, args, kwargs)
    found = _find_arrays(function, args, kwargs, ())
    # Numbers get the default dtypes of the library that decides, unless the user names a dtype.
    dtype = function.options.dtype
    news: list[Array] = []

    def make(x: Any) -> Array:
        inside: list[Array] = []
        flatten(x, inside, [])
        if inside or (found.arrays and (dtype is None or function.narrowing)):
            y = make_array(x, found.array_library.name)
        else:
            y = make_array(x, found.library.name, dtype)
        news.append(y)
        return y

    args, kwargs = named.map(make, args, kwargs)
    return _find_arrays(function, args, kwargs, news, alone=not found.arrays) if news else found


def _find_arrays(
    function: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    news: Sequence[Array],
    *,
    alone: bool = False,
) -> CallInputs:
    """Find the arrays in the arguments of a call.

    `news` are arrays that xbridge made of numbers and lists. They decide only if there is no other array, or
    not at all if they are `alone`.
    """
    arrays: list[Array] = []
    numbers: list[Any] = []
    version, kwargs = cache_version(), function.order_keywords(kwargs)
    try:
        treedef = flatten((args, kwargs), arrays, numbers)
    except XBridgeError as error:
        raise error.at(f"an argument of {function.name}") from error
    if alone:
        arrays = []
    sources = [resolve_source(x) for x in arrays]
    leading = _leading_index(sources, news)
    array_library = sources[leading].backend if sources else get(HOST)
    library = _library_of(function, array_library)
    return CallInputs(
        version, args, kwargs, treedef, arrays, numbers, sources, leading, array_library, library
    )


def _leading_index(sources: list[Source], news: Sequence[Array]) -> int:
    """Return the index of the array that decides for the caller: the first tracked one, else the first."""
    for i, source in enumerate(sources):
        if source.backend.follows is not None and source.backend.follows(source.array):
            return i
    given = [i for i, source in enumerate(sources) if not any(source.array is x for x in news)]
    at = leading_index([sources[i] for i in given])
    return 0 if at is None else given[at]


def _library_of(function: Function, array_library: Backend) -> Backend:
    """Return the backend of the function, which is the array library if none was named."""
    if function.backend is not None:
        return get(function.backend)
    return array_library if function.like is None else resolve_like(function.like).backend


def _is_embedded(function: Function, array_library: Backend, arrays: Sequence[Array]) -> bool:
    """Return True if the array library embeds the call: because an array is tracked, or to compute it lazily.

    A lazy library without transforms, such as Dask, embeds the functions that have a signature.
    """
    if functions_of(array_library).run is None:
        return False
    if array_library.follows is None:
        return function.given.signature is not None
    return any(backend_for(type(x)) is array_library and array_library.follows(x) for x in arrays)


def _run_embedded(function: Function, read: CallInputs) -> Any:
    """Run the call as a rule, within the graphs and transforms of the array library."""
    treedef, arrays, numbers, array_library, library = (
        read.treedef,
        read.arrays,
        read.numbers,
        read.array_library,
        read.library,
    )
    options = read_options((library,), function.options)
    device = array_library.array_info(arrays[read.leading]).device
    xs: list[Array] = []
    kept = "keep" if options.grad == "keep" else None
    for i, x in enumerate(arrays):
        try:
            if backend_for(type(x)) is not array_library:
                x = verbs.to_backend(x, array_library.name, CallOptions(device=device, grad=kept))  # noqa: PLW2901
            xs.append(_cast_and_cut(x, array_library, library, options))
        except XBridgeError as error:
            raise error.at(f"{argument_paths(treedef)[i]} of {function.name}") from error
    trace = functions_of(array_library).trace
    if trace is not None and array_library.is_tracing():
        objects: list[object] = []
        traced = without_objects(treedef, objects)
        key = program_key(function.key, traced, library.name, array_library.name, *objects)
        ys = trace(key, xs, numbers)
        treedef = latest_traceable() if tracing.is_traced() else latest_treedef()
        return unflatten(treedef, iter(ys), iter(()))
    rule = function.rule(library.name, array_library.name, treedef, tuple(numbers), options.device)
    _cache_call(function, read)
    return _run_rule(rule, xs, refuses_cut=options.grad == "keep")


def _run_rule(rule: DerivableFunction, xs: list[Array], *, refuses_cut: bool = False) -> Any:
    """Run a rule on arrays of the array library, and build the result."""
    array_library = get(rule.call.array_library)
    run = functions_of(array_library).run
    assert run is not None  # noqa: S101 -- only such callers embed a call
    ys = run(rule, xs)
    treedef = latest.treedef
    if refuses_cut:
        _refuse_cut(rule, xs, ys, treedef, array_library)
    return ys[0] if treedef == ARRAY else unflatten(treedef, iter(ys), iter(()))


def _cast_and_cut(x: Array, array_library: Backend, library: Backend, options: Options) -> Array:
    """Cast an array in its own library, so that gradients flow through the cast. Cut its graph if asked."""
    if options.dtype is not None:
        info, dtype = array_library.array_info(x), options.dtype
        if dtype in UNNAMED:
            dtype = chosen(dtype, info.dtype, library, info.device)
            if not (holds_every(info.dtype, dtype) or array_library.unsupported(x, leaving=True)):
                array_library.check_cast(x, dtype)
        if dtype != info.dtype:
            x = verbs.to_backend(x, array_library.name, CallOptions(dtype=dtype))
    if options.grad == "detach":
        x = verbs.to_backend(x, array_library.name, CallOptions(grad="detach"))
    return x


def _refuse_cut(
    rule: DerivableFunction,
    xs: Sequence[Array],
    ys: Sequence[Array],
    treedef: TreeDef,
    array_library: Backend,
) -> None:
    """Raise if the function has no gradient for a tracked array, because its graph would end here."""
    assert array_library.follows is not None  # noqa: S101 -- an array is tracked
    kinds = mask_inexact(map(array_library.array_info, xs))
    ins = tuple(kind and array_library.follows(x) for x, kind in zip(xs, kinds, strict=True))
    if any(ins):
        rule.derive("vjp", ins, mask_inexact(map(array_library.array_info, ys)), treedef)


def _run_without_arrays(function: Function, read: CallInputs) -> Any:
    """Run the function on arguments without arrays. Results become NumPy arrays, unless they are traced."""
    library = read.library
    if (check := functions_of(library).check_call) is not None:
        check(function.name)
    result = function.fn(*read.args, **read.kwargs)
    given = (*read.args, *read.kwargs.values())
    if library.is_tracing() or any(result is x for x in given):
        return result
    refuse_async_result(result, function.name)
    if not all(map(_has_values, _flatten_result(result, function)[1])):
        return result
    return _restore_result(result, Restore(((HOST, CPU, ""),), 0), function)


def _has_values(x: Array) -> bool:
    """Return False for an array in a transform, which has no values."""
    backend = resolve_source(x).backend
    followed = backend.follows is not None and backend.follows(x)
    return not (followed and backend.unsupported(x, leaving=True))


def _run_directly(function: Function, read: CallInputs) -> Any:
    """Convert the arguments, run the function, and convert the arrays of its result back."""
    version, args, kwargs, treedef, arrays, numbers, sources, leading, array_library, library = read
    name = function.name
    if (check := functions_of(library).check_call) is not None:
        check(name)
    inputs = [_guard_source(source, library, function.options) for source in sources]
    choice = TargetChoice(library.name if function.like is None else function.backend, function.like)
    xs = tuple([source.array for source in inputs])
    types = tuple([type(x) for x in xs])
    isolated = _is_isolated(function, library, types)
    homes = tuple(map(verbs.array_location, sources))
    home = homes[leading]
    if home and home[1] == SHARDED:  # before an array is copied in vain
        raise sharded_call_error(name, array_library.name)
    restore = Restore(homes, leading)
    try:
        align = function.options.lookup("align", choice.name, types, type(choice.like))
        made = (None if isolated else align(xs, choice.like)) or verbs.align_sources(
            inputs,
            lambda i: f"{argument_paths(treedef)[i]} of {name}",
            choice,
            function.options,
            version=version,
            isolated=isolated,
        )
    except DTypeError as error:
        raise_with_hint(error, arrays, library, function.options)
    if library.name == HOST:
        made = tuple(y if y is x else protect_host(y, x) for x, y in zip(arrays, made, strict=True))
    _cache_call(function, read)
    values, named = unflatten(treedef, iter(made), iter(numbers))
    given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    own = {
        key: given[key]
        for key, child in zip(given, argument_treedefs(treedef), strict=True)
        if not has_arrays(child)
    }
    result = function.fn(
        *[own.get(i, value) for i, value in enumerate(values)],
        **{key: own.get(key, value) for key, value in named.items()},
    )
    if any(result is x for x in own.values()):
        return result
    return _restore_result(result, restore, function)


def _guard_source(source: Source, library: Backend, options: CallOptions) -> Source:
    """Make a host array read-only if the function could write to it, so that its conversion makes a copy."""
    if not _copies_readonly(library) or options.copy is not None:
        return source
    if source.backend.name != HOST or not source.is_array:
        return source
    return Source(protect_host(source.array, source.array), source.backend)


def _copies_readonly(library: Backend) -> bool:
    """Return True if a library has no read-only arrays, so that a read-only host array is copied for it."""
    return not library.readonly and could_write(library)


def _is_isolated(function: Function, library: Backend, kinds: Iterable[type]) -> bool:
    """Return True if only a plan keeps the function from writing to the memory of its arguments.

    For host arrays it is enough, and faster, to make them read-only, if the library copies such arrays.
    """
    if function.options.copy is not None:
        return False
    host = get(HOST).array_types if _copies_readonly(library) else ()
    return could_write(library, [kind for kind in kinds if not issubclass(kind, host)])


def _restore_result(result: Any, restore: Restore, function: Function) -> Any:
    """Convert the arrays of a result back to the caller."""
    refuse_async_result(result, function.name)
    if tracing.is_traced() and not are_arrays(type(result)):  # the walk below is not traced through classes
        treedef, arrays, numbers = _flatten_result(result, function)
        moved = [_restore_result(x, restore, function) for x in arrays]
        same = all(y is x for x, y in zip(arrays, moved, strict=True))
        return result if same else unflatten(treedef, iter(moved), iter(numbers))
    try:
        made = restore(result, dtype=function.narrowing)
    except XBridgeError as error:
        raise error.at(f"the result of {function.name}") from error
    if are_arrays(type(result)):
        return made
    treedef, arrays, numbers = _flatten_result(made, function)
    return made if made is result else unflatten(treedef, iter(arrays), iter(numbers))


def _flatten_result(result: Any, function: Function) -> tuple[TreeDef, list[Array], list[Any]]:
    """Flatten a result; raise if it hides arrays in an object that is not a container."""
    arrays: list[Array] = []
    numbers: list[Any] = []
    try:
        return flatten(result, arrays, numbers), arrays, numbers
    except XBridgeError as error:
        raise error.at(f"the result of {function.name}") from error


def _make_cached_call(
    function: Function, read: CallInputs, types: Sequence[type], owners: dict[type, Backend]
) -> Callable[..., tuple[Any] | None] | None:
    """Return a cached call for arguments of the same types; None if a type has no converter.

    The arguments are ordinary arrays, numbers, text and None. The call asks only for what their types do not
    show: whether an array is tracked, and its device. It takes the function as an argument, and does not keep
    it alive.
    """
    converters = {cls: _argument_converter(function, read.library, cls, owners.get(cls)) for cls in types}
    if decline in converters.values():
        return None
    array_library, library, treedef, convert = (
        read.array_library,
        read.library,
        read.treedef,
        by_type(converters),
    )
    check, device_of = functions_of(library).check_call, library.device_of
    arrays = [(i, owners[cls]) for i, cls in enumerate(types) if cls in owners]
    home = arrays[0][0]
    mixed = any(cls not in array_library.fast.types for cls in owners)  # arrays are of several libraries
    only_host = mixed or not function.is_plain  # so that arrays of the function's library must be there
    can_embed = function.is_plain and not read.kwargs and set(types).issubset(array_library.fast.types)
    could_follow = mixed or library is not array_library
    followed = [(i, owner.follows) for i, owner in arrays if could_follow and owner.follows]
    own = [i for i, owner in arrays if owner is library and not library.host_only]

    def call_cached(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
        """Return the result in a tuple, or None to decline, before the function runs."""
        xs = (*args, *kwargs.values()) if kwargs else args
        for i, follows in followed:
            if follows(xs[i]):
                if not can_embed or array_library.is_tracing():
                    return None
                return (
                    _run_rule(function.rule(library.name, array_library.name, treedef, (), None), list(xs)),
                )
        # Arrays of the function's own library stay where they are, so they must all be on one device: the
        # host if others are converted to it.
        device = None
        for i in own:
            here = device_of(xs[i])
            if here == SHARDED or here != (device or (CPU if only_host else here)):
                return None
            device = here
        given = convert(xs)
        if given is None:
            return None
        if check is not None:
            check(function.name)
        count, fn = len(args), function.fn
        result = fn(*given[:count], **dict(zip(kwargs, given[count:], strict=True))) if kwargs else fn(*given)
        # A single array is converted by the cache of calls, if it then is on the right device. Any other
        # result is walked as a tree.
        y = direct[array_library.name].get(type(result), decline)(result)
        if y is not None and function.narrowing is None:
            there = array_library.device_of(result) if y is result else CPU
            if there == (device or CPU):
                return (y,)
        location = verbs.array_location(resolve_source(xs[home]))
        return (_restore_result(result, Restore((location,), 0), function),)

    return call_cached


def _argument_converter(
    function: Function, library: Backend, cls: type, owner: Backend | None
) -> Callable[[Any], Any]:
    """Return the function that converts arguments of a type to arrays through which the sources are safe."""
    if owner is None:
        return unchanged
    options = function.options
    if not function.is_plain:
        place = None if library.host_only and options.device is None else "cpu"
        options = options._replace(device=place)
    convert = find_converter(read_options((library,), options), library.name, cls)
    if convert is decline:
        return decline
    if owner.name == HOST and options.copy is None and _copies_readonly(library):
        return lambda x: convert(protect_host(x, x))
    if library.name != HOST:
        return convert

    def to_host(x: Array) -> Array | None:
        y = convert(x)
        return y if y is None or y is x else protect_host(y, x)

    return to_host


def _types_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the types of all arguments, and the names of keyword arguments."""
    return (*map(type, args), *kwargs, *map(type, kwargs.values())) if kwargs else tuple(map(type, args))


@none_in_traces
def _cache_call(function: Function, read: CallInputs) -> None:
    """Cache a call for arguments of these types, if these and what it asks decide all that it does."""
    array_library, library = read.array_library, read.library
    types = [*map(type, (*read.args, *read.kwargs.values()))]
    arrays = set(types).difference(LEAVES)
    owners = {cls: owner for cls in arrays if (owner := backend_for(cls)) and cls in owner.fast.types}
    if (
        function.like is None
        and function.options.are_constant()
        and read_options((library,), function.options).device in (None, CPU)
        and not _is_embedded(function, array_library, ())
        and (read.leading == 0 or arrays.issubset(array_library.fast.types))
        and owners.keys() == arrays
        and not (library.is_tracing() or array_library.is_tracing())
        and not _is_isolated(function, library, arrays)
    ):
        call = _make_cached_call(function, read, types, owners)
        if call is not None:
            store(("aligned", function.key, _types_of(read.args, read.kwargs)), read.version, call)
