"""Convert many arrays together.

Each array has a plan of its own. Steps that a backend can do for many arrays in one call, such as a move to a
device or the computation of lazy arrays, wait until all arrays have come to them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from xbridge._core.devices import CPU
from xbridge._core.protocol import Array, Backend
from xbridge._engine.convert import plan
from xbridge._engine.execute import is_observed, run_observed, run_steps
from xbridge._engine.repeat import cache_import, cache_plan, state_reader
from xbridge._engine.source import import_for
from xbridge._plan.options import find_converter
from xbridge._plan.rules import destination
from xbridge._plan.steps import Options, Plan, nbytes_of
from xbridge._registry import registry
from xbridge._registry.registry import backend_for, get
from xbridge.backends import HOST
from xbridge.errors import DeviceError, XBridgeError, index_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from xbridge._engine.source import Source
    from xbridge._plan.steps import Op, Step

SMALL_NBYTES = 1 << 18
"""The most bytes of an array that is moved with others. For larger ones the copy itself takes most time."""


class _Progress(NamedTuple):
    """An array on its way: some steps of its plan have run."""

    array: Array
    plan: Plan | None = None
    """None if a cached call has done the whole conversion."""
    done: int = 0
    """The number of steps that were run."""

    def is_done(self) -> bool:
        """Return True if no step is left."""
        return self.plan is None or self.done == len(self.plan.steps)


class Packing(NamedTuple):
    """How arrays of one type move between the host and a device in packs, without a plan for each."""

    kind: type
    """The type of array that can be packed. Others are planned."""
    move: Callable[[list[Array]], list[Array | None] | None]
    """Move the arrays; return None in place of each that has to be planned, or None if all have to be."""


def find_packings(target: Backend, kinds: Collection[type], options: Options) -> list[Packing]:
    """Return how arrays of these types move in packs, if their plans would consist of the move alone."""
    host, device = get(HOST), options.device
    plain = options._replace(device=None, copy=None) == Options() and options.copy is not False
    if registry.observers or not plain or target.is_tracing():
        return []
    if target is host:
        sources = [(kind, backend_for(kind)) for kind in kinds] if device in (None, CPU) else []
        return [
            Packing(kind, source.transfers.fetch_many)
            for kind, source in sources
            if source and source.transfers.has_packs and kind in source.fast.types
        ]
    (kind,) = host.array_types
    own = target.transfers
    if not own.has_packs or kind not in kinds or (device is None and "host" not in target.gaps):
        return []
    place = CPU
    with suppress(DeviceError):  # the plan of an array raises it too, and names the array
        place = destination(target, device, CPU)
    if place == CPU or place not in target.devices():
        return []
    return [Packing(kind, lambda xs: own.send_many(xs, place))]


def move_in_packs(
    target: Backend, xs: list[Array], kinds: Collection[type], options: Options
) -> list[Array | None] | None:
    """Move arrays of a batch in packs; return None in place of each array that has to be planned.

    Return None if no array of the batch can be packed.
    """
    made: list[Array | None] | None = None
    for packing in find_packings(target, kinds, options) if len(xs) > 1 else ():
        if len(kinds) == 1:
            return packing.move(xs)
        at = [i for i, x in enumerate(xs) if type(x) is packing.kind]
        moved = packing.move([xs[i] for i in at])
        if moved is not None:
            made = made or [None] * len(xs)
            for i, y in zip(at, moved, strict=True):
                made[i] = y
    return made


_JOINT_OPS: dict[Op, Op] = {"materialize": "materialize_many", "to_device": "to_device_many"}
"""The optional function of a backend that does a step for many arrays at once."""


def convert_all(
    sources: Iterable[Source], target: Backend, options: Options, *, version: int | None = None
) -> list[Array]:
    """Convert each input as `convert` would, but run the joint steps for many arrays at once."""
    if not is_observed(target):
        return _finish_together(index_errors(_start_each(sources, target, options, version)))
    planned = list(index_errors(_plan_each(sources, target, options)))
    arrays, plans = [x for x, _ in planned], [found for _, found in planned]
    return run_observed(arrays, plans, lambda: _finish_together(index_errors(map(_run_alone, arrays, plans))))


def _plan_each(sources: Iterable[Source], target: Backend, options: Options) -> Iterator[tuple[Array, Plan]]:
    """Yield each array with its plan."""
    for given in sources:
        source = import_for(given, target, options)
        yield source.array, plan(source, target, options)


def _start_each(
    sources: Iterable[Source], target: Backend, options: Options, version: int | None
) -> Iterator[_Progress]:
    """Yield each array after the steps of its plan that come before a joint one.

    With a `version` of the cache, a plan without joint steps is cached, and repeated for the others. (The
    caller has tried the calls that were cached before.)
    """
    is_cached = False
    for given in sources:
        source = import_for(given, target, options)
        y = None
        if is_cached:
            y = find_converter(options, target.name, type(source.array))(source.array)
        progress = _plan_and_start(source, target, options, version) if y is None else _Progress(y)
        is_cached = version is not None and (is_cached or progress.is_done())
        if version is not None and not given.is_array:
            cache_import(version, type(given.array), source.array, target, options)
        yield progress


def _plan_and_start(source: Source, target: Backend, options: Options, version: int | None) -> _Progress:
    """Plan a conversion and run its steps up to the first joint one. A plan without joint steps is cached."""
    read_state = state_reader(source.backend, target, options)
    state = read_state() if read_state else None
    found = plan(source, target, options)
    progress = _run_alone(source.array, found)
    if version is not None and read_state and progress.is_done():
        cache_plan(version, source.array, found, read_state, state)
    return progress


def _run_alone(x: Array, plan: Plan, done: int = 0) -> _Progress:
    """Run the steps after the first `done` up to the next joint one."""
    steps, at = plan.steps, done
    while at < len(steps) and not _is_joint(steps[at], plan):
        at += 1
    return _Progress(run_steps(x, plan, steps[done:at]) if at > done else x, plan, at)


def _is_joint(step: Step, plan: Plan) -> bool:
    """Return True if a backend may do the step for many arrays in one call: they are not too large."""
    if step.op == "materialize":
        return step.module.materialize_many is not None
    nbytes = nbytes_of(plan.conversion.info.shape, plan.conversion.info.dtype)
    return step.op == "to_device" and nbytes is not None and nbytes <= SMALL_NBYTES


def _finish_together(started: Iterable[_Progress]) -> list[Array]:
    """Finish all arrays: run each joint step for all arrays that have come to it, and go on from there."""
    arrays: list[Array] = []
    rests: dict[int, tuple[Plan, int]] = {}
    for i, one in enumerate(started):
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
                done = _run_jointly(step, [arrays[i] for i in chosen], [found for found, _ in left])
                done.reverse()  # `pop` takes the last, and the list must not keep an array that is continued
                continued = index_errors(_run_alone(done.pop(), found, at + 1) for found, at in left)
                for i, one in zip(chosen, continued, strict=True):
                    arrays[i] = one.array
                    if one.plan and not one.is_done():
                        rests[i] = one.plan, one.done
            except XBridgeError as error:
                error.remap_index(chosen)
                raise
    return arrays


def _run_jointly(step: Step, xs: list[Array], plans: list[Plan]) -> list[Array]:
    """Run one step for all arrays. If a move fails, move them one by one to find the index of the culprit."""
    done: list[Array] | None = None
    try:
        done = run_steps(xs, plans[0], (step._replace(op=_JOINT_OPS[step.op]),), plans)
    except XBridgeError:
        if step.op != "to_device":
            raise
    if done is None:
        done = list(index_errors(run_steps(x, plan, (step,)) for x, plan in zip(xs, plans, strict=True)))
    return done
