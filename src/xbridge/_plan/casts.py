"""Where a cast runs: where fewer bytes cross between devices, among the places that give the same numbers.

A cast is the target's own; the source's where the target lacks the dtype to cast from, and the host's where
both lack one. Others do it instead where they give the same numbers: the source, if what leaves its device is
narrower then, and the host, which is sooner, if nothing goes to a device or what goes there is narrower then.
The host casts a large array while it is carried, if the target can do that: no whole copy lies between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xbridge import _host
from xbridge._core.devices import CPU
from xbridge._core.dtypes import DTYPES, UNNAMED, holds_every
from xbridge._plan.steps import Step, nbytes_of

if TYPE_CHECKING:
    from types import ModuleType

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Backend
    from xbridge._plan.steps import Route


def caster(route: Route) -> Backend | ModuleType:
    """Who casts on the way from one library to another by the host: the source, the host or the target."""
    source, target, before, after = route.source, route.target, route.facts.dtype, route.dtype
    start, goal = route.facts.device, route.device
    if after != before and target.lacks(before, CPU):
        return _host if source.lacks(after, CPU) else source
    fewer = _narrows(route)
    if fewer and start != CPU and _has_both(route, source, start) and _is_alike(route):
        return source
    sooner = (before, after) in target.host_casts and (fewer or goal == CPU)
    return _host if sooner or target.host_only or after == before else target


def carry(
    route: Route, room: Backend, casts: list[Step], start: Device | None = None, goal: Device | None = None
) -> list[Step]:
    """Move and cast: the cast first if fewer bytes cross then, or if it could not come later."""
    start, goal = start or route.facts.device, goal or route.device
    if start == goal:
        return casts
    move = Step(room, "move", (goal,), f"it moves from {start} to {goal}")
    first = casts and _has_both(route, room, start) and (_narrows(route) or not _has_both(route, room, goal))
    return [*casts, move] if first else [move, *casts]


def at_once(route: Route, steps: list[Step]) -> list[Step]:
    """The same steps; a cast or copy of the host's is one with the move behind it, if the target wants it."""
    sends = getattr(route.target, "sends", None)
    if sends is None or route.device == CPU:
        return steps
    at = [step.verb for step in steps].index("from_host")
    change, move = steps[at - 1], steps[at + 1]
    if change.verb not in ("cast", "copy") or move.verb != "move":
        return steps
    nbytes = nbytes_of(route.facts.shape, route.dtype if change.verb == "cast" else route.facts.dtype)
    if not nbytes or not sends(nbytes, route.device):
        return steps
    args = (*move.args, route.dtype) if change.verb == "cast" else move.args
    send = Step(route.target, "send", args, f"{change.copies}, and {move.copies}")
    return [*steps[: at - 1], send, *steps[at + 2 :]]


def check(route: Route, room: Backend | ModuleType) -> list[Step]:
    """Look at the values, where the dtype was not named and may not hold them all."""
    asked = route.request.dtype in UNNAMED or route.request.exact
    if not asked or holds_every(route.facts.dtype, route.dtype):
        return []
    return [Step(room, "check", (route.dtype,))]


def cast(route: Route, room: Backend | ModuleType) -> list[Step]:
    """Change the dtype, or the order of the bytes where a dtype was named."""
    facts, dtype = route.facts, route.dtype
    args = (dtype, *order(route.target)) if room is _host else (dtype,)
    if dtype != facts.dtype:
        return [Step(room, "cast", args, f"{facts.dtype} becomes {dtype}")]
    if route.request.dtype is not None and not facts.native:
        return [Step(room, "cast", args, f"its bytes are not in the order of {dtype}")]
    return []


def order(target: Backend) -> tuple[str, ...]:
    """The axis order to ask of the host, where the target would not keep another."""
    return ("C",) if "order" in target.gaps else ()


def _narrows(route: Route) -> bool:
    """Whether it is fewer bytes after the cast."""
    before, after = (DTYPES.get(word) for word in (route.facts.dtype, route.dtype))
    return bool(before and after and after.bits < before.bits)


def _has_both(route: Route, room: Backend, device: Device) -> bool:
    """Whether a library can cast there. Dtypes of its own it has, wherever it is."""
    if device == CPU and "host" in room.gaps:
        return False
    words = route.facts.dtype, route.dtype
    return not any(room.lacks(word, device) for word in words if word in DTYPES)


def _is_alike(route: Route) -> bool:
    """Whether the source's cast, where the array is, gives the numbers of the target's: both the host's."""
    dtypes, places = (route.facts.dtype, route.dtype), (route.facts.device, CPU)
    for room, device in zip((route.source, route.target), places, strict=True):
        agrees = getattr(room, "agrees", None)
        if not (room.host_only or (agrees(*dtypes, device) if agrees else dtypes in room.host_casts)):
            return False
    return True
