"""Convert arrays by plans.

Each array has a plan of its own. Steps that a backend can do for many arrays in one call, such as a move to a
device or the computation of lazy arrays, wait until all arrays have come to them.
"""

from __future__ import annotations

from collections.abc import Iterator

from xbridge._core.protocol import Array, Backend
from xbridge._engine.execute import is_observed, run_observed, run_steps
from xbridge._engine.repeat import cache_import, cache_plan, state_reader
from xbridge._engine.source import Source, import_for
from xbridge._host.advice import aim
from xbridge._plan.options import find_converter
from xbridge._plan.rules import plan_between, plan_within
from xbridge._plan.steps import Op, Options, Plan, Step, in_words, nbytes_of
from xbridge.errors import XBridgeError, index_errors

SMALL_NBYTES = 1 << 18
"""The most bytes of an array that is moved with others. For larger ones the copy itself takes most time."""

_JOINT_OPS: dict[Op, Op] = {"materialize": "materialize_many", "to_device": "to_device_many"}
"""The optional function of a backend that does a step for many arrays at once."""


def plan(source: Source, target: Backend, options: Options) -> Plan:
    """Plan the conversion of an array, or raise the reason that forbids it."""
    refuse_unsupported(source, target, leaving=source.foreign or source.backend is not target)
    if source.backend is target:
        return plan_within(target, source.array, source.info(), options)
    return plan_between(source.backend, target, source.array, source.info(), options)


def refuse_unsupported(source: Source, target: Backend, *, leaving: bool) -> None:
    """Raise an error if an array cannot be read, or cannot leave its library."""
    refused = source.backend.unsupported(source.array, leaving=leaving)
    if refused:
        action = in_words(source.backend, source.info(), target)
        raise aim(refused.error.build(action, refused.reason, refused.hint), target)


def convert(source: Source, target: Backend, options: Options, *, version: int | None = None) -> Array:
    """Convert an input by a plan, as `convert_all` does."""
    return convert_all([source], target, options, version=version)[0]


def convert_all(
    sources: list[Source], target: Backend, options: Options, *, version: int | None = None
) -> list[Array]:
    """Convert each input by a plan, but run the joint steps for many arrays at once.

    With the version of the cache before the call, the plans are cached for inputs with the same key.
    """
    if not is_observed(target):
        return _run_together(list(index_errors(_prepare(sources, target, options, version))))
    prepared = list(index_errors(_prepare(sources, target, options, None)))
    arrays, plans = [x for x, _ in prepared], [found for _, found in prepared if found]
    return run_observed(arrays, plans, lambda: _run_together(prepared))


def _prepare(
    sources: list[Source], target: Backend, options: Options, version: int | None
) -> Iterator[tuple[Array, Plan | None]]:
    """Yield each array with its plan; or the result of a cached call, and None.

    With a `version` of the cache, a plan is cached, and repeated for the others. (The caller has tried the
    calls that were cached before.)
    """
    is_cached = False
    for given in sources:
        source, found = import_for(given, target, options), None
        x = source.array
        y = find_converter(options, target.name, type(x))(x) if is_cached else None
        if y is None:
            read_state = None if version is None else state_reader(source.backend, target, options)
            state = read_state() if read_state else None
            found = plan(source, target, options)
            is_whole = len(sources) == 1 or not any(_is_joint(step, found) for step in found.steps)
            if version is not None and read_state and is_whole:
                cache_plan(version, x, found, read_state, state)
                is_cached = True
        if version is not None and not given.is_array:
            cache_import(version, type(given.array), x, target, options)
        yield (x if y is None else y), found


def _run_together(prepared: list[tuple[Array, Plan | None]]) -> list[Array]:
    """Run the plans: each joint step for all arrays that have come to it, and the other steps one by one."""
    arrays = [x for x, _ in prepared]
    rests = {i: (found, 0) for i, (_, found) in enumerate(prepared) if found}

    def advance(i: int, x: Array, begin: int) -> None:
        """Run the steps of an array up to the next joint one."""
        found, _ = rests.pop(i)
        steps = found.steps
        joint = (at for at in range(begin, len(steps)) if _is_joint(steps[at], found))
        end = next(joint, None) if len(arrays) > 1 else None
        try:
            arrays[i] = run_steps(x, found, steps[begin:end])
        except XBridgeError as error:
            error.index = i
            raise
        if end is not None:
            rests[i] = found, end

    for i in list(rests):
        advance(i, arrays[i], 0)
    while rests:
        waiting: dict[Step, list[int]] = {}
        for i, (found, at) in rests.items():
            waiting.setdefault(found.steps[at], []).append(i)
        for step, chosen in waiting.items():
            try:
                done = _run_jointly(step, [arrays[i] for i in chosen], [rests[i][0] for i in chosen])
            except XBridgeError as error:
                error.remap_index(chosen)
                raise
            done.reverse()  # `pop` takes the last, and the list must not keep an array that is continued
            for i in chosen:
                advance(i, done.pop(), rests[i][1] + 1)
    return arrays


def _is_joint(step: Step, plan: Plan) -> bool:
    """Return True if a backend may do the step for many arrays in one call: they are not too large."""
    if step.op == "materialize":
        return step.module.materialize_many is not None
    nbytes = nbytes_of(plan.conversion.info.shape, plan.conversion.info.dtype)
    return step.op == "to_device" and nbytes is not None and nbytes <= SMALL_NBYTES


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
