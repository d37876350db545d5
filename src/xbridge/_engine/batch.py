"""Convert many arrays: one backend computes or moves several of them in one call."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from xbridge._engine.convert import plan
from xbridge._engine.execute import is_observed, observed, perform
from xbridge._engine.learned import learn, recall, state_of
from xbridge._engine.source import import_for
from xbridge._plan.steps import Options, Plan, nbytes_of
from xbridge.backends import HOST
from xbridge.backends._registry import get
from xbridge.errors import XBridgeError, index_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from xbridge._core.protocol import Array, ArrayInfo, Backend
    from xbridge._engine.learned import Lesson
    from xbridge._engine.source import Source
    from xbridge._plan.steps import Op, Step

SMALL = 1 << 18
"""Bytes up to which arrays are moved together. For a larger one, the call costs little beside the copy."""

_MANY: dict[Op, Op] = {"materialize": "materialize_many", "to_device": "to_device_many"}
"""The optional function of a backend that does a step for many arrays at once."""


def convert_all(
    sources: Iterable[Source], target: Backend, options: Options, *, lesson: Lesson | None = None
) -> list[Array]:
    """Convert each input as `convert` would. Run the steps together that backends run for many arrays."""
    ready = (import_for(source, target, options) for source in sources)
    if not is_observed(target):
        return _together(index_errors(_begun(ready, target, options, lesson)))
    known = list(index_errors(ready))
    arrays = [source.array for source in known]
    plans = list(index_errors(plan(source, target, options) for source in known))
    return observed(arrays, plans, lambda: _together(index_errors(map(_alone, arrays, plans))))


def _begun(
    sources: Iterable[Source], target: Backend, options: Options, lesson: Lesson | None
) -> Iterator[tuple[Array, Plan | None]]:
    """Yield each array after the steps that it takes alone, and the plan of the steps that are left.

    With a `lesson`, what was learned from one array is repeated for the others of its kind. Of plain host
    arrays that are only moved, one of each dtype is planned, and the others follow it.
    """
    plain = get(HOST).fast_types if options == Options(options.device) else ()
    alike: dict[object, Plan] = {}
    for source in sources:
        x = source.array
        if lesson:
            y = recall(lesson.name, x, lesson.options)
            if y is not None:
                yield y, None
                continue
        rest = alike.get(x.dtype) if type(x) in plain and x.nbytes <= SMALL else None
        y = None if rest is None else target.fast_from_numpy(x)
        if y is None:
            y, rest = _planned(source, target, options, lesson)
            if rest and len(rest.steps) == 1 and type(x) in plain:
                alike[x.dtype] = rest
        yield y, rest


def _planned(
    source: Source, target: Backend, options: Options, lesson: Lesson | None
) -> tuple[Array, Plan | None]:
    """Plan a conversion, and run the steps up to the first joint one. Learn a plan without a joint step."""
    state = state_of(source.backend, target, options)
    before = state() if state else None
    found = plan(source, target, options)
    y, rest = _alone(source.array, found)
    if lesson and state and rest is None:
        learn(lesson, source.array, found, state, before)
    return y, rest


def _alone(x: Array, plan: Plan, done: int = 0) -> tuple[Array, Plan | None]:
    """Run the steps up to the next joint one. Return the array and the plan of the steps that are left."""
    steps = plan.steps[done:]
    if not steps:
        return x, None
    at = next((i for i, step in enumerate(steps) if _is_joint(step, plan)), len(steps))
    x = perform(x, replace(plan, steps=steps[:at]))
    return x, replace(plan, steps=steps[at:]) if steps[at:] else None


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


def _together(begun: Iterable[tuple[Array, Plan | None]]) -> list[Array]:
    """Run the steps that are left, the same step of many arrays in one call."""
    arrays: list[Array] = []
    rests: dict[int, Plan] = {}
    for i, (x, rest) in enumerate(begun):
        arrays.append(x)
        if rest:
            rests[i] = rest
    while rests:
        waiting: dict[Step, list[int]] = {}
        for i, rest in rests.items():
            waiting.setdefault(rest.steps[0], []).append(i)
        for step, chosen in waiting.items():
            plans = [rests.pop(i) for i in chosen]
            try:
                done = _jointly(step, [arrays[i] for i in chosen], plans)
                done.reverse()  # each is released when it is continued
                continued = index_errors(_alone(done.pop(), plan, 1) for plan in plans)
                for i, (x, rest) in zip(chosen, continued, strict=True):
                    arrays[i] = x
                    if rest:
                        rests[i] = rest
            except XBridgeError as error:
                error.remap_index(chosen)
                raise
    return arrays


def _jointly(step: Step, xs: list[Array], plans: list[Plan]) -> list[Array]:
    """Run one step for all arrays. If it fails and can be repeated, run it one by one to find the index."""
    try:
        at_once = Plan(plans[0].conversion, (step._replace(op=_MANY[step.op]),))
        done: list[Array] = perform(xs, at_once, plans)
    except XBridgeError:
        if step.op != "to_device":
            raise
        alone = (perform(x, replace(plan, steps=(step,))) for x, plan in zip(xs, plans, strict=True))
        done = list(index_errors(alone))
    return done
