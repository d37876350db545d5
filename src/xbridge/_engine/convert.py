"""One array, one conversion: find its backend, have the steps planned, run them. Or many at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from xbridge import _host
from xbridge._engine.execute import is_watched, perform, run, watched
from xbridge._plan.rules import across, within
from xbridge._plan.steps import Plan, Request, in_words, nbytes_of
from xbridge.backends import HOST
from xbridge.backends._registry import backend_for, get
from xbridge.errors import XBridgeError, counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from xbridge._core.protocol import Array, Backend, Facts
    from xbridge._plan.steps import Step

SMALL = 1 << 18
"""Bytes up to which arrays are moved together: for a larger one, to ask costs little beside the copy."""


class Guest(NamedTuple):
    """An array and its backend."""

    array: Array
    room: Backend
    foreign: bool = False
    """It came in through an export protocol, so it is leaving some other library."""

    def facts(self) -> Facts:
        """What its backend says of it."""
        return self.room.describe(self.array)

    def is_late(self) -> bool:
        """Whether it has no memory before it is computed."""
        if self.room.refusal(self.array, leaving=True):
            return False
        layout = self.room.layout(self.array)
        return not layout.settled and not layout.address


def enter(
    x: object, target: Backend | None = None, *, must_share: bool = False, fetch: bool = False
) -> Guest:
    """`x` as an array of some backend. What nobody owns is admitted as a host array, if it is on the host.

    With `fetch`, it is asked to come there: that is for who asked for the host. Else the target looks at it
    where it is, or another library that can.
    """
    room = backend_for(type(x))
    if room is not None and not isinstance(x, room.scalars):
        return Guest(x, room)
    try:
        host = _host.admit(x, must_share=must_share, fetch=fetch)
        return Guest(host, get(HOST), foreign=room is None)
    except _host.ElsewhereError as error:
        refused = error
    from xbridge._engine import device_import  # noqa: PLC0415 -- only device memory that nobody owns needs it

    array, door = device_import.take(x, refused, target, must_share=must_share)
    return Guest(array, door, foreign=True)


def convert(guest: Guest, target: Backend, request: Request) -> Array:
    """The array in the target's library, as requested."""
    return run(guest.array, plan(guest, target, request))


def convert_all(guests: Iterable[Guest], target: Backend, request: Request) -> list[Array]:
    """Each as `convert` would; what many can do together, such as to move if they are small, they do so."""
    if not is_watched(target):
        return _together(counted(_begun(guests, target, request)))
    known = list(counted(guests))
    arrays, plans = [guest.array for guest in known], list(counted(plan(x, target, request) for x in known))
    return watched(arrays, plans, lambda: _together(counted(map(_alone, arrays, plans))))


def _begun(guests: Iterable[Guest], target: Backend, request: Request) -> Iterator[tuple[Array, Plan | None]]:
    """Each as far as it comes alone, and what is left to do.

    Of plain host arrays that are only moved, one of each dtype is planned, and the others follow it.
    """
    plain = get(HOST).plain if request == Request(request.device) else ()
    alike: dict[object, Plan] = {}
    for guest in guests:
        x = guest.array
        rest = alike.get(x.dtype) if type(x) in plain and x.nbytes <= SMALL else None
        adopted = None if rest is None else target.adopt(x)
        if adopted is None:
            adopted, rest = _alone(x, plan(guest, target, request))
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
    if step.verb not in ("settle", "move") or not hasattr(step.room, f"{step.verb}_all"):
        return False
    return step.verb == "settle" or _is_small(plan.route.facts)


def _is_small(facts: Facts) -> bool:
    nbytes = nbytes_of(facts.shape, facts.dtype)
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
                behind = counted(_alone(done.pop(), plan, 1) for plan in plans)
                for i, (x, rest) in zip(chosen, behind, strict=True):
                    arrays[i] = x
                    if rest:
                        rests[i] = rest
            except XBridgeError as error:
                error.renumber(chosen)
                raise
    return arrays


def _jointly(step: Step, xs: list[Array], plans: list[Plan]) -> list[Array]:
    """The step for all; one by one if it fails and may be done again, to see at which."""
    try:
        done: list[Array] = perform(xs, Plan(plans[0].route, (step._replace(verb=f"{step.verb}_all"),)))
    except XBridgeError:
        if step.verb != "move":
            raise
        alone = (perform(x, plan._replace(steps=(step,))) for x, plan in zip(xs, plans, strict=True))
        done = list(counted(alone))
    return done


def plan(guest: Guest, target: Backend, request: Request) -> Plan:
    """What is to be done to it, or why it cannot be done."""
    source = guest.room
    refused = source.refusal(guest.array, leaving=guest.foreign or source is not target)
    if refused:
        raise refused.error.because(in_words(source, guest.facts(), target), refused.why, refused.do)
    if source is target:
        return within(source, guest.array, request)
    return across(source, target, guest.array, request)
