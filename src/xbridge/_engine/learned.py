"""Learn what a call with options does from its first plan, and repeat it for other arrays of the same kind.

No rule of the contract is here: the steps are those of a plan. The kind of an array is everything that the
plan depends on. Between libraries, that is the dtype and the flags of the view that `fast_to_numpy` returns.
Within a library, the backend names it. The options are in the key, and the state of the backends is asked for
in each call.

`fast_to_numpy` and `fast_from_numpy` make all checks of the fast path in each call. In doubt, or if a step
fails, the learned function returns None. Then the conversion is planned, and the plan says why.
"""

from __future__ import annotations

from functools import partial, reduce
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from xbridge import _host
from xbridge._core.devices import CPU, Device
from xbridge._core.dtypes import DTYPES
from xbridge._plan.steps import Options, Step
from xbridge.backends import HOST
from xbridge.backends._registry import backends_for_object, fast_converters, is_flag, learned, store
from xbridge.errors import FOREIGN_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge._core.protocol import Array, Backend
    from xbridge._plan.steps import Plan

    Convert = Callable[[Any], Any]
    Given = tuple[object, ...]
    """The options as the caller gives them: device, dtype, copy, grad, and requires_grad if it is given."""
    State = Callable[[], object]

_ON_HOST = ("check_cast", "astype", "copy", "as_readonly", "as_writable", "from_numpy", "require_grad")
"""Operations that a learned function repeats after the view of the host is made."""

PLAIN = (None, None, None, None)
"""No options."""

_CONSTANT = (str, Device, type, bool, type(None), ModuleType)
"""Types of options that always mean the same."""


class Lesson(NamedTuple):
    """A call that may be learned, and the generation of the tables before its backends were found."""

    name: str
    options: Given
    begun: int


def recall(name: str, x: Array, options: Given) -> Array | None:
    """Return the result of a learned call, or of a call without options; None if it has to be planned."""
    return converter(name, type(x), options)(x) if is_flag(options[2]) else None


def converter(name: str, kind: type, options: Given) -> Convert:
    """Return the function that converts ordinary arrays of a type without a plan, or returns None.

    The options were checked.
    """
    if options == PLAIN:
        return fast_converters[name].get(kind, never)
    try:
        return learned.get((name, kind, *options), never)
    except FOREIGN_ERRORS:  # an option without a hash
        return never


def state_of(source: Backend, target: Backend, options: Options) -> State | None:
    """Return a function that reads the state which plans depend on.

    Return None if a plan is not to be learned: a backend does not report its state, or a compiler traces.
    """
    if options.compiled or target.is_tracing():
        return None
    states = [backend.plan_state for backend in (source, target) if backend.name != HOST]
    if None in states:
        return None
    if len(set(states)) == 1:
        return states[0]
    return lambda: tuple(state() for state in states)  # type: ignore[misc] # none of them is None


def learn(lesson: Lesson, x: Array, plan: Plan, state: State, before: object) -> None:
    """Store what was planned for an array, for others of its kind. `before` is the state before planning."""
    source, target, info, _, _, device = plan.conversion
    plain = type(x) in source.fast_types and info.dtype in DTYPES
    if not plain or {info.device, device} != {CPU} or not are_constant(lesson.options):
        return
    if plan.conversion.options.copy is False and plan.copies:
        return  # it was empty, and only that allowed the copy
    found = _within(source, x, plan) if source is target else _between(x, plan)
    if found and state() == before:
        kind, convert, choose = found
        key = (lesson.name, type(x), *lesson.options)
        store(key, (kind, before), convert, lambda kinds: choose(kinds, state), lesson.begun)


def are_constant(options: Given) -> bool:
    """Return True if the options mean the same whenever they are given."""
    for option in options:
        if type(option) not in _CONSTANT:
            backends = backends_for_object(option)
            if not backends or None in [backend.plan_state for backend in backends]:
                return False
    return True


def _within(backend: Backend, x: Array, plan: Plan) -> tuple[object, Convert, Callable[..., Convert]] | None:
    """Return the kind of an array, and how its own library converts that kind; None in doubt."""
    look, graph, options = backend.plan_kind, backend.plan_graph, plan.conversion.options
    if backend.autograd and (options.grad or options.requires_grad):
        look = look and graph and _with_graph(look, graph)
    kind = look(x) if look else None
    if look is None or kind is None:
        return None
    return (
        kind,
        _run([(getattr(step.module, step.op), step.args) for step in plan.steps]),
        partial(_by_kind, look),
    )


def _between(x: Array, plan: Plan) -> tuple[object, Convert, Callable[..., Convert]] | None:
    """Return the kind of an array, and how that kind gets to another library; None in doubt."""
    source, target, _, options, _, _ = plan.conversion
    if options._replace(device=None, grad=None, requires_grad=False) == Options() and options.grad != "keep":
        direct = fast_converters[target.name].get(type(x))  # nothing is asked that changes the result
        if direct is None:
            return None
        convert = _run([(direct, ()), (target.require_grad, ())]) if options.requires_grad else direct
        return None, convert, lambda _, __: convert
    ops = [step.op for step in plan.steps]
    host = source.fast_to_numpy(x)
    if host is None or "to_numpy" not in ops or (source.assumes_immutable and target.assumes_immutable):
        return None  # the memory of immutable arrays is shared if its address allows that
    at = ops.index("to_numpy")
    first = [step for step in plan.steps[:at] if step.op != "detach"]  # which `fast_to_numpy` does
    then = [step for step in plan.steps[at + 1 :] if step.op != "as_readonly"]  # likewise
    if (first and source.name != HOST) or not all(step.op in _ON_HOST for step in then):
        return None
    steps = [*first, *then]
    if not _is_for_any_layout(steps, plan) and not (host.flags.forc and all(n > 1 for n in host.shape)):
        return None  # the strides decided, which flags do not show: an axis of one item may have any
    do = _run(_on_host(steps, target))
    if do(_host.ones(host.dtype)) is None:
        return None  # the target would decline each array after it was copied
    return (host.dtype, host.flags.num), do, partial(_by_view, source)


def _is_for_any_layout(steps: list[Step], plan: Plan) -> bool:
    """Return True if the steps would be the same for any strides: they begin with a cast or a copy."""
    copying = next((step for step in steps if step.copy_reason), None)
    if copying is None or copying.module is plan.conversion.target:
        return False
    casts = any(step.op == "astype" for step in steps)
    return copying.op == "astype" or (plan.conversion.options.copy is True and not casts)


def _on_host(steps: list[Step], target: Backend) -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Return the functions of the steps with their arguments. The fast path makes the target's array."""
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
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
    return calls


def _with_graph(
    look: Callable[[Array], object], graph: Callable[[Array], object]
) -> Callable[[Array], object]:
    """Return a function that returns the kind of an array and of its graph; None in doubt."""

    def both_kinds(x: Array) -> object:
        both = look(x), graph(x)
        return None if None in both else both

    return both_kinds


def _by_view(source: Backend, kinds: dict[object, Convert], state: State) -> Convert:
    """Return the function that finds what to do by the view of the host."""
    look, find = source.fast_to_numpy, kinds.get

    def convert(x: Array) -> Array | None:
        host = look(x)
        if host is None:
            return None
        do = find(((host.dtype, host.flags.num), state()))
        return None if do is None else do(host)

    return convert


def _by_kind(look: Callable[[Array], object], kinds: dict[object, Convert], state: State) -> Convert:
    """Return the function that finds what to do by the kind that the backend names."""
    find = kinds.get

    def convert(x: Array) -> Array | None:
        do = find((look(x), state()))
        return None if do is None else do(x)

    return convert


def _run(calls: list[tuple[Callable[..., Any], tuple[Any, ...]]]) -> Convert:
    """Return one function that makes all calls; None as soon as one returns None, or fails."""
    functions = [_bound(fn, args) if args else fn for fn, args in calls]
    if not functions:
        return itself
    if len(functions) == 1:
        functions.insert(0, itself)
    first, then = reduce(_both, functions[:-1]), functions[-1]

    def convert(x: Any) -> Any:
        try:
            y = first(x)
            return None if y is None else then(y)
        except FOREIGN_ERRORS:
            return None

    return convert


def _both(first: Convert, then: Convert) -> Convert:
    def convert(x: Any) -> Any:
        y = first(x)
        return None if y is None else then(y)

    return convert


def _bound(fn: Callable[..., Any], args: tuple[Any, ...]) -> Convert:
    if len(args) == 1:
        (arg,) = args
        return lambda x: fn(x, arg)
    return lambda x: fn(x, *args)


def itself(x: Any) -> Any:
    return x


def never(x: Array) -> None:
    """Return None for an array of a type that the fast path does not convert."""
