"""Repeat a plan without planning again: compile it for one array into a function for others with its key.

The key of an array is everything about it that its plan depends on. Between libraries, this is the dtype and
the flags of the view that `fast_to_numpy` returns. Within a library, or while an operation is pending on the
array, `plan_key` of the backend returns it. The rest of what a plan depends on is either in the key of the
cached call (the options) or read again in each call (the state of the backends, such as torch's default
dtype).

A compiled function returns None to decline: for an array whose key was not planned yet, for an array that
`fast_to_numpy` or `fast_from_numpy` does not convert, and if a step fails. The caller then plans the call,
and an error comes from that plan, with its explanation.

The functions are closures that call each other, because a loop over the steps takes 1.6 times as long.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import attrgetter
from typing import Any, NamedTuple

from xbridge import _host
from xbridge._core.devices import CPU
from xbridge._core.dtypes import DTYPES
from xbridge._core.protocol import Array, Backend, HostArray
from xbridge._host.importers import import_array
from xbridge._host.memory import native_dtype
from xbridge._plan.options import cache_key, find_converter
from xbridge._plan.steps import Options, Plan, Step
from xbridge._registry.call_cache import (
    are_both_immutable,
    decline,
    lookup_direct,
    store,
    store_by_key,
    try_in_order,
    unchanged,
)
from xbridge._registry.registry import get
from xbridge.backends import HOST
from xbridge.errors import FOREIGN_ERRORS, XBridgeError

Convert = Callable[[Any], Any]
KeyOf = Callable[[Any], object]
ReadState = Callable[[], object]
Table = dict[object, Convert]

_dtype_of = attrgetter("dtype")
_flags_and_dtype_of = attrgetter("flags.num", "dtype")
"""Return all flags of a host array in one integer, and its dtype. No backend's key begins with a number."""

_BY_FLAGS = frozenset(("asked", "byte_order", "mutable", "read_only", "requires_grad"))
"""Reasons for a copy that depend on no more than the call, and the dtype and flags of NumPy's view."""

_ON_ANY_VIEW: dict[Options, Convert] = {
    Options(): unchanged,
    Options(copy=True): _host.copy,
    Options(writable=True): lambda host: host if host.flags.writeable else _host.copy(host),
}
"""What options do with a view of any kind. For another target than the host, only the first is right."""

_FAILURES = (XBridgeError, *FOREIGN_ERRORS)
"""The errors of a step that make a call decline. The plan that follows fails too, and explains the error.

Errors of `fast_to_numpy` and `fast_from_numpy` are not caught: they are bugs of a backend, which users see.
"""


class CachedStep(NamedTuple):
    """How to repeat a plan: by which function, for which arrays, and how to find the key of an array."""

    convert: Convert
    key: tuple[object, ...] = ()
    dispatch: Callable[..., Convert] | None = None
    """Take a table and the reader of the state, or None. Return the function that finds converters in it.

    None if `convert` suits every array of the type.
    """


def state_reader(source: Backend, target: Backend, options: Options) -> ReadState | None:
    """Return a function that reads the state that plans depend on, such as torch's default dtype.

    Return None if plans cannot be cached: a backend does not report its state, or a compiler is tracing.
    """
    if options.compiled or target.is_tracing():
        return None
    backends = [backend for backend in (source, target) if backend.name != HOST] or [get(HOST)]
    states = list(dict.fromkeys(backend.fast.plan_state for backend in backends))
    if None in states:
        return None
    if len(states) == 1:
        return states[0]
    return lambda: tuple(state() for state in states)  # type: ignore[misc] # none of them is None


def cache_plan(version: int, x: Array, plan: Plan, read_state: ReadState, state: object) -> None:
    """Cache the plan of an array for others with its key.

    `version` is that of the cache before planning, and `state` the state then. A plan is not cached if one of
    them has changed since.
    """
    source, target, info, options, _, device = plan.conversion
    call = cache_key(options, target.name, type(x))
    if call is None or type(x) not in source.fast.types or info.dtype not in DTYPES:
        return
    step: CachedStep | None = None
    if {info.device, device} != {CPU}:
        step = _find_mover(plan)
    elif not (options.copy is False and plan.copies):  # of an empty array; others are refused
        step = _find_within(source, x, plan) if source is target else _find_between(x, plan)
    if step is None or read_state() != state:
        return
    if step.dispatch is None:
        store(call, version, step.convert)
    elif target.name == HOST:  # what becomes of host arrays depends on no state: a call less each time
        key = step.key[0] if step.key else None
        store_by_key(call, version, step.convert, key, partial(step.dispatch, read_state=None))
    else:
        dispatch = partial(step.dispatch, read_state=read_state)
        store_by_key(call, version, step.convert, (*step.key, state), dispatch)


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


def is_global(cls: type) -> bool:
    """Return True if a module keeps the class, as the cache does. One of a function may keep its object."""
    return getattr(sys.modules.get(cls.__module__), cls.__name__, None) is cls


def importer(target: Backend, options: Options) -> Convert:
    """Return the function that imports scalars or exporters as host arrays, and declines what it cannot."""
    named = options.dtype if options.dtype in DTYPES else None

    def import_or_decline(x: object) -> HostArray | None:
        try:
            return import_array(x, must_share=False, fetch=target.host_only, dtype=named)
        except _FAILURES:
            return None

    return import_or_decline


def _find_mover(plan: Plan) -> CachedStep | None:
    """Return how to move arrays to or from a device; None if the plan does more than a move."""
    source, target, _, options, _, _ = plan.conversion
    ops = [step.op for step in plan.steps]
    move: Convert | None = None
    if options._replace(device=None) != Options():
        return None
    if target.name == HOST and options.device is None and ops[:2] == ["to_device", "to_numpy"]:
        move = source.transfers.fast_from_device
    elif source.name == HOST and options.device is not None:
        moves = [op for op in ops if op != "copy"] == ["to_numpy", "from_numpy", "to_device"]
        move = target.transfers.fast_to_device(str(options.device)) if moves else None
    return move and CachedStep(move)


def _find_within(backend: Backend, x: Array, plan: Plan) -> CachedStep | None:
    """Return how to repeat a plan within one library; None if its backend returns no key."""
    options, plan_key = plan.conversion.options, backend.fast.plan_key
    key_of: KeyOf | None = plan_key
    if backend.name == HOST:
        key_of = _flags_and_dtype_of if options.writable is not None else _dtype_of  # no other option asks it
    elif plan_key and (options.grad or options.requires_grad):
        key_of = partial(plan_key, graph=True)
    key = key_of(x) if key_of else None
    if key_of is None or key is None:
        return None
    calls = [
        _host.caster(x.dtype, *step.args)
        if step.op == "astype" and backend.name == HOST and type(x) in backend.array_types
        else _bind(getattr(step.module, step.op), step.args)
        for step in plan.steps
    ]
    return CachedStep(_chain(calls), (key,), partial(_dispatch_on_key, key_of, failures=_FAILURES))


def _find_between(x: Array, plan: Plan) -> CachedStep | None:
    """Return how to repeat a plan between two libraries; None if it depends on more than a key."""
    source, target, options = plan.conversion.source, plan.conversion.target, plan.conversion.options
    if source.autograd and (options.grad == "keep" or options.requires_grad):
        return None  # a plan refuses an array with a graph, which its view does not show
    key_of_pending = source.fast.plan_key and partial(source.fast.plan_key, graph=True)
    view_of, finish = source.fast.to_numpy, _ON_ANY_VIEW.get(options._replace(device=None, grad=None))
    if finish is not unchanged and target.name != HOST:
        finish = None
    if finish not in (None, unchanged) and source.fast.copy_to_numpy:
        view_of, finish = source.fast.copy_to_numpy, unchanged
    elif finish:  # callers try the conversion without options first, if there really are none
        view_of = decline if options == Options() else lookup_direct(target.name, type(x))
    dispatch: Callable[..., Convert] = partial(_dispatch_on_view, view_of, finish, key_of_pending)
    key: tuple[object, ...] = ()
    convert: Convert | None
    host = source.fast.to_numpy(x)
    if host is None:
        key = (key_of_pending(x) if key_of_pending else None,)
        convert = None if key == (None,) else _compile_pending(plan)
    elif finish:
        convert = compose(view_of, finish)
        if not key_of_pending:
            return CachedStep(convert)
    elif host is x:  # NumPy's arrays are their own views
        key_of = _flags_and_dtype_of
        convert = _compile_view(host, plan)
        if options._replace(device=None) == Options(requires_grad=True):
            # `fast_from_numpy` takes any host array, and copies what cannot be shared.
            key_of = _dtype_of
            require_grad = target.fast.outside_modes(_decline_on_error(target.require_grad))
            convert = compose(target.fast.from_numpy, require_grad)
        key, dispatch = (key_of(host),), partial(_dispatch_on_key, key_of)
    else:
        # A plan depends on no more of a view, because `_suit_any_view` lets no other plan be cached.
        key, convert = (_flags_and_dtype_of(host),), _compile_view(host, plan)
    return convert and CachedStep(convert, key, dispatch)


def _compile_pending(plan: Plan) -> Convert | None:
    """Compile a plan for arrays on which an operation is pending; return None if it cannot be repeated.

    Such a plan applies to any strides, because the pending operation makes new memory.
    """
    ops, conversion = [step.op for step in plan.steps], plan.conversion
    if "materialize" not in ops:
        return None
    at = ops.index("to_numpy") + 1
    own = [_decline_on_error(_bind(getattr(step.module, step.op), step.args)) for step in plan.steps[:at]]
    own[ops.index("materialize")] = _decline_on_error(partial(_materialize_pending, conversion.source))
    finish = _compile_on_host(plan.steps[at:], conversion.target, native_dtype(conversion.info.dtype))
    return None if finish is None else _chain([*own, *finish])


def _materialize_pending(backend: Backend, x: Array) -> Array | None:
    """Apply the operation that is pending on an array; decline one that has none, or that a plan refuses."""
    if backend.unsupported(x, leaving=True):
        return None
    y = backend.materialize(x)
    return None if y is x else y


def _compile_view(host: HostArray, plan: Plan) -> Convert | None:
    """Compile a plan for views that `fast_to_numpy` returns; None if it depends on more than their key."""
    source, target = plan.conversion.source, plan.conversion.target
    if are_both_immutable(source, target):
        return None
    at = [step.op for step in plan.steps].index("to_numpy")
    # `fast_to_numpy` detaches the array, and its view is read-only if it has to be.
    first = [step for step in plan.steps[:at] if step.op != "detach"]
    shown = plan.conversion.options.writable is not False
    rest = [step for step in plan.steps[at + 1 :] if step.op != "as_readonly" or not shown]
    steps = [*first, *rest]
    if (first and source.name != HOST) or not _suit_any_view(steps, host, plan):
        return None
    calls = _compile_on_host(steps, target, host.dtype, like=host)
    return None if calls is None else _chain(calls)


def _suit_any_view(steps: Sequence[Step], host: HostArray, plan: Plan) -> bool:
    """Return True if the steps are right for any host array of the same dtype and flags."""
    options, copying = plan.conversion.options, next((step for step in steps if step.copy_reason), None)
    if copying is None or copying.module is plan.conversion.target:
        # `fast_from_numpy` itself copies what cannot be shared. With `copy=False` it is used only if the
        # flags alone decide that, as they do for a dense array.
        return host.flags.forc or options.copy is not False
    if copying.op in ("astype", "to_device", "materialize"):  # these make new memory of any strides
        return True
    if copying.copy_reason and copying.copy_reason.kind in _BY_FLAGS:
        return True
    if options.copy is True and all(step.op != "astype" for step in steps):
        return True
    # The flags of a dense array tell its strides, except those of axes of one item, which may be anything.
    return host.flags.forc and all(n > 1 for n in host.shape)


def _compile_on_host(
    steps: Sequence[Step], target: Backend, dtype: Any, like: HostArray | None = None
) -> list[Convert] | None:
    """Return the functions of the steps that follow `to_numpy`.

    `from_numpy` is replaced by `fast_from_numpy`, which also checks the view. A trial with two items finds
    out if the target accepts the dtype. Return None if it does not. With `like`, all views have its flags.
    """
    calls: list[Convert] = []
    last: Step | None = None
    for step in steps:
        if step.op == "from_numpy" and target.name == HOST:
            continue
        fn = _bind(getattr(step.module, step.op), step.args)
        if step.op == "from_numpy" and not target.assumes_immutable:
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
    trial = _host.ones(dtype)
    if _chain(calls)(trial) is None:
        return None
    copied = any(map(_is_dense_copy, steps[-2:-1]))
    if target.fast.from_fresh and copied and calls[-1] is target.fast.from_numpy:
        shorter = [*calls[:-1], target.fast.from_fresh]
        return calls if _chain(shorter)(trial) is None else shorter
    return calls


def _is_dense_copy(step: Step) -> bool:
    """Return True for a copy or cast on the host whose result is a new array without gaps."""
    return step.module is _host and (step.op, len(step.args)) in (("copy", 0), ("astype", 1))


# -- by the key of an array --------------------------------------------------------------------------


def _dispatch_on_view(
    view_of: Convert,
    finish: Convert | None,
    key_of_pending: KeyOf | None,
    table: Table,
    read_state: ReadState | None,
) -> Convert:
    """Return the function that finds the conversion by the host's view of an array, or by what is pending.

    An array has no view if an operation is pending on it. `finish` completes the conversion of any view, if
    the options need no more.
    """
    others = _dispatch_on_key(key_of_pending, table, read_state) if key_of_pending else decline
    return compose(view_of, finish or _dispatch_on_key(_flags_and_dtype_of, table, read_state), others)


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


# -- composition of functions ------------------------------------------------------------------------


def _chain(calls: list[Convert]) -> Convert:
    """Return one function that makes all calls in order, and declines as soon as one declines."""
    return reduce(compose, calls) if calls else unchanged


def compose(first: Convert, finish: Convert, other: Convert = decline) -> Convert:
    """Return the function that calls `first`, then `finish`, or `other` if `first` declines."""
    if finish is unchanged:
        return first if other is decline else try_in_order(first, other)

    def convert_in_turn(x: Any) -> Any:
        y = first(x)
        return other(x) if y is None else finish(y)

    return convert_in_turn


def _decline_on_error(fn: Convert) -> Convert:
    """Return the function of a step, which declines if the library raises."""

    def call_or_decline(x: Any) -> Any:
        try:
            return fn(x)
        except FOREIGN_ERRORS:
            return None

    return call_or_decline


def _bind(fn: Callable[..., Any], args: tuple[object, ...]) -> Convert:
    """Return the function of a step, which takes no more than an array."""
    return (lambda x: fn(x, *args)) if args else fn
