"""One array, one conversion: find its backend, have the steps planned, run them. Or many at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from xbridge import _host
from xbridge._engine.execute import is_observed, observed, perform, run
from xbridge._plan.rules import plan_between, plan_within
from xbridge._plan.steps import Options, Plan, in_words, nbytes_of
from xbridge.backends import HOST
from xbridge.backends._registry import backend_for, get
from xbridge.errors import XBridgeError, index_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from xbridge._core.protocol import Array, ArrayInfo, Backend
    from xbridge._plan.steps import Step

SMALL = 1 << 18
"""Bytes up to which arrays are moved together: for a larger one, to ask costs little beside the copy."""


_MANY = {"materialize": "materialize_many", "to_device": "to_device_many"}
"""The optional function of a backend that does a step for many arrays at once."""


class Source(NamedTuple):
    """An array and its backend."""

    array: Array
    backend: Backend
    foreign: bool = False
    """It came in through an export protocol, so it is leaving some other library."""

    def info(self) -> ArrayInfo:
        """What its backend says of it."""
        return self.backend.array_info(self.array)

    def is_late(self) -> bool:
        """Whether it has no memory before it is computed."""
        if self.backend.unsupported(self.array, leaving=True):
            return False
        layout = self.backend.memory_layout(self.array)
        return not layout.materialized and not layout.address


def resolve_source(
    x: object, target: Backend | None = None, *, must_share: bool = False, fetch: bool = False
) -> Source:
    """`x` as an array of some backend. What nobody owns is admitted as a host array, if it is on the host.

    With `fetch`, it is asked to come there: that is for who asked for the host. Else the target looks at it
    where it is, or another library that can.
    """
    backend = backend_for(type(x))
    if backend is not None and not isinstance(x, backend.scalar_types):
        return Source(x, backend)
    try:
        host = _host.import_array(x, must_share=must_share, fetch=fetch)
        return Source(host, get(HOST), foreign=backend is None)
    except _host.NotOnHostError as error:
        refused = error
    from xbridge._engine import device_import  # noqa: PLC0415 -- only device memory that nobody owns needs it

    array, importer = device_import.import_device_array(x, refused, target, must_share=must_share)
    return Source(array, importer, foreign=True)


def convert(source: Source, target: Backend, options: Options) -> Array:
    """The array in the target's library, as requested."""
    return run(source.array, plan(source, target, options))


def convert_all(sources: Iterable[Source], target: Backend, options: Options) -> list[Array]:
    """Each as `convert` would; what many can do together, such as to move if they are small, they do so."""
    if not is_observed(target):
        return _together(index_errors(_begun(sources, target, options)))
    known = list(index_errors(sources))
    arrays, plans = (
        [source.array for source in known],
        list(index_errors(plan(x, target, options) for x in known)),
    )
    return observed(arrays, plans, lambda: _together(index_errors(map(_alone, arrays, plans))))


def _begun(
    sources: Iterable[Source], target: Backend, options: Options
) -> Iterator[tuple[Array, Plan | None]]:
    """Each as far as it comes alone, and what is left to do.

    Of plain host arrays that are only moved, one of each dtype is planned, and the others follow it.
    """
    plain = get(HOST).fast_types if options == Options(options.device) else ()
    alike: dict[object, Plan] = {}
    for source in sources:
        x = source.array
        rest = alike.get(x.dtype) if type(x) in plain and x.nbytes <= SMALL else None
        adopted = None if rest is None else target.fast_from_numpy(x)
        if adopted is None:
            adopted, rest = _alone(x, plan(source, target, options))
            if rest and len(rest.steps) == 1 and type(x) in plain:
                alike[x.dtype] = rest
        yield adopted, rest


def _alone(x: Array, plan: Plan, done: int = 0) -> tuple[Array, Plan | None]:
    """The array as it is before the next step that others may share, and what is left to do then."""
    steps = plan.steps[done:]
    if not steps:
        return x, None
    at = next((i for i, step in enumerate(steps) if _is_joint(step, plan)), len(steps))
    x = perform(x, plan._replace(steps=steps[:at]))
    return x, plan._replace(steps=steps[at:]) if steps[at:] else None


def _is_joint(step: Step, plan: Plan) -> bool:
    """Whether its library does it for many at once: computes what hangs together, moves what is small."""
    if step.op == "materialize":
        return step.module.materialize_many is not None
    if step.op == "to_device":
        return step.module.to_device_many is not None and _is_small(plan.conversion.info)
    return False


def _is_small(info: ArrayInfo) -> bool:
    nbytes = nbytes_of(info.shape, info.dtype)
    return nbytes is not None and nbytes <= SMALL


def _together(begun: Iterable[tuple[Array, Plan | None]]) -> list[Array]:
    """What is left to do, the same step of many at once."""
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
                done = _jointly(step, [arrays[i] for i in chosen], plans)[::-1]  # each let go when it goes on
                behind = index_errors(_alone(done.pop(), plan, 1) for plan in plans)
                for i, (x, rest) in zip(chosen, behind, strict=True):
                    arrays[i] = x
                    if rest:
                        rests[i] = rest
            except XBridgeError as error:
                error.remap_index(chosen)
                raise
    return arrays


def _jointly(step: Step, xs: list[Array], plans: list[Plan]) -> list[Array]:
    """The step for all; one by one if it fails and may be done again, to see at which."""
    try:
        done: list[Array] = perform(xs, Plan(plans[0].conversion, (step._replace(op=_MANY[step.op]),)))
    except XBridgeError:
        if step.op != "to_device":
            raise
        alone = (perform(x, plan._replace(steps=(step,))) for x, plan in zip(xs, plans, strict=True))
        done = list(index_errors(alone))
    return done


def plan(source: Source, target: Backend, options: Options) -> Plan:
    """What is to be done to it, or why it cannot be done."""
    owner = source.backend
    refused = owner.unsupported(source.array, leaving=source.foreign or owner is not target)
    if refused:
        raise refused.error.build(in_words(owner, source.info(), target), refused.reason, refused.hint)
    if owner is target:
        return plan_within(owner, source.array, options)
    return plan_between(owner, target, source.array, options)
