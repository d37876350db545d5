"""Aligned functions, and their calls: direct ones, or embedded in a graph or transform of another library.

The first tracked array, which requires grad or is traced, decides where results go; without one, the first
array does. Its library is called the array library. If no array is tracked, the function just runs on
converted arrays. Otherwise the call becomes a rule: the function's library makes its derivatives, and the
array library embeds it in its graphs and transforms.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from uuid import uuid4
from weakref import WeakValueDictionary

import xbridge
from xbridge import Device, asarray, to_backend
from xbridge.errors import OptionError, XBridgeError
from xbridge.extend import (
    CPU,
    HOST,
    Options,
    backend_for,
    call_cache,
    each,
    entry_points,
    get_backend,
    is_inexact,
    resolve_dtype,
    tracing,
)
from xbridge.functions.explain import CallPlan
from xbridge.functions.inputs import (
    PLAIN,
    convert_inputs,
    could_write,
    error_at,
    find_named,
    import_exporter,
    map_named,
    must_copy,
    protect_host,
)
from xbridge.functions.libraries import function_of, rule_of
from xbridge.functions.programs import Program
from xbridge.functions.rules import (
    Call,
    flatten_result,
    get_or_make,
    latest,
    mask_inexact,
    sharded_call_error,
)
from xbridge.functions.treedef import (
    ARRAY,
    LEAVES,
    LITERALS,
    are_arrays,
    argument_paths,
    argument_treedefs,
    flatten,
    has_arrays,
    leaf_paths,
    traceable,
    unflatten,
    with_constants,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from xbridge.functions.rules import Definition, DerivableFunction
    from xbridge.functions.treedef import TreeDef
    from xbridge.protocol import Array, Backend


SHARDED = Device("sharded")
"""The device of an array that is on several devices."""


functions: WeakValueDictionary[str, Function] = WeakValueDictionary()
"""The functions in use, by key, because a compiler can keep a string in a program and not the object."""


@dataclass(eq=False)
class Function:
    """A function that `aligned` wraps, with its options, its declarations, and its rules by treedef."""

    fn: Callable[..., Any]
    name: str
    backend: str | None
    options: Options
    given: Definition
    arrays: object = None

    def __post_init__(self) -> None:
        self.named = find_named(self.arrays, self.fn, self.name)
        self.rules: dict[Any, DerivableFunction] = {}
        self.programs: list[Program] = []
        """The calls in compiled programs, which live as long as the function."""
        self.key = f"{self.name}#{uuid4().hex}"
        functions[self.key] = self

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle what the user gave, without rules and compiled code."""
        return Function, (self.fn, self.name, self.backend, self.options, self.given, self.arrays)

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
        find_modes = function_of(get_backend(library), "modes")
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

    def explain(self, /, *args: Any, **kwargs: Any) -> CallPlan:
        """Return what a call with these arguments would do, without running it."""
        read = _read_inputs(self, args, kwargs)
        if not read.arrays:
            raise OptionError.build(
                f"explain a call of {self.name}", "no argument is an array", "explain(f, x)"
            )
        array_library, library, options = read.array_library, read.library, self.options
        plans: dict[str, Any] = {}
        for path, x in zip(argument_paths(read.treedef), read.arrays, strict=True):
            plans[path] = xbridge.explain(
                x,
                library.name,
                device=options.device,
                dtype=self.dtype,
                copy=must_copy(x, library, options) or options.copy,
                grad=options.grad,
                order=options.order,
            )
        names = library.name, array_library.name
        derivative = self.rule(*names, read.treedef).report()
        return CallPlan(self.name, *names, _is_embedded(self, read), plans, derivative)


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
        except AttributeError as error:
            if note := _note_on_literal(function, args, kwargs, error):
                error.add_note(note)
            raise

    vars(call)["__xbridge__"] = function
    if not hasattr(fn, "__qualname__"):  # a callable object
        call.__qualname__, call.__name__ = function.name, function.name.rpartition(".")[2]
    return call


def _note_on_literal(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], error: AttributeError
) -> str:
    """Return what to do if a function takes a number or a list, which stays one, for an array; else ""."""
    if type(error.obj) not in LITERALS:
        return ""
    with suppress(TypeError, ValueError):  # a function in C may have no signature
        for name, x in inspect.signature(function.fn).bind(*args, **kwargs).arguments.items():
            if x is error.obj:
                reason = f"argument {name!r} of {function.name} is a {type(x).__name__}, which stays one"
                return f"{reason}; try aligned(..., arrays={name!r})"
    return ""


@tracing.none_in_traces
def _call_cached(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
    """Return the result of a cached call for arguments of these types in a tuple; None without one."""
    run = call_cache.cached.get(("aligned", function.key, _types_of(args, kwargs)))
    return None if run is None else run(function, args, kwargs)


def _call_planned(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a call as its arguments ask for, and cache how."""
    version = call_cache.cache_version()
    read = _read_inputs(function, args, kwargs)
    is_embedded = _is_embedded(function, read)
    result = _run_embedded(function, read) if is_embedded else _run_directly(function, read)
    is_lazy = is_embedded and read.array_library.follows is None
    if read.arrays and _is_cacheable(function) and not is_lazy:
        _cache_call(function, read, version)
    return result


# -- the arguments -------------------------------------------------------------------------------------------
class CallInputs(NamedTuple):
    """The arguments of a call, their arrays, and the libraries of the call."""

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
    dtype = None if function.given.narrowing else function.options.dtype
    read_exporter = partial(import_exporter, dtype=dtype)
    args, kwargs = map_named(named, read_exporter, function.name, args, kwargs)
    found = _find_arrays(function, args, kwargs, ())
    news: list[Array] = []

    def make(x: Any) -> Array:
        """Make an array, with the default dtype of the library that decides if the user names none."""
        keeps = has_arrays(flatten(x, [], [])) or (bool(found.arrays) and dtype is None)
        library = found.array_library if keeps else found.library
        # An array that is converted afterwards is mapped then. One that the call keeps is not.
        own = None if keeps or function.given.narrowing else function.dtype
        news.append(asarray(x, backend=library.name, dtype=own))
        return news[-1]

    args, kwargs = map_named(named, make, function.name, args, kwargs)
    if found.arrays and news:
        return _find_arrays(function, args, kwargs, news)
    return found._replace(args=args, kwargs=kwargs)


def _find_arrays(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], news: Sequence[Array]
) -> CallInputs:
    """Find the arrays in the arguments of a call. `news`, made of numbers and lists, do not decide."""
    arrays: list[Array] = []
    traced: list[Any] = []
    kwargs = function.order_keywords(kwargs)
    try:
        treedef = flatten((args, kwargs), arrays, traced)
    except XBridgeError as error:
        raise error.at(f"an argument of {function.name}") from error
    leading = _leading_index(arrays, news) if arrays else 0
    array_library = _owner(arrays[leading]) if arrays else get_backend(HOST)
    library = array_library if function.backend is None else get_backend(function.backend)
    return CallInputs(args, kwargs, treedef, arrays, traced, leading, array_library, library)


def _owner(x: Array) -> Backend:
    owner = backend_for(type(x))
    assert owner is not None  # noqa: S101 -- an array has one
    return owner


def _leading_index(arrays: Sequence[Array], news: Sequence[Array]) -> int:
    """Return the index of the array that decides: the first tracked one, else the first that is no scalar."""
    for i, x in enumerate(arrays):
        if _is_tracked(x):
            return i
    given = [i for i, x in enumerate(arrays) if not any(x is new for new in news)]
    proper = [i for i in given if not isinstance(arrays[i], _owner(arrays[i]).scalar_types)]
    return [*proper, *given, 0][0]  # the first of the news, if there are no others


def _is_tracked(x: Array) -> bool:
    follows = _owner(x).follows
    return follows is not None and follows(x)


def _is_embedded(function: Function, read: CallInputs) -> bool:
    """Return True if the array library embeds the call: because an array is tracked, or to compute it lazily.

    A lazy library without transforms, such as Dask, embeds the functions that have a signature.
    """
    library = read.array_library
    if read.library is library or not read.arrays:
        return False
    is_lazy = library.follows is None and function.given.signature is not None
    return (is_lazy or _is_tracked(read.arrays[read.leading])) and function_of(library, "run") is not None


# -- within graphs, transforms and programs ------------------------------------------------------------------
def _run_embedded(function: Function, read: CallInputs) -> Any:
    """Run the call as a rule, within the graphs and transforms of the array library."""
    treedef, arrays, array_library, library = read.treedef, read.arrays, read.array_library, read.library
    options = function.options
    device = array_library.device_of(arrays[read.leading])
    xs: list[Array] = []
    kept: Literal["keep"] | None = "keep" if options.grad == "keep" else None
    for i, x in enumerate(arrays):
        try:
            y = x
            if backend_for(type(x)) is not array_library:
                y = to_backend(x, array_library.name, device=device, grad=kept)
            xs.append(_cast_and_cut(y, array_library, library, options))
        except XBridgeError as error:
            raise error_at(error, f"{argument_paths(treedef)[i]} of {function.name}") from error
    trace = function_of(array_library, "trace")
    if trace is not None and array_library.is_tracing():
        symbols = (int, float, *tracing.symbolic_numbers)
        objects = [x for x in read.traced if type(x) not in symbols]
        key = program_key(function.key, treedef, library.name, array_library.name, *objects)
        ys = trace(key, xs, read.traced)
        treedef = latest_traceable() if tracing.is_traced() else latest.treedef
        result = unflatten(treedef, iter(ys))
    else:
        rule = function.rule(library.name, array_library.name, treedef)
        result = _run_rule(rule, xs, refuses_cut=options.grad == "keep")
    restored = _dtype_to_restore(function, read)
    return _restore_result(function, result, array_library.name, None, restored) if restored else result


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


def _run_rule(rule: DerivableFunction, xs: list[Array], *, refuses_cut: bool = False) -> Any:
    """Run a rule on arrays of the array library, and build the result."""
    array_library = get_backend(rule.call.array_library)
    run = function_of(array_library, "run")
    assert run is not None  # noqa: S101 -- only such libraries embed a call
    ys = run(rule, xs)
    treedef = latest.treedef
    if refuses_cut and array_library.follows is not None:
        kinds = mask_inexact(map(array_library.array_info, xs))
        ins = tuple(kind and array_library.follows(x) for x, kind in zip(xs, kinds, strict=True))
        if any(ins):  # the graph would end here if the function has no gradient
            rule.derive("vjp", ins, mask_inexact(map(array_library.array_info, ys)), treedef)
    return ys[0] if treedef == ARRAY else unflatten(treedef, iter(ys))


def _cast_and_cut(x: Array, array_library: Backend, library: Backend, options: Options) -> Array:
    """Cast an array in its own library, so that gradients flow through the cast. Cut its graph if asked."""
    if options.dtype is not None or options.by_dtype:
        info = array_library.array_info(x)
        dtype = options.dtype or dict(options.by_dtype).get(info.dtype, info.dtype)
        if dtype in ("nearest", "default"):
            dtype = resolve_dtype(dtype, info.dtype, library, info.device)
            if dtype != info.dtype and not array_library.unsupported(x, leaving=True):
                array_library.check_cast(x, dtype)
        if dtype != info.dtype:
            x = to_backend(x, array_library.name, dtype=dtype)
    return to_backend(x, array_library.name, grad="detach") if options.grad == "detach" else x


# -- on converted arrays -------------------------------------------------------------------------------------
def _run_directly(function: Function, read: CallInputs) -> Any:
    """Convert the arguments, run the function, and convert the arrays of its result back.

    They go to NumPy if no argument has an array, unless they are traced.
    """
    library = read.library
    if (check := function_of(library, "check_call")) is not None:
        check(function.name)
    device, restored = CPU, None
    if read.arrays:
        device, restored = _device_of(read.arrays[read.leading]), _dtype_to_restore(function, read)
        if device.kind == SHARDED:
            raise sharded_call_error(function.name, read.array_library.name)
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
    return _restore_result(function, result, read.array_library.name, device, restored)


def _dtype_to_restore(function: Function, read: CallInputs) -> str | None:
    """Return the inexact dtype in which results go back; None if no array has one: it would lose values."""
    if function.given.restore is None:
        return None
    dtypes = [_owner(x).dtype_of(x) for x in (read.arrays[read.leading], *read.arrays)]
    return next(filter(is_inexact, dtypes), None)


def _convert_inputs(function: Function, read: CallInputs) -> list[Array]:
    """Convert the arrays of a call to the library of the function, and to one device.

    That is the one that is named, else that of the library's own first array, else that to which the array
    that decides goes.
    """
    library, options, arrays = read.library, function.options, read.arrays
    groups = [[*range(len(arrays))]] if arrays else []
    if options.device is None and not library.host_only and len(set(map(_device_of, arrays))) > 1:
        own = [i for i, x in enumerate(arrays) if _owner(x) is library]
        first = [*own, read.leading][0]
        groups = [[first], [i for i in groups[0] if i != first]]
    made: dict[int, Array] = {}
    for at in groups:
        try:
            ys = convert_inputs([arrays[i] for i in at], library, options)
        except XBridgeError as error:
            if error.index is None:
                raise
            path = argument_paths(read.treedef)[at[error.index]]
            raise error_at(error, f"{path} of {function.name}") from error
        made.update(zip(at, ys, strict=True))
        options = options._replace(device=library.device_of(ys[0]))
    return [made[i] for i in range(len(arrays))]


def _device_of(x: Array) -> Device:
    owner = _owner(x)
    return CPU if isinstance(x, owner.scalar_types) else owner.device_of(x)


def _restore_result(
    function: Function, result: Any, name: str, device: Device | None, restored: str | None = None
) -> Any:
    """Convert the arrays of a result back to a library and a device, and leave all else as it is.

    Those of the dtype that the user names get the dtype `restored`, if there is one.
    """
    mapped = {str(function.given.restore): restored} if restored else {}
    narrowing = function.given.narrowing
    # A function of the caller's library may have a graph of its own, such as that of a module's weights.
    grad: Literal["detach"] | None = "detach" if function.options.grad == "detach" else None
    if are_arrays(type(result)):
        try:
            return to_backend(result, name, device=device, dtype=mapped or narrowing, grad=grad)
        except XBridgeError as error:
            raise error_at(error, f"the result of {function.name}") from error
    options = Options(device, narrowing, grad=grad, by_dtype=tuple(mapped.items()))
    arrays: list[Array] = []
    traced: list[Any] = []
    treedef = flatten_result(result, function.name, arrays, traced)

    def keep_text(x: Array, _: Options) -> Array | None:  # in a container, as in `xbridge.tree`
        kind = getattr(getattr(x, "dtype", None), "kind", "")
        return x if kind in ("U", "S", "T") else None

    try:
        made = each(arrays, get_backend(name), options, otherwise=keep_text)
    except XBridgeError as error:
        if error.index is None:
            raise
        path = leaf_paths(treedef, f"the result of {function.name}")[error.index]
        raise error_at(error, path) from error
    same = all(y is x for x, y in zip(arrays, made, strict=True))
    return result if same else unflatten(treedef, iter(made), iter(traced))


# -- again ---------------------------------------------------------------------------------------------------
def _types_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the types of all arguments, and the names of keyword arguments."""
    return (*map(type, args), *kwargs, *map(type, kwargs.values())) if kwargs else tuple(map(type, args))


def _is_cacheable(function: Function) -> bool:
    """Return True if calls may be cached: no option depends on more than the types of the arguments.

    Moves to another device are left to plans, which do them together.
    """
    options = function.options
    others = options._replace(dtype=None, copy=None, grad=None)
    return function.given.restore is None and others in (PLAIN, PLAIN._replace(device=CPU))


@tracing.none_in_traces
def _cache_call(function: Function, read: CallInputs, version: int) -> None:
    """Cache a call of ordinary arrays of one library, numbers, text and None.

    What their types do not show is asked in each call: whether an array is tracked, and its device.
    """
    array_library, library = read.array_library, read.library
    xs = (*read.args, *read.kwargs.values())
    at = [i for i, x in enumerate(xs) if type(x) not in LEAVES]
    is_ordinary = {type(xs[i]) for i in at} <= set(array_library.fast.types)  # which tracers are not
    key = ("aligned", function.key, _types_of(read.args, read.kwargs))
    if is_ordinary and not (library.is_tracing() or array_library.is_tracing() or key in call_cache.cached):
        call_cache.store(key, version, _make_cached_call(function, read, at))


def _make_converter(owner: Backend, library: Backend, options: Options) -> Callable[[Array], Array | None]:
    """Return the function that converts an argument, or declines: the planned call names what is refused."""
    name, to_host = library.name, library.name == HOST
    device, dtype = options.device, options.dtype
    grad: Any = options.grad
    copy = could_write(owner, library, options) or options.copy
    table = call_cache.direct[name] if options == PLAIN and not copy else None

    def convert(x: Array) -> Array | None:
        try:
            if table is not None:
                y = table[type(x)](x)
            else:
                y = to_backend(x, name, device=device, dtype=dtype, copy=copy, grad=grad)
        except XBridgeError:
            return None
        return protect_host(y, x) if to_host and y is not None and y is not x else y

    return convert


def _make_cached_call(
    function: Function, read: CallInputs, at: list[int]
) -> Callable[..., tuple[Any] | None]:
    """Return a cached call with arrays in the places `at`. It does not keep the function alive."""
    array_library, library, treedef = read.array_library, read.library, read.treedef
    name, device_of, follows = array_library.name, array_library.device_of, array_library.follows
    check, is_own = function_of(library, "check_call"), library is array_library
    options = function.options
    is_plain = options == PLAIN
    can_embed = is_plain and not read.kwargs and len(at) == len(read.args)
    converted = () if is_plain and is_own else at
    convert = _make_converter(array_library, library, options)
    # A table of conversions without options declines an array that is on another device than the CPU.
    is_looked_up = is_plain and not is_own and not could_write(array_library, library, options)
    has_device = not array_library.host_only and not is_looked_up
    has_options = function.given.narrowing is not None or options.grad == "detach"
    direct = {} if has_options else call_cache.direct[name]

    def call_cached(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
        """Return the result in a tuple, or None to decline, before the function runs."""
        given = [*args, *kwargs.values()]
        home = device_of(given[at[0]]) if has_device else CPU
        for i in at:
            if has_device and (home.kind == SHARDED or device_of(given[i]) != home):
                return None
            if follows is not None and not is_own and follows(given[i]):
                if not can_embed or array_library.is_tracing():
                    return None
                return (_run_rule(function.rule(library.name, name, treedef), given),)
        for i in converted:
            given[i] = y = convert(given[i])
            if y is None:
                return None
        if check is not None:
            check(function.name)
        count, fn = len(args), function.fn
        result = fn(*given[:count], **dict(zip(kwargs, given[count:], strict=True))) if kwargs else fn(*given)
        y = direct.get(type(result), call_cache.decline)(result)
        if y is not None and (device_of(y) if y is result else CPU) == home:
            return (y,)
        return (_restore_result(function, result, name, home),)

    return call_cached
