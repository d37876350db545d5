"""Learn what a call with options does from its first plan, and repeat it for other arrays of the same kind.

No rule of the contract is here: the steps are those of a plan. The kind of an array is everything that the
plan depends on. Between libraries, that is the dtype and the flags of the view that `fast_to_numpy` returns.
Within a library, or if an operation is pending, the backend names it. The options are in the key, and the
state of the backends is asked for in each call.

`fast_to_numpy` and `fast_from_numpy` make all checks of the fast path in each call. In doubt, or if a step
fails, the learned function returns None. Then the conversion is planned, and the plan says why.
"""

from __future__ import annotations

from functools import partial, reduce
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from xbridge import _host
from xbridge._core.devices import CPU, Device
from xbridge._core.dtypes import DTYPES
from xbridge._core.dynamo import no_result, traced_as
from xbridge._host.memory import native_dtype
from xbridge._plan.steps import Options, Step
from xbridge._registry.registry import (
    backends_for_object,
    fast_converters,
    get,
    is_flag,
    learned,
    never,
    store,
    store_call,
)
from xbridge.backends import HOST
from xbridge.errors import FOREIGN_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from xbridge._core.protocol import Array, Backend, HostArray
    from xbridge._plan.steps import Plan

    Call = tuple[Callable[..., Any], tuple[Any, ...]]
    Convert = Callable[[Any], Any]
    Given = tuple[object, ...]
    """Options as the caller gives them: device, dtype, copy, grad; requires_grad and writable if given."""
    State = Callable[[], object]

PLAIN = (None, None, None, None)
"""No options."""

_CONSTANT = (str, Device, type, bool, type(None), ModuleType)
"""Types of options that always mean the same."""

_BY_FLAGS = frozenset(("asked", "byte_order", "mutable", "read_only", "requires_grad"))
"""Reasons for a copy that the dtype and the flags of the host's view show, or the call itself."""

_is_writable = attrgetter("flags.writeable")
"""Only the host makes an array that can be written."""

_COPYING = (_host.copy, _host.astype, _host.astype_checked)
"""Operations whose result is new and dense."""


class Lesson(NamedTuple):
    """A call that may be learned, and the generation of the tables before its backends were found."""

    name: str
    options: Given
    begun: int


@traced_as(no_result)
def recall(name: str, x: Array, options: Given) -> Array | None:
    """Return the result of a learned call, or of a call without options; None if it has to be planned."""
    return converter(name, type(x), options)(x) if is_flag(options[2]) else None


@traced_as(lambda *_: never)
def converter(name: str, kind: type, options: Given) -> Convert:
    """Return the function that converts ordinary arrays of a type without a plan, or returns None.

    The options were checked.
    """
    try:
        taught = learned.get((name, kind, *options), never)
    except FOREIGN_ERRORS:  # an option without a hash
        return never
    direct = fast_converters[name].get(kind, never) if options == PLAIN else never
    if never in (direct, taught):
        return taught if direct is never else direct
    return _either(direct, taught)


def state_of(source: Backend, target: Backend, options: Options) -> State | None:
    """Return a function that reads the state which plans depend on.

    Return None if a plan is not to be learned: a backend does not report its state, or a compiler traces.
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


def learn(lesson: Lesson, x: Array, plan: Plan, state: State, before: object) -> None:
    """Store what was planned for an array, for others of its kind. `before` is the state before planning."""
    source, target, info, _, _, device = plan.conversion
    plain = type(x) in source.fast_types and info.dtype in DTYPES
    if not plain or not are_constant(lesson.options):
        return
    if {info.device, device} != {CPU}:
        move = _move(lesson.options, plan)
        if move:
            store_call(learned, (lesson.name, type(x), *lesson.options), move, lesson.begun)
        return
    if plan.conversion.options.copy is False and plan.copies:
        return  # it was empty, and only that allowed the copy
    found = _within(source, x, plan) if source is target else _between(x, plan)
    if found and state() == before:
        kind, convert, choose = found
        key = (lesson.name, type(x), *lesson.options)
        store(key, (*kind, before), convert, lambda kinds: choose(kinds, state), lesson.begun)


def _move(options: Given, plan: Plan) -> Convert | None:
    """Return the function that moves ordinary arrays to or from a device; None if a plan does more."""
    source, target, ops = plan.conversion.source, plan.conversion.target, [step.op for step in plan.steps]
    word, *others = options
    if any(option is not None for option in others):
        return None
    if target.name == HOST and word is None and ops[:2] == ["to_device", "to_numpy"]:
        return source.fast_from_device
    if source.name == HOST and word is not None and ops == ["to_numpy", "from_numpy", "to_device"]:
        return target.fast_to_device and target.fast_to_device(word)
    return None


def are_constant(options: Given) -> bool:
    """Return True if the options mean the same whenever they are given."""
    for option in options:
        if type(option) not in _CONSTANT:
            backends = backends_for_object(option)
            if not backends or None in [backend.plan_state for backend in backends]:
                return False
    return True


def _within(backend: Backend, x: Array, plan: Plan) -> tuple[Given, Convert, Callable[..., Convert]] | None:
    """Return the kind of an array, and how its own library converts that kind; None in doubt."""
    look, graph, options = backend.plan_kind, backend.plan_graph, plan.conversion.options
    if backend.autograd and (options.grad or options.requires_grad):
        look = look and graph and _both_kinds(look, graph)
    if options.writable:
        look = look and _both_kinds(look, _is_writable)
    kind = look(x) if look else None
    if look is None or kind is None:
        return None
    return (
        (kind,),
        _run([(getattr(step.module, step.op), step.args) for step in plan.steps]),
        partial(_by_kind, look),
    )


def _between(x: Array, plan: Plan) -> tuple[Given, Convert, Callable[..., Convert]] | None:
    """Return the kind of an array, and how that kind gets to another library; None in doubt."""
    source = plan.conversion.source
    direct, pending, host = _unchanged(type(x), plan), source.plan_pending, source.fast_to_numpy(x)
    look = None if source.name == HOST else source.fast_to_numpy
    shared = _if_writable if plan.conversion.options == Options(writable=True) else None
    choose: Callable[..., Convert] = partial(_by_view, look, direct, pending, shared)
    kind: Given
    do: Convert | None
    if host is None:
        kind = (pending(x) if pending else None,)
        do = None if kind == (None,) else _from_pending(plan)
    elif direct:
        kind, do = (), direct
    else:
        kind, do = (host.dtype, host.flags.num), _from_view(host, plan)
    options = plan.conversion.options
    if source.autograd and (options.grad == "keep" or options.requires_grad):
        if source.plan_graph is None:
            return None
        choose = partial(_without_graph, source.plan_graph, choose)
    return (kind, do, choose) if do else None


def _unchanged(kind: type, plan: Plan) -> Convert | None:
    """Return the function that converts arrays of a type if the options change nothing, else None."""
    target, options = plan.conversion.target, plan.conversion.options
    if options._replace(device=None, grad=None, requires_grad=False) != Options() or options.grad == "keep":
        return None
    if options == Options():
        return never  # the caller has tried it
    direct = fast_converters[target.name].get(kind, never)
    return _guarded(_run([(direct, ()), (target.require_grad, ())])) if options.requires_grad else direct


def _from_pending(plan: Plan) -> Convert | None:
    """Return what a plan does with an array on which an operation is pending; None in doubt.

    That operation makes new memory, so its strides do not matter.
    """
    at = [step.op for step in plan.steps].index("to_numpy") + 1
    own = [(getattr(step.module, step.op), step.args) for step in plan.steps[:at]]
    then = _on_host(plan.steps[at:], plan.conversion.target, native_dtype(plan.conversion.info.dtype))
    return None if then is None else _run([*own, *then])


def _from_view(host: HostArray, plan: Plan) -> Convert | None:
    """Return what a plan does with the view that `fast_to_numpy` returns; None in doubt."""
    source, target, _, _, _, _ = plan.conversion
    if source.assumes_immutable and target.assumes_immutable:
        return None  # the memory of immutable arrays is shared if its address allows that
    at = [step.op for step in plan.steps].index("to_numpy")
    first = [step for step in plan.steps[:at] if step.op != "detach"]  # which `fast_to_numpy` does
    then = [step for step in plan.steps[at + 1 :] if step.op != "as_readonly"]  # likewise
    if first and source.name != HOST:
        return None
    steps = [*first, *then]
    if not _is_for_any_view(steps, host, plan):
        return None
    calls = _on_host(steps, target, host.dtype)
    return None if calls is None else _run(calls)


def _is_for_any_view(steps: Sequence[Step], host: HostArray, plan: Plan) -> bool:
    """Return True if the steps would be the same for any view of the same dtype and flags."""
    if is_for_any_layout(steps, plan):
        return True
    copying = next((step for step in steps if step.copy_reason), None)
    if copying is None or copying.module is plan.conversion.target:
        # `fast_from_numpy` copies what cannot be shared. It tells that by the flags of a dense array.
        return host.flags.forc or plan.conversion.options.copy is not False
    if copying.copy_reason and copying.copy_reason.kind in _BY_FLAGS:
        return True
    # Flags do not show the stride of an axis of one item, which may be any.
    return host.flags.forc and all(n > 1 for n in host.shape)


def is_for_any_layout(steps: Sequence[Step], plan: Plan) -> bool:
    """Return True if the steps would be the same for any strides: they begin with a cast, move or copy."""
    copying = next((step for step in steps if step.copy_reason), None)
    if copying is None or copying.module is plan.conversion.target:
        return False
    if copying.op in ("astype", "to_device", "materialize"):
        return True
    return plan.conversion.options.copy is True and all(step.op != "astype" for step in steps)


def _on_host(steps: Sequence[Step], target: Backend, dtype: np.dtype[Any]) -> list[Call] | None:
    """Return the functions of the steps with their arguments. The fast path makes the target's array.

    Return None if the target would decline each array of the dtype after it was copied.
    """
    calls: list[Call] = []
    for step in steps:
        if step.op == "from_numpy":
            if target.name != HOST:
                calls.append((target.from_numpy if target.assumes_immutable else target.fast_from_numpy, ()))
        elif step == Step(_host, "astype", step.args[:1], step.copy_reason) and calls[-1:] == [
            (_host.check_cast, step.args)
        ]:
            calls[-1] = (_host.astype_checked, step.args)
        else:
            calls.append((getattr(step.module, step.op), step.args))
    trial = _host.ones(dtype)
    if _guarded(_run(calls))(trial) is None:
        return None
    made_by = [fn for fn, _ in calls[-2:]]
    if target.fast_from_fresh and made_by in [[fn, target.fast_from_numpy] for fn in _COPYING]:
        shorter = [*calls[:-1], (target.fast_from_fresh, ())]
        return calls if _guarded(_run(shorter))(trial) is None else shorter
    return calls


def _both_kinds(
    look: Callable[[Array], object], other: Callable[[Array], object]
) -> Callable[[Array], object]:
    """Return a function that returns two facts of an array; None in doubt."""

    def both_kinds(x: Array) -> object:
        one, two = look(x), other(x)
        return None if one is None or two is None else (one, two)

    return both_kinds


def _by_view(
    look: Convert | None,
    direct: Convert | None,
    pending: Convert | None,
    shared: Convert | None,
    kinds: dict[object, Convert],
    state: State,
) -> Convert:
    """Return the function that finds what to do by the view of the host, or by what is pending.

    An array of the host's own library is its own view.
    """
    find = kinds.get

    def convert(host: HostArray) -> Array | None:
        do = find((host.dtype, host.flags.num, state()))
        try:
            return None if do is None else do(host)
        except FOREIGN_ERRORS:
            return None

    found = convert if shared is None else _either(shared, convert)
    usual = direct or (both(look, found) if look else found)
    return _either(usual, _by_kind(pending, kinds, state)) if pending else usual


def _without_graph(
    graph: Callable[[Array], tuple[bool, ...] | None],
    choose: Callable[..., Convert],
    kinds: dict[object, Convert],
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


def _by_kind(look: Callable[[Array], object], kinds: dict[object, Convert], state: State) -> Convert:
    """Return the function that finds what to do by the kind that the backend names."""
    find = kinds.get

    def convert(x: Array) -> Array | None:
        do = find((look(x), state()))
        try:
            return None if do is None else do(x)
        except FOREIGN_ERRORS:
            return None

    return convert


def _run(calls: list[Call]) -> Convert:
    """Return one function that makes all calls; None as soon as one returns None."""
    return reduce(both, [_bound(fn, args) if args else fn for fn, args in calls]) if calls else itself


def _guarded(fn: Convert) -> Convert:
    """Return a function that returns None if `fn` raises an error."""

    def convert(x: Any) -> Any:
        try:
            return fn(x)
        except FOREIGN_ERRORS:
            return None

    return convert


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


def _bound(fn: Callable[..., Any], args: tuple[Any, ...]) -> Convert:
    if len(args) == 1:
        (arg,) = args
        return lambda x: fn(x, arg)
    return lambda x: fn(x, *args)


def _if_writable(host: HostArray) -> HostArray | None:
    return host if host.flags.writeable else None


def itself(x: Any) -> Any:
    return x
