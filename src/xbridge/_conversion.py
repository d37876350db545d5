"""One array, one conversion: find its backend, have the steps planned, run them. Or many at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from xbridge import _host
from xbridge._casts import SMALL, is_small
from xbridge._decide import across, within
from xbridge._plan import Plan, Request, in_words
from xbridge._registry import backend_for, get
from xbridge._run import is_watched, perform, run, watched
from xbridge.backends import HOST
from xbridge.errors import XBridgeError, counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from xbridge._plan import Step
    from xbridge._protocol import Array, Backend, Facts


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
    from xbridge import _doors  # noqa: PLC0415 -- only device memory that nobody owns needs it

    array, door = _doors.take(x, refused, target, must_share=must_share)
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
    return watched(arrays, plans, lambda: _together(counted(map(_up_to_the_joint_step, arrays, plans))))


def _begun(guests: Iterable[Guest], target: Backend, request: Request) -> Iterator[tuple[Array, Plan]]:
    """Each as far as it comes alone, and what is left to do.

    Of plain host arrays that are only moved, one of each dtype is planned, and the others follow it.
    """
    plain = get(HOST).plain if request == Request(request.device) else ()
    alike: dict[object, Plan] = {}
    for guest in guests:
        x = guest.array
        rest = alike.get(x.dtype) if type(x) in plain and x.nbytes <= SMALL else None
        adopted = None if rest is None else target.adopt(x)
        if rest is None or adopted is None:
            adopted, rest = _up_to_the_joint_step(x, plan(guest, target, request))
            if len(rest.steps) == 1 and type(x) in plain:
                alike[x.dtype] = rest
        yield adopted, rest


def _up_to_the_joint_step(x: Array, plan: Plan) -> tuple[Array, Plan]:
    """The array as it is before a step that others may share, and what is left to do then."""
    if not plan.steps:
        return x, plan
    joint = [i for i, step in enumerate(plan.steps) if _is_joint(step, plan)]
    at = joint[0] if joint else len(plan.steps)
    return perform(x, plan._replace(steps=plan.steps[:at])), plan._replace(steps=plan.steps[at:])


def _is_joint(step: Step, plan: Plan) -> bool:
    """Whether its library does it for many at once: computes what hangs together, moves what is small."""
    if step.verb not in ("settle", "move") or not hasattr(step.room, f"{step.verb}_all"):
        return False
    return step.verb == "settle" or is_small(plan.route.facts)


def _together(begun: Iterable[tuple[Array, Plan]]) -> list[Array]:
    """What is left to do, the same step of many at once."""
    state = list(begun)
    while True:
        waiting: dict[Step, list[int]] = {}
        for i, (_, rest) in enumerate(state):
            if rest.steps:
                waiting.setdefault(rest.steps[0], []).append(i)
        if not waiting:
            return [x for x, _ in state]
        for step, chosen in waiting.items():
            rests = [rest._replace(steps=rest.steps[1:]) for _, rest in map(state.__getitem__, chosen)]
            joint = Plan(rests[0].route, (step._replace(verb=f"{step.verb}_all"),))
            try:
                done = perform([state[i][0] for i in chosen], joint)
                made = list(counted(map(_up_to_the_joint_step, done, rests)))
            except XBridgeError as error:
                error.renumber(chosen)
                raise
            for i, one in zip(chosen, made, strict=True):
                state[i] = one


def plan(guest: Guest, target: Backend, request: Request) -> Plan:
    """What is to be done to it, or why it cannot be done."""
    source = guest.room
    refused = source.refusal(guest.array, leaving=guest.foreign or source is not target)
    if refused:
        raise refused.error.because(in_words(source, guest.facts(), target), refused.why, refused.do)
    if source is target:
        return within(source, guest.array, request)
    return across(source, target, guest.array, request)
