"""Convert many arrays: one backend computes or moves several of them in one call."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from xbridge._core.devices import CPU
from xbridge._core.protocol import Array, Backend
from xbridge._engine.convert import plan
from xbridge._engine.execute import is_observed, observed, perform
from xbridge._engine.learned import PLAIN, converter, is_for_any_layout, learn, recall, state_of
from xbridge._engine.learned_calls import learn_scalar
from xbridge._engine.source import import_for
from xbridge._plan.options import read_options
from xbridge._plan.rules import destination
from xbridge._plan.steps import Conversion, Options, Plan, nbytes_of
from xbridge._registry import registry
from xbridge._registry.registry import backend_for, get
from xbridge.backends import HOST
from xbridge.errors import XBridgeError, index_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from xbridge._core.devices import Device
    from xbridge._core.protocol import ArrayInfo, Pending
    from xbridge._engine.learned import Convert, Lesson
    from xbridge._engine.source import Source
    from xbridge._plan.steps import Op, Step

R = TypeVar("R")

SMALL = 1 << 18
"""Bytes up to which arrays are moved together. For a larger one, the call costs little beside the copy."""

_SHARE: tuple[Op, ...] = ("to_numpy", "from_numpy")
"""The steps that the fast path does for any strides. If a copy follows, it does not matter if it copies."""


class _Begun(NamedTuple):
    """An array after the first steps of its plan."""

    array: Array
    plan: Plan | None = None
    """None if what was learned was repeated."""
    done: int = 0
    """The number of steps that were run."""

    def is_done(self) -> bool:
        """Return True if no step is left."""
        return self.plan is None or self.done == len(self.plan.steps)


class Packing(NamedTuple):
    """How the arrays of one type in a batch move between the host and a device, without a plan."""

    kind: type
    """Arrays of this type are asked for. All others are planned."""
    move: Callable[[list[Array]], list[Array | None] | None]
    """Move all of them, with None in place of those that have to be planned; None if all have to be."""
    begin: Callable[[list[Array]], Pending | None] | None
    """Begin to move them without a thread; None if one has to be planned, or if a thread is needed."""


def packings(
    target: Backend, kinds: Collection[type], given: Mapping[str, Any], place: Device | None = None
) -> list[Packing]:
    """Return how arrays of these types move in packs, if a plan would have no part but the move.

    `place` is the device of the target if the caller has found it.
    """
    host, device = get(HOST), given["device"]
    plain = given["dtype"] is given["grad"] is None and given["copy"] is not False
    if registry.observers or not plain or target.is_tracing():
        return []
    if target is host:
        sources = [(kind, backend_for(kind)) for kind in kinds] if device in (None, CPU) else []
        return [
            Packing(kind, source.fetch_many, source.begin_fetch)
            for kind, source in sources
            if source and source.fetch_many and kind in source.fast_types
        ]
    (kind,) = host.array_types
    send, begin = target.send_many, target.begin_send
    if send is None or kind not in kinds or (device is None and "host" not in target.gaps):
        return []
    if place is None:
        place = destination(target, read_options((target,), **given).device, CPU)
        if place not in target.devices():
            return []
    if place == CPU:
        return []
    return [Packing(kind, partial(_there, send, place), begin and partial(_there, begin, place))]


def move_in_packs(
    target: Backend, xs: list[Array], kinds: Collection[type], given: Mapping[str, Any]
) -> list[Array | None] | None:
    """Move the small arrays of a batch between the host and a device, with None in place of all others.

    Return None if there are none.
    """
    made: list[Array | None] | None = None
    for packing in packings(target, kinds, given) if len(xs) > 1 else ():
        if len(kinds) == 1:
            return packing.move(xs)
        at = [i for i, x in enumerate(xs) if type(x) is packing.kind]
        moved = packing.move([xs[i] for i in at])
        if moved is not None:
            made = made or [None] * len(xs)
            for i, y in zip(at, moved, strict=True):
                made[i] = y
    return made


def _there(fn: Callable[[list[Array], Device], R], device: Device, xs: list[Array]) -> R:
    return fn(xs, device)


_MANY: dict[Op, Op] = {"materialize": "materialize_many", "to_device": "to_device_many"}
"""The optional function of a backend that does a step for many arrays at once."""


def convert_all(
    sources: Iterable[Source], target: Backend, options: Options, *, lesson: Lesson | None = None
) -> list[Array]:
    """Convert each input as `convert` would. Run the steps together that backends run for many arrays."""
    if not is_observed(target):
        return _together(index_errors(_begun(sources, target, options, lesson)))
    known = list(index_errors(import_for(source, target, options) for source in sources))
    arrays = [source.array for source in known]
    plans = list(index_errors(plan(source, target, options) for source in known))
    return observed(arrays, plans, lambda: _together(index_errors(map(_alone, arrays, plans))))


def _begun(
    sources: Iterable[Source], target: Backend, options: Options, lesson: Lesson | None
) -> Iterator[_Begun]:
    """Yield each array after the steps that it takes alone.

    One array of each kind is planned. With a `lesson`, what was learned from it is repeated for the others.
    The caller has tried what was known before. Otherwise the others follow its plan.
    """
    follows: dict[object, Callable[[Source], _Begun | None]] = {}
    shared = not (options.requires_grad or options.writable or options.compiled or target.is_tracing())
    taught = False
    for given in sources:
        source = import_for(given, target, options)
        y = recall(lesson.name, source.array, lesson.options) if lesson and taught else None
        begun = None if y is None else _Begun(y)
        if begun is None:
            info = source.info()
            kind = (type(source.array), info.dtype, *info[3:], info.device, 0 in info.shape)
            follow = follows.get(kind) if shared else None
            begun = follow(source) if follow else None
            if begun is None:
                begun = _planned(source, target, options, lesson)
                taught = taught or begun.is_done()
                follow = _follower(begun.plan, type(source.array)) if begun.plan else None
                if follow:
                    follows.setdefault(kind, follow)
        if lesson and given.is_scalar():
            learn_scalar(lesson, type(given.array))
        yield begun


def _follower(plan: Plan, kind: type) -> Callable[[Source], _Begun | None] | None:
    """Return a function that begins with other arrays of a type as planned; None if it needs this array."""
    ops = tuple(step.op for step in plan.steps)
    if plan.conversion.source is plan.conversion.target or is_for_any_layout(plan.steps, plan):
        return None if "stream_to_device" in ops else partial(_follow, plan)
    if ops[: len(_SHARE)] == _SHARE and any(step.copy_reason for step in plan.steps[len(_SHARE) :]):
        return partial(_follow_share, plan, converter(plan.conversion.target.name, kind, PLAIN))
    return None


def _follow_share(alike: Plan, convert: Convert, source: Source) -> _Begun | None:
    """Begin with an array by the fast path, and go on as planned."""
    y = convert(source.array)
    return None if y is None else _alone(y, _own(alike, source), len(_SHARE))


def _own(alike: Plan, source: Source) -> Plan:
    """Return the plan of another array of the same kind."""
    if source.info() == alike.conversion.info:
        return alike
    return Plan(alike.conversion._replace(info=source.info()), alike.steps)


def _follow(alike: Plan, source: Source) -> _Begun | None:
    """Begin with an array as with another one of its dtype; return None if it needs a plan of its own."""
    x, own = source.array, _own(alike, source)
    conversion = own.conversion
    backend, target = conversion.source, conversion.target
    within = backend is target and not source.foreign
    if backend.unsupported(x, leaving=not within) or _streams(conversion):
        return None
    if within:
        if backend.unreadable and backend.unreadable(x):
            return None
    else:
        pending = any(step.op == "materialize" for step in own.steps)
        if backend.memory_layout(x).materialized is pending:
            return None
    return _alone(x, own)


def _streams(conversion: Conversion) -> bool:
    """Return True if a cast or copy on the host is fused with the move of such an array."""
    streams, nbytes = conversion.target.streams_to_device, nbytes_of(conversion.info.shape, conversion.dtype)
    return bool(streams and conversion.device != CPU and nbytes and streams(nbytes, conversion.device))


def _planned(source: Source, target: Backend, options: Options, lesson: Lesson | None) -> _Begun:
    """Plan a conversion, and run the steps up to the first joint one. Learn a plan without a joint step."""
    state = state_of(source.backend, target, options)
    before = state() if state else None
    found = plan(source, target, options)
    begun = _alone(source.array, found)
    if lesson and state and begun.is_done():
        learn(lesson, source.array, found, state, before)
    return begun


def _alone(x: Array, plan: Plan, done: int = 0) -> _Begun:
    """Run the steps after the first `done` up to the next joint one."""
    steps, at = plan.steps, done
    while at < len(steps) and not _is_joint(steps[at], plan):
        at += 1
    return _Begun(perform(x, plan, steps[done:at]) if at > done else x, plan, at)


def _is_joint(step: Step, plan: Plan) -> bool:
    """Return True if the backend does the step for many arrays in one call, and they are not too large."""
    if step.op == "materialize":
        return step.module.materialize_many is not None
    if step.op == "to_device":
        return step.module.to_device_many is not None and _is_small(plan.conversion.info)
    return False


def _is_small(info: ArrayInfo) -> bool:
    nbytes = nbytes_of(info.shape, info.dtype)
    return nbytes is not None and nbytes <= SMALL


def _together(begun: Iterable[_Begun]) -> list[Array]:
    """Run the steps that are left, the same step of many arrays in one call."""
    arrays: list[Array] = []
    rests: dict[int, tuple[Plan, int]] = {}
    for i, one in enumerate(begun):
        arrays.append(one.array)
        if one.plan and not one.is_done():
            rests[i] = one.plan, one.done
    while rests:
        waiting: dict[Step, list[int]] = {}
        for i, (found, at) in rests.items():
            waiting.setdefault(found.steps[at], []).append(i)
        for step, chosen in waiting.items():
            left = [rests.pop(i) for i in chosen]
            try:
                done = _jointly(step, [arrays[i] for i in chosen], [found for found, _ in left])
                done.reverse()  # each is released when it is continued
                continued = index_errors(_alone(done.pop(), found, at + 1) for found, at in left)
                for i, one in zip(chosen, continued, strict=True):
                    arrays[i] = one.array
                    if one.plan and not one.is_done():
                        rests[i] = one.plan, one.done
            except XBridgeError as error:
                error.remap_index(chosen)
                raise
    return arrays


def _jointly(step: Step, xs: list[Array], plans: list[Plan]) -> list[Array]:
    """Run one step for all arrays. If it fails and can be repeated, run it one by one to find the index."""
    try:
        done: list[Array] = perform(xs, plans[0], (step._replace(op=_MANY[step.op]),), plans)
    except XBridgeError:
        if step.op != "to_device":
            raise
        done = list(index_errors(perform(x, plan, (step,)) for x, plan in zip(xs, plans, strict=True)))
    return done
