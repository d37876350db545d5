"""Repeat a call: turn what was planned for one array into a function for others of its kind.

The kind of an array is everything that its plan depends on. Between libraries, that is the dtype and the
flags of the view that `fast_to_numpy` returns. Within a library, or if an operation is pending, the backend
names it. The options are in the key of the call, and the state of the backends is asked for in each call.
A step of the plan may fail for another array, or in a state that only this step depends on. Then the function
declines, and the plan that follows says so in its own words.

`fast_to_numpy` and `fast_from_numpy` make all checks of the fast path in each call, and return None for an
array that they do not convert. Then the function declines too, as it does for an array of an unknown kind.

The functions are closures that call each other. A loop over the steps would take half as long again.
"""

from __future__ import annotations

from functools import partial, reduce
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from xbridge import _host
from xbridge._core.devices import CPU
from xbridge._core.dtypes import DTYPES
from xbridge._core.dynamo import no_result, traced_as
from xbridge._core.literals import NUMBERS
from xbridge._host.importers import import_array
from xbridge._host.memory import native_dtype
from xbridge._plan.options import CallOptions
from xbridge._plan.reuse import holds_for_others, suit_any_view
from xbridge._plan.steps import Options, Step
from xbridge._registry.call_cache import (
    CallKey,
    cache_version,
    cached,
    decline,
    is_by_address,
    lookup,
    lookup_direct,
    record,
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
    from xbridge._engine.source import Source, TargetChoice
    from xbridge._plan.steps import Plan

    Convert = Callable[[Any], Any]
    Kinds = dict[object, Convert]
    State = Callable[[], object]
    Step_ = tuple[Callable[..., Any], tuple[Any, ...]]

FEW = 16
"""The most leaves and containers of a small tree. To convert more arrays together takes less time."""

_CONTAINERS = (dict, list, tuple)
_LITERALS = (str, bytes, *NUMBERS, type(None))
_NO_ARRAYS = frozenset((*_CONTAINERS, *_LITERALS))

_is_writable = attrgetter("flags.writeable")
"""Only the host makes an array that can be written."""

_FAILURES = (XBridgeError, *FOREIGN_ERRORS)
"""What a step of a plan may raise. An error of `fast_from_numpy` is a fault of a backend, which is shown."""

_COPYING = (_host.copy, _host.astype, _host.astype_checked)
"""Operations whose result is new and dense."""


class Recorder(NamedTuple):
    """How a conversion is cached: the options that its caller gave, and the version when it began."""

    options: CallOptions
    version: int


# -- one array -------------------------------------------------------------------------------------


@traced_as(lambda *_: decline)
def converter(name: str, cls: type, options: CallOptions) -> Convert:
    """Return the function that converts ordinary arrays of a type without a plan, or declines.

    The options were checked.
    """
    key = ("convert", name, cls, None, *options)
    known = lookup(key, options.copy, options.requires_grad, options.writable)
    plain = lookup_direct(name, cls) if options.are_plain() else decline
    if known is decline:
        return plain
    return known if plain is decline else _either(plain, known)


def repeat(name: str, x: Array, options: CallOptions) -> Array | None:
    """Return the result of a call as one before; None if it has to be planned."""
    return converter(name, type(x), options)(x)


def state_of(source: Backend, target: Backend, options: Options) -> State | None:
    """Return a function that reads the state which plans depend on.

    Return None if a plan is not to be cached: a backend does not report its state, or a compiler traces.
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
    """Cache what was planned for an array, for others of its kind. `before` is the state before planning."""
    source, target, info, _, _, device = plan.conversion
    if type(x) not in source.fast_types or info.dtype not in DTYPES or not recorder.options.are_constant():
        return
    if {info.device, device} != {CPU}:
        move = _between_devices(recorder.options, plan)
        if move:
            record(recorder.options.key("convert", target.name, type(x)), recorder.version, move)
        return
    if not holds_for_others(plan):
        return
    found = _within(source, x, plan) if source is target else _between(x, plan)
    if found and state() == before:
        key = recorder.options.key("convert", target.name, type(x))
        kind: object = (*found.kind, before)
        if source is target and source.name == HOST:  # which has no state
            (kind,) = found.kind
            choose = partial(found.choose, state=None)
        else:
            choose = partial(found.choose, state=state)
        record(key, recorder.version, found.convert, kind, choose)


def _between_devices(options: CallOptions, plan: Plan) -> Convert | None:
    """Return the function that moves ordinary arrays to or from a device; None if a plan does more."""
    source, target, ops = plan.conversion.source, plan.conversion.target, [step.op for step in plan.steps]
    if not options._replace(device=None).are_plain():
        return None
    if target.name == HOST and options.device is None and ops[:2] == ["to_device", "to_numpy"]:
        return source.fast_from_device
    if source.name == HOST and options.device is not None and ops == ["to_numpy", "from_numpy", "to_device"]:
        return target.fast_to_device and target.fast_to_device(options.device)
    return None


def record_scalar(recorder: Recorder, name: str, cls: type) -> None:
    """Cache what was recorded for the array of a scalar, for other scalars of its type."""
    convert = converter(name, get(HOST).array_types[0], recorder.options)
    if convert is decline or recorder.options.copy is False:
        return
    read = partial(import_array, must_share=False, fetch=False)
    record(recorder.options.key("convert", name, cls), recorder.version, both(read, convert))


class _Found(NamedTuple):
    """What is done with arrays of a kind, and how their kind is found."""

    kind: tuple[object, ...]
    convert: Convert
    choose: Callable[..., Convert]
    """Return the function that finds the kind of an array in a table, for the table and the state."""


def _within(backend: Backend, x: Array, plan: Plan) -> _Found | None:
    """Return how its own library converts the kind of an array; None if it does not name the kind."""
    look, graph, options = backend.plan_kind, backend.plan_graph, plan.conversion.options
    # A transform runs over arrays without values, which no check can read.
    if backend.autograd and (options.grad or options.requires_grad or plan.checks):
        look = look and graph and _both_kinds(look, graph)
    if options.writable is not None:
        look = look and _both_kinds(look, _is_writable)
    kind = look(x) if look else None
    if look is None or kind is None:
        return None
    steps = [_call_of(step, backend, x) for step in plan.steps]
    return _Found((kind,), _in_turn(steps), partial(_by_kind, look, failures=_FAILURES))


def _call_of(step: Step, backend: Backend, x: Array) -> Step_:
    """Return the function of a step within a library, with its arguments."""
    if backend.name == HOST and step.op == "astype":
        return _host.caster(x.dtype, *step.args), ()
    return getattr(step.module, step.op), step.args


def _between(x: Array, plan: Plan) -> _Found | None:
    """Return how the kind of an array gets to another library; None if the way depends on more."""
    source, options = plan.conversion.source, plan.conversion.options
    plain, pending, host = _without_changes(type(x), plan), source.plan_pending, source.fast_to_numpy(x)
    look = None if source.name == HOST else source.fast_to_numpy
    shares = options == Options(writable=True)
    choose: Callable[..., Convert] = partial(_by_view, look, plain, pending, shares)
    kind: tuple[object, ...]
    convert: Convert | None
    if host is None:
        kind = (pending(x) if pending else None,)
        convert = None if kind == (None,) else _from_pending(plan)
    elif plain:
        kind, convert = (), plain
    else:
        kind, convert = (host.dtype, host.flags.num), _from_view(host, plan)
    if source.autograd and (options.grad == "keep" or options.requires_grad):
        if source.plan_graph is None:
            return None
        choose = partial(_without_graph, source.plan_graph, choose)
    return _Found(kind, convert, choose) if convert else None


def _without_changes(cls: type, plan: Plan) -> Convert | None:
    """Return the function that converts arrays of a type if the options change nothing, else None."""
    target, options = plan.conversion.target, plan.conversion.options
    if options._replace(device=None, grad=None) != Options() or options.grad == "keep":
        return None
    if options == Options():
        return decline  # the caller has tried it
    return lookup_direct(target.name, cls)


def _from_pending(plan: Plan) -> Convert | None:
    """Return what a plan does with an array on which an operation is pending; None if the target declines it.

    That operation makes new memory, so its strides do not matter.
    """
    at = [step.op for step in plan.steps].index("to_numpy") + 1
    own = [(_declining(getattr(step.module, step.op)), step.args) for step in plan.steps[:at]]
    then = _on_host(plan.steps[at:], plan.conversion.target, native_dtype(plan.conversion.info.dtype))
    return None if then is None else _in_turn([*own, *then])


def _from_view(host: HostArray, plan: Plan) -> Convert | None:
    """Return what a plan does with the view that `fast_to_numpy` returns; None if it depends on more."""
    source, target = plan.conversion.source, plan.conversion.target
    if is_by_address(source, target):
        return None
    at = [step.op for step in plan.steps].index("to_numpy")
    # `fast_to_numpy` detaches the array, and its view is read-only if it has to be.
    first = [step for step in plan.steps[:at] if step.op != "detach"]
    shown = plan.conversion.options.writable is not False
    then = [step for step in plan.steps[at + 1 :] if step.op != "as_readonly" or not shown]
    if first and source.name != HOST:
        return None
    steps = [*first, *then]
    if not suit_any_view(steps, host, plan):
        return None
    calls = _on_host(steps, target, host.dtype)
    return None if calls is None else _in_turn(calls)


def _on_host(steps: Sequence[Step], target: Backend, dtype: np.dtype[Any]) -> list[Step_] | None:
    """Return the functions of the steps with their arguments. The fast path makes the target's array.

    Return None if the target would decline each array of the dtype after it was copied.
    """
    calls: list[Step_] = []
    for step in steps:
        if step.op == "from_numpy":
            if target.name != HOST:
                take = _declining(target.from_numpy) if target.assumes_immutable else target.fast_from_numpy
                calls.append((take, ()))
        elif step == Step(_host, "astype", step.args[:1], step.copy_reason) and calls[-1:] == [
            (_host.check_cast, step.args)
        ]:
            calls[-1] = (_host.astype_checked, step.args)
        else:
            fn = getattr(step.module, step.op)
            calls.append((_declining(fn) if step.module is target else fn, step.args))
    trial = _host.ones(dtype)
    if _in_turn(calls)(trial) is None:
        return None
    made_by = [fn for fn, _ in calls[-2:]]
    if target.fast_from_fresh and made_by in [[fn, target.fast_from_numpy] for fn in _COPYING]:
        shorter = [*calls[:-1], (target.fast_from_fresh, ())]
        return calls if _in_turn(shorter)(trial) is None else shorter
    return calls


# -- by the kind of an array -------------------------------------------------------------------------


def _both_kinds(
    look: Callable[[Array], object], other: Callable[[Array], object]
) -> Callable[[Array], object]:
    """Return a function that returns two facts of an array; None if one of them is not known."""

    def both_kinds(x: Array) -> object:
        one, two = look(x), other(x)
        return None if one is None or two is None else (one, two)

    return both_kinds


def _by_view(
    look: Convert | None,
    plain: Convert | None,
    pending: Convert | None,
    shares: bool,  # noqa: FBT001 -- `partial` gives it by position
    kinds: Kinds,
    state: State,
) -> Convert:
    """Return the function that finds what to do by the view of the host, or by what is pending.

    An array of the host's own library is its own view. With `shares`, a view that can be written is the
    result.
    """
    find = kinds.get
    others = _by_kind(pending, kinds, state) if pending else decline
    if plain:
        return _either(plain, others) if pending else plain

    def convert(x: Array) -> Array | None:
        host = look(x) if look else x
        if host is None:
            return others(x)
        flags = host.flags
        if shares and flags.writeable:
            return host
        known = find((host.dtype, flags.num, state()))
        try:
            y = None if known is None else known(host)
        except XBridgeError:  # a value is lost: the plan says so in words about this array
            y = None
        return others(x) if y is None else y

    return convert


def _without_graph(
    graph: Callable[[Array], tuple[bool, ...] | None],
    choose: Callable[[Kinds, State], Convert],
    kinds: Kinds,
    state: State,
) -> Convert:
    """Return what `choose` returns, for arrays without a graph: a plan refuses the others.

    A view does not show the graph. It is read-only for an array with a graph, but for others too.
    """
    convert = choose(kinds, state)

    def without_graph(x: Array) -> Array | None:
        facts = graph(x)
        return None if facts is None or facts[0] else convert(x)

    return without_graph


def _by_kind(
    look: Callable[[Array], object],
    kinds: Kinds,
    state: State | None,
    failures: tuple[type[Exception], ...] = (XBridgeError,),
) -> Convert:
    """Return the function that finds what to do by the kind that the backend names, and its state if any."""
    find = kinds.get

    def convert(x: Array) -> Array | None:
        known = find((look(x), state()) if state else look(x))
        try:
            return None if known is None else known(x)
        except failures:  # a value is lost, or the memory was freed: the plan says so in its own words
            return None

    return convert


# -- one function of several -------------------------------------------------------------------------


def _in_turn(steps: list[Step_]) -> Convert:
    """Return one function that does all steps; None as soon as one returns None."""
    return reduce(both, [_bound(fn, args) if args else fn for fn, args in steps]) if steps else unchanged


def _either(first: Convert, other: Convert) -> Convert:
    def convert(x: Any) -> Any:
        y = first(x)
        return other(x) if y is None else y

    return convert


def both(first: Convert, then: Convert) -> Convert:
    """Return the function that does one thing after the other; None as soon as one returns None."""

    def convert(x: Any) -> Any:
        y = first(x)
        return None if y is None else then(y)

    return convert


def _declining(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a step that declines where the library fails."""

    def step(*args: Any) -> Any:
        try:
            return fn(*args)
        except FOREIGN_ERRORS:
            return None

    return step


def _bound(fn: Callable[..., Any], args: tuple[Any, ...]) -> Convert:
    if len(args) == 1:
        (arg,) = args
        return lambda x: fn(x, arg)
    return lambda x: fn(x, *args)


def each(converters: Sequence[Convert | None]) -> Callable[[Sequence[Any]], list[Any] | None]:
    """Return the function that converts as many arguments, each by its own converter; without one, it stays.

    The function declines as soon as one of the converters does.
    """

    def convert(xs: Sequence[Any]) -> list[Any] | None:
        made = []
        for one, x in zip(converters, xs):  # noqa: B905 -- as many as there are arguments
            y = x if one is None else one(x)
            if y is None and x is not None:
                return None
            made.append(y)
        return made

    return convert


# -- calls whose arguments decide the target ---------------------------------------------------------


@traced_as(no_result)
def repeat_asarray(x: Any, name: str | None, options: CallOptions) -> Array | None:
    """Return the result of `asarray` without `like`, as of a call before; None if it has to be planned."""
    return lookup(options.key("asarray", name, type(x), type(None)), options.copy, options.requires_grad)(x)


def record_asarray(
    key: CallKey, version: int, convert: Convert, near: Source | None, *, with_like: bool
) -> None:
    """Cache what `asarray` does with an object. `near` is `like` if that gave the device."""
    look = near.backend.device_of if near else None

    def convert_like(obj: Any, like: Array) -> Array | None:
        device = look(like) if look else CPU
        return convert(obj) if device is CPU or device == CPU else None

    record(key, version, convert_like if with_like else convert)


@traced_as(no_result)
def repeat_align(
    xs: tuple[Array, ...], choice: TargetChoice, options: CallOptions
) -> tuple[Array, ...] | None:
    """Return the result of a call of `align` as one before; None if it has to be planned."""
    key = ("align", choice.name, tuple([type(x) for x in xs]), type(choice.like), *options)
    made: tuple[Array, ...] | None = lookup(key, options.copy)(xs, choice.like)
    return made


def record_align(
    key: CallKey, recorder: Recorder, name: str, sources: list[Source], near: Source | None, *, free: bool
) -> None:
    """Cache what `align` did with arrays of these types. The device is that of `near`, an input or `like`.

    With `free`, the arrays decide the target. One of another library than the first does if it is followed.
    """
    converters = [
        None if source.is_number() else converter(name, type(source.array), recorder.options)
        for source in sources
    ]
    if decline in converters:
        return
    look = near and near.backend.device_of
    at = sources.index(near) if near in sources else None
    others = [(i, x.backend) for i, x in enumerate(sources) if free and x.backend.name != name]
    could_decide = [(i, follows) for i, other in others if (follows := other.follows)]
    convert = each(converters)

    def aligned(xs: Sequence[Array], like: Array) -> tuple[Array, ...] | None:
        for i, follows in could_decide:
            if follows(xs[i]):
                return None
        device = look(like if at is None else xs[at]) if look else CPU
        if device is not CPU and device != CPU:
            return None
        made = convert(xs)
        return None if made is None else tuple(made)

    record(key, recorder.version, aligned)


# -- small trees -------------------------------------------------------------------------------------


@traced_as(no_result)
def record_tree(name: str | ModuleType, options: CallOptions, *, scalars: bool) -> None:
    """Cache what a call with these options does, which succeeded for one tree, for small ones.

    The walk of `flatten` finds out what a tree consists of. For a few arrays, that takes longer than their
    conversion.
    """
    version, key = cache_version(), options.key("tree", name, NUMBERS if scalars else ())
    if options.are_constant(name) and key not in cached:
        record(key, version, _tree_converter(get(name).name, options, scalars=scalars))


class _Leaves(dict[type, "Convert | None"]):
    """What converts the leaves of each type, which is found out once; None for containers."""

    def __init__(self, find: Callable[[type], Convert]) -> None:
        super().__init__(dict.fromkeys(_CONTAINERS))
        self._find = find

    def __missing__(self, cls: type) -> Convert:
        found = self._find(cls)
        if found is not decline:  # more may be known when it is asked again
            self[cls] = found
        return found


def _tree_converter(name: str, options: CallOptions, *, scalars: bool) -> Convert:
    """Return the function that converts small trees, or declines: each type of a leaf has a converter."""
    converters = _Leaves(partial(_leaf_converter, name, options=options, scalars=scalars))

    def convert(tree: Any, around: list[Any] | None = None) -> Any:
        """Convert a tree. `around` are the leaves and containers of that around it."""
        cls = type(tree)
        if cls is tuple:
            form = xs = tree
        elif cls is dict:
            form = tree.copy()  # another thread may change it
            xs = form.values()
        elif cls is list:
            form = xs = tree.copy()
        else:
            return None
        seen = [] if around is None else around
        seen += xs
        if len(seen) > FEW:
            return None
        made = []
        for x in xs:
            one = converters[type(x)]
            y = one(x) if one else convert(x, seen)
            if y is None and x is not None:
                if one:
                    converters.pop(type(x), None)
                return None
            made.append(y)
        if around is None and len(set(map(id, seen))) < len(seen):
            arrays = [id(x) for x in seen if type(x) not in _NO_ARRAYS]
            if len(set(arrays)) < len(arrays):  # an array that occurs several times is converted once
                return None
        if cls is dict:
            return dict(zip(form, made))  # noqa: B905 -- as many as there are keys
        return tuple(made) if cls is tuple else made

    return convert


def _leaf_converter(name: str, cls: type, options: CallOptions, *, scalars: bool) -> Convert:
    """Return the function that converts the leaves of a type, or declines."""
    if cls in NUMBERS and scalars:
        known = cached.get(options._replace(writable=None).key("asarray", name, cls, type(None)), decline)
        return both(known, _host.as_readonly) if options.writable is False else known
    if cls in _LITERALS:
        return unchanged
    if not are_arrays(cls) or str(options.device).partition(":")[0] not in ("None", CPU):
        return decline  # arrays that go to a device are moved together
    source = backend_for(cls)
    if name == HOST and options.are_plain() and source and source.fetch_many:
        return lookup_direct(name, cls)  # and so are those that come from there
    return converter(name, cls, options)
