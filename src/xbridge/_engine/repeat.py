"""Repeat a call without planning it: compile the plan for one array into a function for others of its kind.

The kind of an array is everything about it that its plan depends on. Between libraries, this is the dtype
and the flags of the view that `fast_to_numpy` returns. Within a library, or while an operation is pending on
the array, the backend names the kind. The rest of what a plan depends on is either in the key of the cached
call (the options) or read again in each call (the state of the backends, such as torch's default dtype).

A compiled function returns None to decline: for an array of a kind that was not planned yet, for an array
that `fast_to_numpy` or `fast_from_numpy` does not convert, and if a step fails. The caller then plans the
call, and an error comes from that plan, with its explanation.

The functions are closures that call each other, because a loop over the steps takes 1.6 times as long.
"""

from __future__ import annotations

from functools import partial, reduce
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from xbridge import _host
from xbridge._core.devices import CPU
from xbridge._core.dtypes import DTYPES
from xbridge._core.literals import NUMBERS
from xbridge._core.tracing import none_in_traces
from xbridge._host.importers import import_array
from xbridge._host.memory import native_dtype
from xbridge._plan.options import CallOptions
from xbridge._plan.reuse import suit_any_view
from xbridge._plan.steps import Options, Step
from xbridge._registry.call_cache import (
    CallKey,
    are_both_immutable,
    cache_version,
    cached,
    decline,
    lookup_direct,
    record,
    try_in_order,
    unchanged,
)
from xbridge._registry.registry import are_arrays, backend_for, get
from xbridge.backends import HOST
from xbridge.errors import FOREIGN_ERRORS, XBridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    import numpy as np

    from xbridge._core.protocol import Array, Backend, HostArray
    from xbridge._engine.source import Source
    from xbridge._plan.steps import Plan

    Convert = Callable[[Any], Any]
    Look = Callable[[Any], object]
    Kinds = dict[object, Convert]
    State = Callable[[], object]

MAX_SMALL_TREE = 16
"""The most leaves and containers of a small tree. In a larger one, converting arrays together is faster."""

_CONTAINERS = (dict, list, tuple)
_LITERALS = (str, bytes, *NUMBERS, type(None))
_NOT_ARRAYS = frozenset((*_CONTAINERS, *_LITERALS))

_dtype_of = attrgetter("dtype")
_flags_and_dtype_of = attrgetter("flags.num", "dtype")
"""Return all flags of a host array in one integer, and its dtype. No backend's kind begins with a number."""

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


class Recorder(NamedTuple):
    """What is needed to cache a conversion: the options of the call, and the cache version when it began."""

    options: CallOptions
    version: int


# -- one array -------------------------------------------------------------------------------------


def state_reader(source: Backend, target: Backend, options: Options) -> State | None:
    """Return a function that reads the state that plans depend on, such as torch's default dtype.

    Return None if plans cannot be cached: a backend does not report its state, or a compiler is tracing.
    """
    if options.compiled or target.is_tracing():
        return None
    backends = [backend for backend in (source, target) if backend.name != HOST] or [get(HOST)]
    states = list(dict.fromkeys(backend.plan_state for backend in backends))
    if None in states:
        return None
    if len(states) == 1:
        return states[0]
    return lambda: tuple(state() for state in states)  # type: ignore[misc] # none of them is None


def record_plan(recorder: Recorder, x: Array, plan: Plan, state: State, before: object) -> None:
    """Cache the plan of an array for others of its kind.

    `before` is the state before planning. A plan is not cached if the state has changed since.
    """
    source, target, info, options, _, device = plan.conversion
    if type(x) not in source.fast_types or info.dtype not in DTYPES or not recorder.options.are_constant():
        return
    found: _Repetition | None = None
    if {info.device, device} != {CPU}:
        found = _find_mover(recorder.options, plan)
    elif source is target and options == Options(CPU) and not plan.steps:
        found = _Repetition(_stay_on_host(source))
    elif not (options.copy is False and plan.copies):  # of an empty array; others are refused
        found = _find_within(source, x, plan) if source is target else _find_between(x, plan)
    if found is None or state() != before:
        return
    kind: object = (*found.kind, before)
    read: State | None = state
    if target.name == HOST:  # what becomes of host arrays depends on no state: a call less each time
        kind, read = found.kind and found.kind[0], None
    choose = found.choose and partial(found.choose, state=read)
    key = recorder.options.key("convert", target.name, type(x))
    record(key, recorder.version, found.convert, kind, choose)


def _find_mover(options: CallOptions, plan: Plan) -> _Repetition | None:
    """Return how to move arrays to or from a device; None if the plan does more than a move."""
    source, target, ops = plan.conversion.source, plan.conversion.target, [step.op for step in plan.steps]
    move: Convert | None = None
    if not options._replace(device=None).are_plain():
        return None
    if target.name == HOST and options.device is None and ops[:2] == ["to_device", "to_numpy"]:
        move = source.transfers.fast_from_device
    elif source.name == HOST and options.device is not None:
        moves = [op for op in ops if op != "copy"] == ["to_numpy", "from_numpy", "to_device"]
        move = target.transfers.fast_to_device(options.device) if moves else None
    return move and _Repetition(move)


def record_scalar(recorder: Recorder, name: str, cls: type) -> None:
    """Cache the conversion of a scalar, which becomes a host array first.

    The conversion of that array must have been cached already.
    """
    convert = recorder.options.find_converter(name, get(HOST).array_types[0])
    if convert is not decline and recorder.options.copy is not False:
        read = partial(import_array, must_share=False, fetch=False)
        record(recorder.options.key("convert", name, cls), recorder.version, compose(read, convert))


class _Repetition(NamedTuple):
    """How to repeat a plan: by which function, for which kind of arrays, and how to find the kind."""

    convert: Convert
    kind: tuple[object, ...] = ()
    choose: Callable[..., Convert] | None = None
    """Take the table of kinds and the state reader; return the function that looks up the kind of an array
    and converts it. None if `convert` suits every kind."""


def _find_within(backend: Backend, x: Array, plan: Plan) -> _Repetition | None:
    """Return how to repeat a plan within one library; None if its backend does not name the array's kind."""
    options, plan_key = plan.conversion.options, backend.plan_key
    look: Look | None = plan_key
    if backend.name == HOST:
        look = _dtype_of if options.ignore_layout() else _flags_and_dtype_of
    elif plan_key and (options.grad or options.requires_grad):
        look = partial(plan_key, graph=True)
    kind = look(x) if look else None
    if look is None or kind is None:
        return None
    calls = [
        _host.caster(x.dtype, *step.args)
        if backend.name == HOST and step.op == "astype"
        else _bind(getattr(step.module, step.op), step.args)
        for step in plan.steps
    ]
    return _Repetition(_chain(calls), (kind,), partial(_dispatch_on_kind, look, failures=_FAILURES))


def _find_between(x: Array, plan: Plan) -> _Repetition | None:
    """Return how the kind of an array gets to another library; None if the way depends on more."""
    source, target, options = plan.conversion.source, plan.conversion.target, plan.conversion.options
    if source.autograd and (options.grad == "keep" or options.requires_grad):
        return None  # a plan refuses an array with a graph, which its view does not show
    pending = source.plan_key and partial(source.plan_key, graph=True)
    host = source.fast_to_numpy(x)
    look, then = source.fast_to_numpy, _ON_ANY_VIEW.get(options._replace(device=None, grad=None))
    if then is not unchanged and target.name != HOST:
        then = None
    if then not in (None, unchanged) and source.fast_copy_to_numpy:
        look, then = source.fast_copy_to_numpy, unchanged
    elif then:  # callers try the conversion without options first, if there really are none
        look = decline if options == Options() else lookup_direct(target.name, type(x))
    choose: Callable[..., Convert] = partial(_dispatch_on_view, look, then, pending)
    kind: tuple[object, ...] = ()
    convert: Convert | None
    if host is None:
        kind = (pending(x) if pending else None,)
        convert = None if kind == (None,) else _compile_pending(plan)
    elif then:
        convert = compose(look, then)
        if not pending:
            return _Repetition(convert)
    elif source.name == HOST and options._replace(device=None) == Options(requires_grad=True):
        # `fast_from_numpy` takes any host array, and copies what cannot be shared.
        kind, choose = (host.dtype,), partial(_dispatch_on_kind, _dtype_of)
        convert = compose(target.fast_from_numpy, _decline_on_error(target.require_grad))
    else:
        # A plan depends on no more of a view, because `suit_any_view` lets no other plan be cached.
        kind, convert = (_flags_and_dtype_of(host),), _compile_view(host, plan)
        if source.name == HOST:  # its arrays are their own views
            choose = partial(_dispatch_on_kind, _flags_and_dtype_of)
    return convert and _Repetition(convert, kind, choose)


def _compile_pending(plan: Plan) -> Convert | None:
    """Compile a plan for arrays on which an operation is pending; return None if it cannot be repeated.

    Such a plan applies to any strides, because the pending operation makes new memory.
    """
    ops, source = [step.op for step in plan.steps], plan.conversion.source
    if "materialize" not in ops:
        return None
    at = ops.index("to_numpy") + 1
    own = [_decline_on_error(_bind(getattr(step.module, step.op), step.args)) for step in plan.steps[:at]]
    own[ops.index("materialize")] = _decline_on_error(partial(_materialize_pending, source))
    then = _compile_on_host(plan.steps[at:], plan.conversion.target, native_dtype(plan.conversion.info.dtype))
    return None if then is None else _chain([*own, *then])


def _materialize_pending(backend: Backend, x: Array) -> Array | None:
    """Apply the operation that is pending on an array; decline one that has none, or that a plan refuses."""
    if backend.unsupported(x, leaving=True):
        return None
    y = backend.materialize(x)
    return None if y is x else y


def _compile_view(host: HostArray, plan: Plan) -> Convert | None:
    """Compile a plan for views that `fast_to_numpy` returns; None if it depends on more than their kind."""
    source, target = plan.conversion.source, plan.conversion.target
    if are_both_immutable(source, target):
        return None
    at = [step.op for step in plan.steps].index("to_numpy")
    # `fast_to_numpy` detaches the array, and its view is read-only if it has to be.
    first = [step for step in plan.steps[:at] if step.op != "detach"]
    shown = plan.conversion.options.writable is not False
    then = [step for step in plan.steps[at + 1 :] if step.op != "as_readonly" or not shown]
    steps = [*first, *then]
    if (first and source.name != HOST) or not suit_any_view(steps, host, plan):
        return None
    calls = _compile_on_host(steps, target, host.dtype, like=host)
    return None if calls is None else _chain(calls)


def _compile_on_host(
    steps: Sequence[Step], target: Backend, dtype: np.dtype[Any], like: HostArray | None = None
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
            fn = target.fast_from_numpy
        elif step.module is target:
            fn = _decline_on_error(fn)
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
    if target.fast_from_fresh and copied and calls[-1] is target.fast_from_numpy:
        shorter = [*calls[:-1], target.fast_from_fresh]
        return calls if _chain(shorter)(trial) is None else shorter
    return calls


def _is_dense_copy(step: Step) -> bool:
    """Return True for a copy or cast on the host whose result is a new array without gaps."""
    return step.module is _host and (step.op, len(step.args)) in (("copy", 0), ("astype", 1))


# -- by the kind of an array -------------------------------------------------------------------------


def _stay_on_host(backend: Backend) -> Convert:
    """Return the function that returns arrays on the host as they are, and declines others.

    If a device is all that is asked for, nothing else about an array of the library matters.
    """
    device_of = backend.device_of

    def convert(x: Array) -> Array | None:
        device = device_of(x)
        return x if device is CPU or device == CPU else None

    return convert


def _dispatch_on_view(
    look: Convert, then: Convert | None, pending: Convert | None, kinds: Kinds, state: State | None
) -> Convert:
    """Return the function that finds the conversion by the host's view of an array, or by what is pending.

    `look` makes the view. An array has none if an operation is pending on it, and `pending` names the kind of
    such an array. `then` completes the conversion of any view, if the options need no more.
    """
    others = _dispatch_on_kind(pending, kinds, state) if pending else decline
    return compose(look, then or _dispatch_on_kind(_flags_and_dtype_of, kinds, state), others)


def _dispatch_on_kind(
    look: Look, kinds: Kinds, state: State | None, failures: tuple[type[Exception], ...] = (XBridgeError,)
) -> Convert:
    """Return the function that finds the conversion by the kind that `look` names, and by any state."""
    find = kinds.get

    def convert_by_key(x: Array) -> Array | None:
        known = find(look(x))
        try:
            return None if known is None else known(x)
        except failures:  # a value would be lost, or the memory was freed: the plan fails too, and says why
            return None

    def convert_by_key_and_state(x: Array) -> Array | None:
        known = find((look(x), state()))  # type: ignore[misc] # it is not None here
        try:
            return None if known is None else known(x)
        except failures:
            return None

    return convert_by_key_and_state if state else convert_by_key


# -- composition of functions ------------------------------------------------------------------------


def _chain(calls: list[Convert]) -> Convert:
    """Return one function that makes all calls in order, and declines as soon as one declines."""
    return reduce(compose, calls) if calls else unchanged


def compose(first: Convert, then: Convert, other: Convert = decline) -> Convert:
    """Return the function that calls `first`, then `then` with its result, or `other` if `first` declines."""
    if then is unchanged:
        return first if other is decline else try_in_order(first, other)

    def convert(x: Any) -> Any:
        y = first(x)
        return other(x) if y is None else then(y)

    return convert


def _decline_on_error(fn: Convert) -> Convert:
    """Return the function of a step, which declines if the library raises."""

    def convert(x: Any) -> Any:
        try:
            return fn(x)
        except FOREIGN_ERRORS:
            return None

    return convert


def _bind(fn: Callable[..., Any], args: tuple[object, ...]) -> Convert:
    """Return the function of a step, which takes no more than an array."""
    return (lambda x: fn(x, *args)) if args else fn


def convert_each(converters: Sequence[Convert | None]) -> Callable[[Sequence[Any]], list[Any] | None]:
    """Return a function that converts item i of a sequence by converter i, or leaves it if that is None.

    The function declines as soon as one of the converters does.
    """
    chosen = [(i, one) for i, one in enumerate(converters) if one not in (None, unchanged)]

    def convert(xs: Sequence[Any]) -> list[Any] | None:
        made = list(xs)
        for i, one in chosen:
            y = one(made[i])
            if y is None:
                return None
            made[i] = y
        return made

    return convert


# -- calls whose arguments decide the target ---------------------------------------------------------


def with_like(convert: Convert, near: Source | None) -> Callable[[Any, Array], Array | None]:
    """Return the cached call of `asarray` with `like`. This is `near` if the call took the device from it."""
    look = near and near.backend.device_of

    def convert_like(obj: Any, like: Array) -> Array | None:
        device = look(like) if look else CPU
        return convert(obj) if device is CPU or device == CPU else None

    return convert_like


def record_align(
    key: CallKey, recorder: Recorder, name: str, sources: list[Source], near: Source | None, *, free: bool
) -> None:
    """Cache a call of `align` for arguments of these types.

    The call took the device from `near`, which is an argument or `like`. With `free`, the arguments decided
    the target too. Then the cached call declines if an array of another library is followed by autograd or
    by a transform, because that array would decide.
    """
    converters = [
        None if source.is_number() else recorder.options.find_converter(name, type(source.array))
        for source in sources
    ]
    if decline in converters:
        return
    look = near and near.backend.device_of
    at = sources.index(near) if near in sources else None
    stays = recorder.options._replace(device=None).are_plain()
    if near and at is not None and near.backend.name == name and stays:
        converters[at] = unchanged  # whether it is on the host is asked below
    others = [(i, x.backend.follows) for i, x in enumerate(sources) if free and x.backend.name != name]
    could_decide = [(i, follows) for i, follows in others if follows]
    convert = convert_each(converters)

    def aligned(xs: Sequence[Array], like: Array) -> tuple[Array, ...] | None:
        for i, follows in could_decide:
            if follows(xs[i]):
                return None
        if look:
            device = look(like if at is None else xs[at])
            if device is not CPU and device != CPU:
                return None
        made = convert(xs)
        return None if made is None else tuple(made)

    record(key, recorder.version, aligned)


# -- small trees -------------------------------------------------------------------------------------


@none_in_traces
def record_tree(name: str | ModuleType, options: CallOptions, *, scalars: bool) -> None:
    """Cache a call that succeeded for one tree, for all small trees of dicts, lists and tuples.

    In such a tree the walk of `flatten`, which supports any container, takes longer than the conversions.
    """
    version, key = cache_version(), options.key("tree", name, NUMBERS if scalars else ())
    if options.are_constant(name) and key not in cached:
        record(key, version, _tree_converter(get(name).name, options, scalars=scalars))


class _LeafConverters(dict[type, "Convert | None"]):
    """The converter for the leaves of each type, found at first use; None for containers."""

    def __init__(self, find: Callable[[type], Convert]) -> None:
        super().__init__(dict.fromkeys(_CONTAINERS))
        self._find = find

    def __missing__(self, cls: type) -> Convert:
        found = self._find(cls)
        if found is not decline:  # a later call may have cached a conversion
            self[cls] = found
        return found


def _tree_converter(name: str, options: CallOptions, *, scalars: bool) -> Convert:
    """Return the function that converts small trees, or declines. It looks up a converter by type of leaf."""
    converters = _LeafConverters(partial(_leaf_converter, name, options=options, scalars=scalars))

    def convert(tree: Any, above: dict[int, tuple[Any, Any]] | None = None) -> Any:
        """Convert a tree. `above` has the containers and converted leaves before it, with their results."""
        cls = type(tree)
        made: Any
        if cls is dict or cls is list:
            made = tree.copy()  # another thread may change the tree meanwhile
        elif cls is tuple:
            made = list(tree)
        elif cls in _NOT_ARRAYS:
            return None
        else:  # the whole tree is one array
            made = [tree]
        seen = {} if above is None else above  # by identity, which nothing else gets while it is here
        if len(made) + len(seen) > MAX_SMALL_TREE:
            return None
        for at, x in made.items() if cls is dict else enumerate(made):
            one = converters[type(x)]
            if one is unchanged:
                continue
            key = id(x)
            if key in seen and type(x) not in NUMBERS:
                y = seen[key][1]  # of a repeated array; None for a container, which may contain itself
            elif one:
                y = one(x)
                seen[key] = x, y
            else:
                seen[key] = x, None
                y = convert(x, seen)
            if y is None:
                if one:
                    converters.pop(type(x), None)  # the plan that follows may cache a better one
                return None
            made[at] = y
        if cls is tuple:
            return tuple(made)
        return made if cls in _CONTAINERS else made[0]

    return convert


def _leaf_converter(name: str, cls: type, options: CallOptions, *, scalars: bool) -> Convert:
    """Return the function that converts leaves of a type, or one that declines."""
    if cls in NUMBERS and scalars:
        known = options._replace(writable=None).lookup("asarray", name, cls, type(None))
        return compose(known, _host.as_readonly) if options.writable is False else known
    if cls in _LITERALS:
        return unchanged
    if not are_arrays(cls) or str(options.device).partition(":")[0] not in ("None", CPU):
        return decline  # arrays are moved to a device together, by a plan for all of them
    source = backend_for(cls)
    if name == HOST and options.are_plain() and source and source.transfers.has_packs:
        return lookup_direct(name, cls)  # arrays on a device are fetched together, so no single move here
    return options.find_converter(name, cls)
