"""Repeat a plan without planning again: compile it for one array into a function for others with its key.

The key of an array is everything about it that its plan depends on. Between libraries, this is the dtype of
the view that `fast.to_numpy` returns, and its flags if the options ask for them. Within a library, or while
an operation is pending on the array, `fast.plan_key` of the backend returns it. The rest of what a plan
depends on is either in the key of the cached call (the options) or read again in each call (the state of the
backends, such as JAX's x64 mode).

A compiled function returns None to decline: for an array whose key was not planned yet, for an array that
`fast.to_numpy` or `fast.from_numpy` does not convert, and if a step fails. The caller then plans the call,
and an error comes from that plan, with its explanation.

The functions are closures that call each other, because a loop over the steps takes 1.6 times as long.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from operator import attrgetter
from pathlib import PurePath
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

from xbridge._core.devices import CPU
from xbridge._core.dtypes import DTYPES, UNNAMED
from xbridge._core.literals import NUMBERS, SEQUENCES
from xbridge._core.protocol import Array, Backend, HostArray
from xbridge._engine.source import Source
from xbridge._host import memory as _host
from xbridge._host.exporters import has_attribute
from xbridge._host.importers import PROTOCOLS, import_array, is_exporter
from xbridge._host.memory import native_dtype
from xbridge._plan.options import cache_key, find_converter
from xbridge._plan.steps import Options, Plan, Step
from xbridge._registry.call_cache import (
    are_both_immutable,
    decline,
    lookup_direct,
    refusals,
    store,
    store_by_key,
    try_in_order,
    unchanged,
)
from xbridge._registry.registry import backend_for, get
from xbridge.backends import HOST
from xbridge.errors import FOREIGN_ERRORS, UnsupportedArrayError, XBridgeError, type_of

T = TypeVar("T")

Convert: TypeAlias = Callable[[Any], Any]
KeyOf: TypeAlias = Callable[[Any], object]
ReadState: TypeAlias = Callable[[], object]
PlanState: TypeAlias = tuple[ReadState, object]
Table: TypeAlias = dict[object, Convert]
Repeat: TypeAlias = tuple[Convert, object, Callable[[Table, ReadState | None], Convert] | None]
"""A converter, the key of the arrays that it is for, and what makes the function that finds it in a table.

Without the last one, the converter is for all arrays of the type.
"""

_dtype_of = attrgetter("dtype")
_flags_and_dtype_of = attrgetter("flags.num", "dtype")
"""Return all flags of a host array in one integer, and its dtype."""

_ON_ANY_VIEW: dict[Options, Convert] = {
    Options(copy=True): _host.copy,
    Options(writable=True): lambda host: host if host.flags.writeable else _host.copy(host),
}
"""What options do with a view of any kind, for a result on the host."""

_EXPORTS = (*PROTOCOLS, "__buffer__")
"""The attributes of what may be an array after all."""

_FAILURES = (XBridgeError, *FOREIGN_ERRORS)
"""The errors of a step that make a call decline. The plan that follows fails too, and explains the error.

Errors of `fast.to_numpy` and `fast.from_numpy` are not caught: they are bugs of a backend, which users see.
"""


def read_plan_state(source: Backend, target: Backend) -> PlanState | None:
    """Return how to read what plans depend on beside arrays and options, and what that is now.

    Return None if plans cannot be cached: a backend does not report its state, or a compiler is tracing.
    """
    backends = [backend for backend in (source, target) if backend.name != HOST] or [get(HOST)]
    states = list(dict.fromkeys(backend.fast.plan_state for backend in backends))
    is_current = get(source.name) is source and get(target.name) is target
    if None in states or target.is_tracing() or not is_current:
        return None
    read: Any = states[0] if len(states) == 1 else lambda: tuple(state() for state in states)  # type: ignore[misc] # none of them is None
    return read, read()


def cache_plan(x: Array, plan: Plan, version: int, state: PlanState) -> None:
    """Cache the plan of an array for others with its key.

    It is not cached if the state or the version of the cache has changed since they were read.
    """
    source, target, info, options, _, device = plan.conversion
    call, repeat = cache_key(options, target.name, type(x)), None
    if call is None or type(x) not in source.fast.types or info.dtype not in DTYPES:
        return
    if {info.device, device} != {CPU}:
        repeat = _find_mover(plan)
    elif not (options.copy is False and plan.copies):  # of an empty array; others are refused
        repeat = _find_within(x, plan) if source is target else _find_between(x, plan)
    read_state, found = state
    if repeat is None or read_state() != found:
        return
    run, key, dispatch = repeat
    if dispatch is None:
        store(call, version, run)
        return
    others = [backend for backend in (source, target) if backend.name != HOST]
    is_default = all(backend.fast.state_is_default_dtype for backend in others)
    # To read no state is a call less each time. What becomes of host arrays depends on none.
    read = None if target.name == HOST or (is_default and options.dtype not in UNNAMED) else read_state
    store_by_key(call, version, run, (key, found) if read else key, lambda table: dispatch(table, read))


def cache_import(version: int, cls: type, host: Array, target: Backend, options: Options) -> None:
    """Cache the conversion of scalars or exporters of a class, each of which is imported as a host array.

    The conversion of `host`, which the first of them became, must have been cached already. Exporters of one
    class may be on several devices, and one on a device that is not the target's is planned.
    """
    convert, call = find_converter(options, target.name, type(host)), cache_key(options, target.name, cls)
    here = options.device in (None, CPU) or issubclass(cls, get(HOST).scalar_types)
    is_imported = type(host) in get(HOST).array_types and here
    if convert is decline or call is None or options.copy is False or not (is_imported and is_global(cls)):
        return
    store(call, version, compose(importer(target, options), convert))


def cache_refusal(asked: str | ModuleType, x: object, error: UnsupportedArrayError, version: int) -> None:
    """Cache what is said of an object that is no array, for others of its class."""
    cls, index, said = type(x), error.index, (error.action, error.reason, error.hint)
    cause = error.__cause__ and error.__cause__.args  # that of `memoryview`, which takes no other object
    has_value = issubclass(cls, (*SEQUENCES, dict, str, PurePath))
    # A compiler cannot follow the look-up of an attribute of a list.
    has_value = has_value or (has_attribute(x, "__float__") and not issubclass(cls, NUMBERS))
    by_class = not has_value and type_of(x) in error.action
    if not (by_class and is_global(cls)) or is_exporter(x) or backend_for(cls) is not None:
        return  # it depends on the object itself, or the cache would keep what the class holds

    def refuse(x: object) -> UnsupportedArrayError | None:
        if has_attribute(x, *_EXPORTS):  # its class may have got one since
            return None
        refused = UnsupportedArrayError.build(*said)
        refused.index = index
        refused.__cause__ = TypeError(*cause) if cause else None
        return refused

    store((asked, cls), version, refuse, refusals)


def is_global(cls: type) -> bool:
    """Return True if a module keeps the class, as the cache does. One of a function may keep its object."""
    members = getattr(sys.modules.get(cls.__module__), "__dict__", {})  # without a call of `__getattr__`
    return members.get(cls.__name__) is cls


def importer(target: Backend, options: Options) -> Convert:
    """Return the function that imports scalars or exporters as host arrays, and declines what it cannot."""
    named = options.dtype if options.dtype in DTYPES else None
    return _decline_on_error(
        partial(import_array, must_share=False, fetch=target.host_only, dtype=named), _FAILURES
    )


# -- from a plan to a function -----------------------------------------------------------------------------


def _find_mover(plan: Plan) -> Repeat | None:
    """Return how to move arrays to or from a device; None if the plan does more than a move."""
    source, target, _, options, _, _ = plan.conversion
    ops = [step.op for step in plan.steps if step.op != "copy"]
    move: Convert | None = None
    if options._replace(device=None) != Options():
        return None
    if target.name == HOST and options.device is None and ops[:2] == ["to_device", "to_numpy"]:
        move = source.transfers.fast_from_device
    elif source.name == HOST and options.device and ops == ["to_numpy", "from_numpy", "to_device"]:
        move = target.transfers.fast_to_device(str(options.device))
    return move and (move, None, None)


def _find_within(x: Array, plan: Plan) -> Repeat | None:
    """Return how to repeat a plan within one library; None if its backend returns no key."""
    backend, options = plan.conversion.source, plan.conversion.options
    plan_key = backend.fast.plan_key
    key_of: KeyOf | None = plan_key
    if backend.name == HOST:
        key_of = _key_of_view(options)
    elif plan_key and (options.grad or options.requires_grad):
        key_of = partial(plan_key, graph=True)
    if key_of is None or (key := key_of(x)) is None:
        return None
    steps = plan.steps
    if options.order and backend.as_c_order and backend.name != HOST:
        if options._replace(device=None, dtype=None, order=None) != Options():
            return None
        # The key does not tell the order. The step looks at each array.
        steps = (*(step for step in steps if step.op != "as_c_order"), Step(backend, "as_c_order"))
    calls = [
        _host.caster(x.dtype, *step.args)
        if step.op == "astype" and backend.name == HOST and type(x) in backend.array_types
        else _bind(getattr(step.module, step.op), step.args)
        for step in steps
    ]
    return _chain(calls), key, partial(_dispatch_on_key, key_of, failures=_FAILURES)


def _find_between(x: Array, plan: Plan) -> Repeat | None:
    """Return how to repeat a plan between two libraries; None if it depends on more than a key."""
    source, target, _, options, _, _ = plan.conversion
    if source.autograd and (options.grad == "keep" or options.requires_grad):
        return None  # a plan refuses an array with a graph, which its view does not show
    # An array on which an operation is pending has no view. What the operation makes is new memory.
    view_of, resolve = source.fast.to_numpy, source.fast.resolve_to_numpy or decline
    plain = options._replace(device=None, grad=None)
    if plain == Options() and not target.assumes_immutable:  # which would copy the new memory
        # Callers try the conversion without options first, if there really are none.
        convert = decline if options == plain else lookup_direct(target.name, type(x))
        others = compose(resolve, lookup_direct(target.name, get(HOST).array_types[0]))
        return compose(convert, unchanged, others), None, None
    finish = _ON_ANY_VIEW.get(plain) if target.name == HOST else None
    if finish:
        if source.fast.copy_to_numpy:
            view_of, finish = source.fast.copy_to_numpy, unchanged
        return compose(view_of, finish, resolve), None, None
    return _find_by_view(x, plan)


def _find_by_view(x: Array, plan: Plan) -> Repeat | None:
    """Return how to repeat a plan for arrays with a view by the key of that, and for others by their own."""
    fast, options = plan.conversion.source.fast, plan.conversion.options
    view_of, key_of, plan_key = fast.to_numpy, _key_of_view(options), fast.plan_key
    own_key_of: KeyOf | None = plan_key and (lambda x: ("own", plan_key(x)))  # no key of a view has the word
    host, key, convert = view_of(x), None, None
    if host is None and own_key_of and own_key_of(x) != ("own", None):
        key, convert = own_key_of(x), _compile_resolved(plan)
    elif host is not None and options != Options():  # without options, callers try the conversion first
        key, convert = key_of(host), _compile_view(host, plan)
    if host is x:  # NumPy's arrays are their own views
        return convert and (convert, key, partial(_dispatch_on_key, key_of))

    def dispatch(table: Table, read_state: ReadState | None) -> Convert:
        others = _dispatch_on_key(own_key_of, table, read_state) if own_key_of else decline
        return compose(view_of, _dispatch_on_key(key_of, table, read_state), others)

    return convert and (convert, key, dispatch)


def _key_of_view(options: Options) -> KeyOf:
    """Return the key of host arrays. Whether memory may be shared or written depends on their flags too."""
    asks_flags = options.copy is False or options.writable is not None or options.order
    return _flags_and_dtype_of if asks_flags else _dtype_of


def _compile_view(host: HostArray, plan: Plan) -> Convert | None:
    """Compile a plan for views that `fast.to_numpy` returns; None if it depends on more than their key.

    A copy that the sharing rules require is left to `fast.from_numpy`, which makes it for the arrays that
    need one. With `copy=False` that is used only if the flags alone decide it, as for a dense array.
    """
    source, target, _, options, _, _ = plan.conversion
    if are_both_immutable(source, target) or (options.copy is False and not host.flags.forc):
        return None
    at = [step.op for step in plan.steps].index("to_numpy")
    # `fast.to_numpy` detaches the array, and its view is read-only if it has to be.
    first = [step for step in plan.steps[:at] if step.op != "detach"]
    if first and source.name != HOST:
        return None
    left_out = {"as_readonly"} if options.writable is not False else set()
    if target.name != HOST and not options.copy:
        left_out.add("copy")
    steps = [*first, *(step for step in plan.steps[at + 1 :] if step.op not in left_out)]
    return _compile_on_host(steps, target, host.dtype, like=host)


def _compile_resolved(plan: Plan) -> Convert | None:
    """Compile a plan for arrays with a pending operation; return None if it cannot be repeated.

    Such a plan applies to any strides, because the pending operation makes new memory.
    """
    conversion, ops = plan.conversion, [step.op for step in plan.steps]
    resolve, at = conversion.source.fast.resolve_to_numpy, ops.index("to_numpy")
    # Of an array without memory, a cast comes first.
    if resolve is None or "materialize" not in ops or not {"detach", "materialize"}.issuperset(ops[:at]):
        return None
    finish = _compile_on_host(plan.steps[at + 1 :], conversion.target, native_dtype(conversion.info.dtype))
    return finish and compose(resolve, finish)


def _compile_on_host(
    steps: Sequence[Step], target: Backend, dtype: Any, like: HostArray | None = None
) -> Convert | None:
    """Return the function that makes the steps that follow `to_numpy`.

    `from_numpy` is replaced by `fast.from_numpy`, which also checks the memory, unless that is new. A trial
    with two items finds out if the target accepts the dtype. Return None if it does not. All views have
    the class of `like`; without it, they are new memory.
    """
    calls: list[Convert] = []
    last: Step | None = None
    for step in steps:
        if step.op == "from_numpy" and target.name == HOST:
            continue
        fn = _bind(getattr(step.module, step.op), step.args)
        is_fresh = last.copy_reason if last else like is None
        if step.op == "from_numpy" and not (target.assumes_immutable and is_fresh):
            fn = target.fast.from_numpy
        elif step.module is target:
            fn = target.fast.outside_modes(_decline_on_error(fn))
        elif _is_dense_copy(step) and last == Step(_host, "check_cast", step.args):
            calls.pop()
            fn = _bind(_host.astype_checked, step.args)
        elif _is_dense_copy(step) and last is None and like is not None:
            fn = _host.dense_copier(like, *step.args)
        calls.append(fn)
        last = step
    made, trial = _chain(calls), _host.ones(dtype)
    if made(trial) is None:
        return None
    copied = any(map(_is_dense_copy, steps[-2:-1]))
    if target.fast.from_fresh and copied and calls[-1] is target.fast.from_numpy:
        shorter = _chain([*calls[:-1], target.fast.from_fresh])
        return made if shorter(trial) is None else shorter
    return made


def _is_dense_copy(step: Step) -> bool:
    """Return True for a copy or cast on the host whose result is a new array without gaps."""
    return step.module is _host and (step.op, len(step.args)) in (("copy", 0), ("astype", 1))


# -- by the key of an array --------------------------------------------------------------------------------


def _dispatch_on_key(
    key_of: KeyOf,
    table: Table,
    read_state: ReadState | None,
    failures: tuple[type[Exception], ...] = (XBridgeError,),
) -> Convert:
    """Return the function that finds the conversion of an array by its key, and by any state."""
    find = table.get

    def convert_by_key(x: Array) -> Array | None:
        convert = find(key_of(x))
        try:
            return None if convert is None else convert(x)
        except failures:  # a value would be lost, or the memory was freed: the plan fails too, and says why
            return None

    def convert_by_key_and_state(x: Array) -> Array | None:
        convert = find((key_of(x), read_state()))  # type: ignore[misc] # it is not None here
        try:
            return None if convert is None else convert(x)
        except failures:
            return None

    return convert_by_key_and_state if read_state else convert_by_key


# -- composition of functions ------------------------------------------------------------------------------


def _chain(calls: list[Convert]) -> Convert:
    """Return one function that makes all calls in order, and declines as soon as one declines."""
    return reduce(compose, calls) if calls else unchanged


def compose(first: Convert, finish: Convert, other: Convert = decline) -> Convert:
    """Return the function that calls `first`, then `finish`, or `other` if `first` declines."""
    if first is decline:
        return other
    if finish is unchanged:
        return first if other is decline else try_in_order(first, other)

    def convert_in_turn(x: Any) -> Any:
        y = first(x)
        return other(x) if y is None else finish(y)

    return convert_in_turn


def _decline_on_error(fn: Convert, failures: tuple[type[Exception], ...] = FOREIGN_ERRORS) -> Convert:
    """Return the function of a step, which declines if the library raises."""

    def call_or_decline(x: Any) -> Any:
        try:
            return fn(x)
        except failures:
            return None

    return call_or_decline


def _bind(fn: Callable[..., Any], args: tuple[object, ...]) -> Convert:
    """Return the function of a step, which takes no more than an array."""
    if len(args) == 1:  # as most steps have: a name takes less time than a star
        (arg,) = args
        return lambda x: fn(x, arg)
    return (lambda x: fn(x, *args)) if args else fn


def convert_by_type(converters: Mapping[type, Convert]) -> Callable[[Iterable[Any]], tuple[Any, ...] | None]:
    """Return the function that converts inputs, each by the converter of its type; None if one declines."""

    def convert_each(xs: Iterable[Any]) -> tuple[Any, ...] | None:
        ys = []
        for x in xs:
            y = converters[type(x)](x)
            if y is None:
                return None
            ys.append(y)
        return tuple(ys)

    return convert_each


def unless_followed(follows: Callable[[Array], bool], convert: Convert) -> Convert:
    """Return the converter of arrays that decide where results go if autograd or a transform follows them."""
    return lambda x: None if follows(x) else convert(x)


def with_like(convert: Callable[[T], Any], source: Source | None) -> Callable[[T, Array], Any]:
    """Return a cached call with the argument `like`. This is `source` if the call took the device from it."""
    device_of = source and source.backend.device_of

    def convert_like(x: T, like: Array) -> Any:
        device = device_of(like) if device_of else CPU
        return convert(x) if device is CPU or device == CPU else None

    return convert_like
