"""Run calls of aligned functions: directly, or embedded in a graph or transform of another library.

The first tracked array, which requires grad or is traced, decides where results go; without one, the first
array does. Its library is called the array library. If no array is tracked, the function just runs on
converted arrays. Otherwise the call becomes a rule: the function's library makes its derivatives, and the
array library embeds it in its graphs and transforms.
"""

from __future__ import annotations

from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import xbridge
from xbridge import Device
from xbridge.errors import OptionError, XBridgeError
from xbridge.extend import (
    CPU,
    HOST,
    backend_for,
    call_cache,
    check_options,
    entry_points,
    get_backend,
    is_inexact,
    resolve_dtype,
    tracing,
)
from xbridge.functions.explain import CallPlan
from xbridge.functions.function import (
    PLAIN,
    convert_input,
    copy_option,
    could_write,
    flatten_result,
    latest_traceable,
    program_key,
)
from xbridge.functions.libraries import functions_of
from xbridge.functions.named import import_exporter, protect_host
from xbridge.functions.rules import latest, mask_inexact, sharded_call_error
from xbridge.functions.treedef import (
    ARRAY,
    LEAVES,
    argument_paths,
    argument_treedefs,
    flatten,
    has_arrays,
    leaf_paths,
    unflatten,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xbridge.functions.function import Function, FunctionOptions
    from xbridge.functions.rules import DerivableFunction
    from xbridge.functions.treedef import TreeDef
    from xbridge.protocol import Array, Backend

    Home = tuple[str, Device | None, str | None]
    """Where results go: the name of a library, one of its devices, and the dtype of those that were cast."""


SHARDED = Device("sharded")
"""The device of an array that is on several devices."""


def wrap_function(function: Function) -> Callable[..., Any]:
    """Return the function that calls an aligned function."""
    fn = function.fn

    @wraps(fn)
    @entry_points.marked
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            found = _call_cached(function, args, kwargs)
            return _call_planned(function, args, kwargs) if found is None else found[0]
        except XBridgeError as error:
            entry_points.shorten(error)
            raise

    vars(call)["__xbridge__"] = function
    function.explain = partial(explain, function)
    if not hasattr(fn, "__qualname__"):  # a callable object
        call.__qualname__, call.__name__ = function.name, function.name.rpartition(".")[2]
    return call


@tracing.none_in_traces
def _call_cached(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
    """Return the result of a cached call for arguments of these types in a tuple; None without one."""
    run = call_cache.cached.get(("aligned", function.key, _types_of(args, kwargs)))
    return None if run is None else run(function, args, kwargs)


def _call_planned(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a call as its arguments ask for, and cache how."""
    read = _read_inputs(function, args, kwargs)
    is_embedded = _is_embedded(function, read)
    if read.arrays and (not is_embedded or read.array_library.follows is not None):
        _cache_call(function, read)
    return _run_embedded(function, read) if is_embedded else _run_directly(function, read)


def explain(function: Function, /, *args: Any, **kwargs: Any) -> CallPlan:
    """Return what a call with these arguments would do, without running it."""
    read = _read_inputs(function, args, kwargs)
    if not read.arrays:
        raise OptionError.build(
            f"explain a call of {function.name}", "no argument is an array", "explain(f, x)"
        )
    array_library, library = read.array_library, read.library
    plans = {}
    for path, x in zip(argument_paths(read.treedef), read.arrays, strict=True):
        options = function.options._replace(copy=copy_option(x, library, function.options))
        plans[path] = xbridge.explain(x, library.name, **options._asdict())
    rule = function.rule(library.name, array_library.name, read.treedef, None)
    names = function.name, library.name, array_library.name
    return CallPlan(*names, _is_embedded(function, read), plans, **rule.report())


# -- the arguments -------------------------------------------------------------------------------------------
class CallInputs(NamedTuple):
    """The arguments of a call, their arrays, and the libraries of the call."""

    version: int
    """The version of the call cache before the libraries were found."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    """The keyword arguments, in the order in which `treedef` has them."""
    treedef: TreeDef
    arrays: list[Array]
    traced: list[Any]
    """The constants of traced code."""
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
    dtype = None if function.narrowing else function.options.dtype
    args, kwargs = named.map(partial(import_exporter, dtype=dtype), args, kwargs)
    found = _find_arrays(function, args, kwargs, ())
    news: list[Array] = []

    def make(x: Any) -> Array:
        """Make an array, with the default dtype of the library that decides if the user names none."""
        inside: list[Array] = []
        flatten(x, inside, [])
        keeps = bool(inside) or (bool(found.arrays) and dtype is None)
        library = found.array_library if keeps else found.library
        news.append(xbridge.asarray(x, backend=library.name, dtype=None if keeps else dtype))
        return news[-1]

    args, kwargs = named.map(make, args, kwargs)
    if found.arrays and news:
        return _find_arrays(function, args, kwargs, news)
    return found._replace(args=args, kwargs=kwargs)


def _find_arrays(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], news: Sequence[Array]
) -> CallInputs:
    """Find the arrays in the arguments of a call. `news`, made of numbers and lists, do not decide."""
    arrays: list[Array] = []
    traced: list[Any] = []
    version, kwargs = call_cache.cache_version(), function.order_keywords(kwargs)
    try:
        treedef = flatten((args, kwargs), arrays, traced)
    except XBridgeError as error:
        raise error.at(f"an argument of {function.name}") from error
    leading = _leading_index(arrays, news) if arrays else 0
    array_library = _owner(arrays[leading]) if arrays else get_backend(HOST)
    library = array_library if function.backend is None else get_backend(function.backend)
    return CallInputs(version, args, kwargs, treedef, arrays, traced, leading, array_library, library)


def _owner(x: Array) -> Backend:
    owner = backend_for(type(x))
    assert owner is not None  # noqa: S101 -- an array has one
    return owner


def _leading_index(arrays: Sequence[Array], news: Sequence[Array]) -> int:
    """Return the index of the array that decides: the first tracked one, else the first that is no scalar."""
    for i, x in enumerate(arrays):
        follows = _owner(x).follows
        if follows is not None and follows(x):
            return i
    given = [i for i, x in enumerate(arrays) if not any(x is new for new in news)]
    proper = [i for i in given if not isinstance(arrays[i], _owner(arrays[i]).scalar_types)]
    return [*proper, *given][0]


def _is_embedded(function: Function, read: CallInputs) -> bool:
    """Return True if the array library embeds the call: because an array is tracked, or to compute it lazily.

    A lazy library without transforms, such as Dask, embeds the functions that have a signature.
    """
    library = read.array_library
    if read.library is library or functions_of(library).run is None:
        return False
    if library.follows is None:
        return function.given.signature is not None
    return any(backend_for(type(x)) is library and library.follows(x) for x in read.arrays)


# -- within graphs, transforms and programs ------------------------------------------------------------------
def _run_embedded(function: Function, read: CallInputs) -> Any:
    """Run the call as a rule, within the graphs and transforms of the array library."""
    treedef, arrays, array_library, library = read.treedef, read.arrays, read.array_library, read.library
    options = check_options((library,), **function.options._asdict())
    device = array_library.device_of(arrays[read.leading])
    xs: list[Array] = []
    kept: Literal["keep"] | None = "keep" if options.grad == "keep" else None
    for i, x in enumerate(arrays):
        try:
            y = x
            if backend_for(type(x)) is not array_library:
                y = xbridge.to_backend(x, array_library.name, device=device, grad=kept)
            xs.append(_cast_and_cut(y, array_library, library, options))
        except XBridgeError as error:
            raise error.at(f"{argument_paths(treedef)[i]} of {function.name}") from error
    trace = functions_of(array_library).trace
    if trace is not None and array_library.is_tracing():
        symbols = (int, float, *tracing.symbolic_numbers)
        objects = [x for x in read.traced if type(x) not in symbols]
        key = program_key(function.key, treedef, library.name, array_library.name, *objects)
        ys = trace(key, xs, read.traced)
        treedef = latest_traceable() if tracing.is_traced() else latest.treedef
        result = unflatten(treedef, iter(ys))
    else:
        rule = function.rule(library.name, array_library.name, treedef, options.device)
        result = _run_rule(rule, xs, refuses_cut=options.grad == "keep")
    if function.given.restore is None:
        return result
    return _restore_result(result, (array_library.name, None, _dtype_to_restore(read)), function)


def _run_rule(rule: DerivableFunction, xs: list[Array], *, refuses_cut: bool = False) -> Any:
    """Run a rule on arrays of the array library, and build the result."""
    array_library = get_backend(rule.call.array_library)
    run = functions_of(array_library).run
    assert run is not None  # noqa: S101 -- only such libraries embed a call
    ys = run(rule, xs)
    treedef = latest.treedef
    if refuses_cut and array_library.follows is not None:
        kinds = mask_inexact(map(array_library.array_info, xs))
        ins = tuple(kind and array_library.follows(x) for x, kind in zip(xs, kinds, strict=True))
        if any(ins):  # the graph would end here if the function has no gradient
            rule.derive("vjp", ins, mask_inexact(map(array_library.array_info, ys)), treedef)
    return ys[0] if treedef == ARRAY else unflatten(treedef, iter(ys))


def _cast_and_cut(x: Array, array_library: Backend, library: Backend, options: Any) -> Array:
    """Cast an array in its own library, so that gradients flow through the cast. Cut its graph if asked."""
    if options.dtype is not None:
        info, dtype = array_library.array_info(x), options.dtype
        if dtype in ("nearest", "default"):
            dtype = resolve_dtype(dtype, info.dtype, library, info.device)
            if dtype != info.dtype and not array_library.unsupported(x, leaving=True):
                array_library.check_cast(x, dtype)
        if dtype != info.dtype:
            x = xbridge.to_backend(x, array_library.name, dtype=dtype)
    return xbridge.to_backend(x, array_library.name, grad="detach") if options.grad == "detach" else x


# -- on converted arrays -------------------------------------------------------------------------------------
def _run_directly(function: Function, read: CallInputs) -> Any:
    """Convert the arguments, run the function, and convert the arrays of its result back.

    They go to NumPy if no argument has an array, unless they are traced.
    """
    library = read.library
    if (check := functions_of(library).check_call) is not None:
        check(function.name)
    home: Home = HOST, CPU, None
    made: list[Array] = []
    if read.arrays:
        home = _home_of(function, read)
        made = _convert_inputs(function, read)
    values, named = unflatten(read.treedef, iter(made), iter(read.traced))
    given, same = [*values, *named.values()], []
    for i, x in enumerate((*read.args, *read.kwargs.values())):
        if not has_arrays(argument_treedefs(read.treedef)[i]):
            given[i] = x  # the same object
            same.append(x)
    count = len(values)
    result = function.fn(*given[:count], **dict(zip(named, given[count:], strict=True)))
    if any(result is x for x in same) or (not read.arrays and library.is_tracing()):
        return result
    return _restore_result(result, home, function)


def _home_of(function: Function, read: CallInputs) -> Home:
    """Return where results go, from the array that decides; raise if it is on several devices."""
    x, library = read.arrays[read.leading], read.array_library
    device = CPU if isinstance(x, library.scalar_types) else library.device_of(x)
    if device.kind == SHARDED:
        raise sharded_call_error(function.name, library.name)
    return library.name, device, None if function.given.restore is None else _dtype_to_restore(read)


def _dtype_to_restore(read: CallInputs) -> str | None:
    """Return the inexact dtype in which results go back; None if no array has one: it would lose values."""
    xs = read.arrays[read.leading], *read.arrays
    return next((dtype for dtype in (_owner(x).dtype_of(x) for x in xs) if is_inexact(dtype)), None)


def _convert_inputs(function: Function, read: CallInputs) -> list[Array]:
    """Convert the arrays of a call to the library of the function, and to one device.

    That is the one that is named, else that of the library's own first array, else that to which the array
    that decides goes.
    """
    library, device, arrays = read.library, function.options.device, read.arrays
    own = [i for i, x in enumerate(arrays) if backend_for(type(x)) is library]
    first = [*own, read.leading][0]
    made = _compute_together(
        function, read, library.device_of(arrays[first]) if own and not device else device
    )
    for i in [first, *[i for i in range(len(arrays)) if i != first]]:
        if i in made:
            continue
        try:
            made[i] = convert_input(arrays[i], library, function.options, device)
        except XBridgeError as error:
            raise error.at(f"{argument_paths(read.treedef)[i]} of {function.name}") from error
        if device is None and not library.host_only and len(arrays) > 1:
            device = library.device_of(made[i])
    return [made[i] for i in range(len(arrays))]


def _compute_together(function: Function, read: CallInputs, device: object) -> dict[int, Array]:
    """Convert the arrays that are still to be computed in one go, so that common tasks run once."""
    arrays, (_, dtype, copy, grad, order) = read.arrays, function.options
    owners = list(map(_owner, arrays))
    pending = [i for i, own in enumerate(owners) if own.materialize_many and own is not read.library]
    if len(pending) < 2 or order:
        return {}
    try:
        xs = [arrays[i] for i in pending]
        ys = xbridge.align(*xs, backend=read.library.name, device=device, dtype=dtype, copy=copy, grad=grad)
    except XBridgeError:  # to be raised for the argument that it is about
        return {}
    return dict(zip(pending, ys, strict=True))


def _restore_result(result: Any, home: Home, function: Function) -> Any:
    """Convert the arrays of a result back, and leave all else as it is."""
    (name, device, restored), place = home, f"the result of {function.name}"
    # A function of the caller's library may have a graph of its own, such as that of a module's weights.
    grad: Literal["detach"] | None = "detach" if function.options.grad == "detach" else None
    arrays: list[Array] = []
    traced: list[Any] = []
    made: list[Array] = []
    treedef = flatten_result(result, function.name, arrays, traced)
    for x in arrays:
        is_text = getattr(getattr(x, "dtype", None), "kind", "") in ("U", "S", "T")
        is_cast = restored is not None and _owner(x).dtype_of(x) == function.given.restore
        dtype = restored if is_cast else function.narrowing
        try:  # text in a container stays, as in `xbridge.tree`
            stays = is_text and x is not result
            y = x if stays else xbridge.to_backend(x, name, device=device, dtype=dtype, grad=grad)
            made.append(y)
        except XBridgeError as error:
            raise error.at(leaf_paths(treedef, place)[len(made)]) from error
    same = all(y is x for x, y in zip(arrays, made, strict=True))
    return result if same else unflatten(treedef, iter(made), iter(traced))


# -- again ---------------------------------------------------------------------------------------------------
def _types_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the types of all arguments, and the names of keyword arguments."""
    return (*map(type, args), *kwargs, *map(type, kwargs.values())) if kwargs else tuple(map(type, args))


@tracing.none_in_traces
def _cache_call(function: Function, read: CallInputs) -> None:
    """Cache a call whose arguments are ordinary arrays of one library, numbers, text and None.

    What their types do not show is asked in each call: whether an array is tracked, and its device.
    """
    array_library, library, options = read.array_library, read.library, function.options
    xs = (*read.args, *read.kwargs.values())
    at = [i for i, x in enumerate(xs) if type(x) not in LEAVES]
    if (
        {type(xs[i]) for i in at}.issubset(array_library.fast.types)  # which those of tracers are not
        and function.given.restore is None
        and options.are_constant()
        and check_options((library,), **options._asdict()).device in (None, CPU)
        and not (library.is_tracing() or array_library.is_tracing())
    ):
        key = ("aligned", function.key, _types_of(read.args, read.kwargs))
        if key not in call_cache.cached:
            call_cache.store(key, read.version, _make_cached_call(read, at, is_plain=options is PLAIN))


def _make_cached_call(read: CallInputs, at: list[int], *, is_plain: bool) -> Callable[..., tuple[Any] | None]:
    """Return a cached call with arrays in the places `at`. It does not keep the function alive."""
    array_library, library, treedef = read.array_library, read.library, read.treedef
    name, device_of = array_library.name, array_library.device_of
    check, follows = functions_of(library).check_call, array_library.follows
    is_own, can_embed = library is array_library, is_plain and not read.kwargs and len(at) == len(read.args)
    # One look-up converts an ordinary array, where no option is to be read and the function cannot write.
    is_direct = is_plain and not is_own and not could_write(library)
    table, has_device = call_cache.direct[library.name], not (is_direct or array_library.host_only)

    def convert(x: Array, options: FunctionOptions) -> Array | None:
        """Convert an argument; return None for one that is refused, because the planned call names it."""
        if is_direct:
            y = table.get(type(x), call_cache.decline)(x)
            return protect_host(y, x) if library.name == HOST and y is not None else y
        try:
            return convert_input(x, library, options, options.device)
        except XBridgeError:
            return None

    def call_cached(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
        """Return the result in a tuple, or None to decline, before the function runs."""
        given = [*args, *kwargs.values()]
        home = CPU
        if has_device:
            home = device_of(given[at[0]])
            if home.kind == SHARDED or any(device_of(given[i]) != home for i in at[1:]):
                return None
        if follows is not None and not is_own:
            for i in at:
                if follows(given[i]):
                    if not can_embed or array_library.is_tracing():
                        return None
                    return (_run_rule(function.rule(library.name, name, treedef, None), given),)
        if not (is_own and is_plain):
            for i in at:
                y = convert(given[i], function.options)
                if y is None:
                    return None
                given[i] = y
        if check is not None:
            check(function.name)
        count, fn = len(args), function.fn
        result = fn(*given[:count], **dict(zip(kwargs, given[count:], strict=True))) if kwargs else fn(*given)
        # A single array is converted by the cache of calls, if it then is on the right device. Any other
        # result is walked as a tree.
        y = call_cache.direct[name].get(type(result), call_cache.decline)(result)
        if y is not None and function.keeps_results and (device_of(y) if y is result else CPU) == home:
            return (y,)
        return (_restore_result(result, (name, home, None), function),)

    return call_cached
