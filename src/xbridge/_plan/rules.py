"""Decide a conversion from facts, as a list of steps: the one place where the contract stands.

Two libraries meet on the device where an array is, if both can be there, and else in host memory:

    source: detach, settle, check, cast, copy, export                    target: import_, cast, move, track
    source: detach, settle, check, cast, move   host: check, cast, copy, freeze   target: cast, move, track

Within one library nobody meets: every step is the library's own operation, so arrays that could never
leave it (tracers, sparse, fake) pass. Nothing is decided by trying and catching.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xbridge import _host
from xbridge._core.devices import CPU, GPU, SHARDED
from xbridge._core.dtypes import DTYPES, UNNAMED, category, is_inexact, nearest, no_wider
from xbridge._plan.casts import at_once, carry, cast, caster, check, order
from xbridge._plan.steps import Plan, Route, Step, in_words
from xbridge.errors import CopyError, DeviceError, DTypeError, GradientError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array, Backend, Facts, Layout, Refusal
    from xbridge._plan.steps import Request


def within(room: Backend, x: Array, request: Request) -> Plan:
    """The plan for a conversion inside one library."""
    route = _route(room, room, room.describe(x), request)
    facts = route.facts
    changes = carry(route, room, [*check(route, room), *cast(route, room)])
    detached = request.grad == "detach" and facts.history
    if not changes:
        if detached and not room.readonly:
            changes = [Step(room, "copy", copies=f"it requires grad, and {_has_no_readonly(room)}")]
        elif request.copy:
            changes = [Step(room, "copy", copies="copy=True")]
    if changes and request.grad == "keep" and facts.history and not room.recording():
        raise GradientError.because(
            route.asked(), "grad='keep' was asked where gradients are off", "grad=None, or turning them on"
        )
    steps = [*([Step(room, "detach")] if detached else []), *changes]
    if request.track and not steps and facts.history and _is_leaf(room, x):
        return _plan(route, steps)
    return _plan(route, [*steps, *_track(route)])


def across(source: Backend, target: Backend, x: Array, request: Request) -> Plan:
    """The plan for a conversion from one library to another."""
    route = _route(source, target, source.describe(x), request)
    facts, device = route.facts, route.device
    if facts.history and request.grad == "keep":
        raise GradientError.because(
            route.asked(),
            "grad='keep' was asked, and a graph ends where its library ends",
            "grad=None",
        )
    if device != CPU and device not in target.devices():
        places = ", ".join(target.devices())
        raise DeviceError.because(
            route.asked(),
            f"{target.name} has no device {device} here, only {places}",
            "device='cpu'",
        )
    layout = source.layout(x)
    steps = [Step(source, "detach")] if facts.history else []
    if not layout.settled:
        late = "it is still to be computed" if layout.is_nowhere() else "an operation is still pending on it"
        steps.append(Step(source, "settle", copies=late))
    if CPU not in (facts.device, device) and facts.device in target.devices():
        return _plan(route, [*steps, *_on_device(route, layout, copied=not layout.settled), *_track(route)])
    room = caster(route)
    checks, casts = check(route, source if room is source else _host), cast(route, room)
    steps += carry(route, source, [*checks, *casts] if room is source else [], goal=CPU)
    steps.append(Step(source, "to_host"))
    taken = Step(target, "from_host", copies=_reads_in(target))
    on_host = [] if room is source else [*checks, *(casts if room is _host else [])]
    later = carry(route, target, casts if room is target else [], start=CPU)
    if not any(step.copies for step in [*steps, *on_host]):
        # A move is complete when it returns; a cast may read its memory later, where that is never written.
        once = device != CPU if target.immutable else later
        on_host += _share_or_copy(route, layout, will_copy=bool(taken.copies or once))
    elif source.readonly and not any(step.copies for step in on_host):
        on_host.append(Step(_host, "thaw"))  # new memory, and nobody's but the caller's
    return _plan(route, [*at_once(route, [*steps, *on_host, taken, *later]), *_track(route)])


def _on_device(route: Route, layout: Layout, *, copied: bool) -> list[Step]:
    """Hand memory of a device over. What is copied is copied by the source.

    Its own stream orders that before whatever is written later; the target's would not, and to wait for it
    would hold up the host.
    """
    source, target, facts = route.source, route.target, route.facts
    before, casts = check(route, source), cast(route, target)
    if casts and target.lacks(facts.dtype, facts.device) is not None:
        _refuse(route, source.lacks(route.dtype, facts.device))
        before, casts, copied = [*before, *cast(route, source)], [], True
    later = carry(route, target, casts)
    why = next(_obstacles(route, layout), "") or ("copy=True" if route.request.copy else "")
    if later:
        why = "" if source.immutable and target.holds(facts, layout) else later[0].copies
    if why and not copied:
        before.append(Step(source, "copy", (), why))
    return [*before, Step(source, "export"), Step(target, "import_"), *later]


def foretell(source: Backend, target: Backend, facts: Facts, request: Request) -> None:
    """Raise what a conversion would be refused with, as far as facts alone say, before the array is made."""
    _track(_route(source, target, facts, request))


def destination(target: Backend, asked: Device | None, near: Device) -> Device:
    """Where a result is to be: where somebody says, or where the array is, if the target can be there."""
    if asked is None and target.host_only:
        asked = CPU
    elif asked is None and near == CPU and "host" in target.gaps:
        asked = GPU
    return target.resolve_device(_accelerator(target, asked or near), near)


def _accelerator(target: Backend, asked: Device) -> Device:
    """The target's own name for its accelerator of an index; any other device as it is."""
    if asked.kind != GPU or asked.index is None:
        return asked
    places = [place for place in target.devices() if place.kind != CPU]
    numbered = enumerate(place.index for place in places)
    numbers = [number if index is None else index for number, index in numbered]
    return places[numbers.index(asked.index)] if asked.index in numbers else asked


def _route(source: Backend, target: Backend, facts: Facts, request: Request) -> Route:
    """Settle on a dtype and a device, and refuse what cannot be asked."""
    if facts.device == SHARDED and request.device is None and source is not target:
        raise DeviceError.because(
            in_words(source, facts, target),
            "it lies on several devices, and is gathered only where somebody says so",
            f"to_backend(x, {target.name!r}, device='cpu')",
        )
    device = destination(target, request.device, facts.device)
    dtype = _dtype(source, target, facts, request, device)
    route = Route(source, target, facts, request, dtype, device)
    if category(facts.dtype) == "complex" and category(dtype) in ("int", "float"):
        raise DTypeError.because(
            route.asked(),
            f"a cast from {facts.dtype} to {dtype} drops the imaginary part",
            "x.real",
        )
    changes = (device, dtype) != (facts.device, facts.dtype)
    if source is not target or (changes and dtype in DTYPES):
        _refuse(route, target.lacks(dtype, device))
    if request.grad == "keep" and facts.history and not is_inexact(dtype):
        raise GradientError.because(
            route.asked(),
            f"grad='keep' was asked, and no gradient flows through {dtype}",
            "grad=None",
        )
    return route


def _refuse(route: Route, lacks: Refusal | None) -> None:
    """Refuse a dtype that is not there. What the nearest one is may be left to us, if there is one."""
    if lacks:
        near = chosen("nearest", route.facts.dtype, route.target, route.device)
        there = route.target.lacks(near, route.device) is None
        do = f"dtype='nearest', or {lacks.do}" if there else lacks.do
        raise lacks.error.because(route.asked(), lacks.why, do)


def chosen(word: str, dtype: str, target: Backend, device: Device) -> str:
    """The dtype that "default" or "nearest" stands for, of an array of some dtype that goes there."""
    if word == "nearest":
        return nearest(dtype, lambda other: target.lacks(other, device) is None)
    return no_wider(dtype, target.default_dtype(category(dtype), device)) if dtype in DTYPES else dtype


def _dtype(source: Backend, target: Backend, facts: Facts, request: Request, device: Device) -> str:
    """The dtype of the result. A library has its own dtypes wherever it is."""
    if request.dtype not in UNNAMED:
        return request.dtype or facts.dtype
    if source is target and facts.dtype not in DTYPES:
        return facts.dtype
    return chosen(request.dtype, facts.dtype, target, device)


def _track(route: Route) -> list[Step]:
    """Begin a new history, where one was asked for and can begin."""
    if not route.request.track:
        return []
    target, facts = route.target, route.facts
    why = do = ""
    if not target.autograd:
        why = target.gaps.get("history", "").partition(": ")[2] or f"{target.name} has no gradients"
        do = "a backend that has gradients"
    elif not is_inexact(route.dtype):
        why, do = f"no gradient flows through {route.dtype}", "dtype='float32'"
    elif facts.history and route.request.grad != "detach":
        why, do = "a new leaf would cut the history that it has", "grad='detach' to cut it"
    if why:
        raise GradientError.because(f"{route.asked()} with requires_grad=True", why, do)
    return [Step(target, "track")]


def _is_leaf(room: Backend, x: Array) -> bool:
    """Whether its history begins with it, so that it is what a new leaf would be."""
    is_leaf = getattr(room, "is_leaf", None)
    return is_leaf is not None and bool(is_leaf(x))


def _share_or_copy(route: Route, layout: Layout, *, will_copy: bool) -> list[Step]:
    """The sharing rules. Memory that a later step reads only once needs no more than a view of it."""
    target, facts = route.target, route.facts
    why = next(_obstacles(route, layout), "")
    if will_copy:
        return [] if target.holds(facts, layout) else [Step(_host, "copy", order(target), why)]
    if route.request.copy and not why:
        why = "copy=True"
    if why:
        return [Step(_host, "copy", order(target), why)]
    return [Step(_host, "freeze")] if _is_guarded(facts, layout) else []


def _reads_in(target: Backend) -> str:
    """Why the target's arrays never look at host memory, so that taking it over is a copy; "" if they do.

    What relies on memory that does not change looks at it: it is only given other memory.
    """
    return "" if target.immutable else target.gaps.get("sharing", "").partition(": ")[2]


def _is_guarded(facts: Facts, layout: Layout) -> bool:
    """Whether nobody may write the memory through a new array."""
    return facts.history or not layout.writable or layout.repeats()


def _obstacles(route: Route, layout: Layout) -> Iterator[str]:
    """Why the target cannot safely look at the same memory."""
    source, target, facts = route.source, route.target, route.facts
    if target.immutable and not source.immutable and not route.request.unsafe:
        yield f"its memory can change, and {target.name} reads it later"
    if not target.holds(facts, layout):
        if not facts.native:
            yield "its bytes are in foreign order"
        elif not layout.aligned:
            yield "its memory is not aligned"
        yield f"{target.name} has no such strides"
    if route.request.unsafe:
        return
    if not target.readonly:
        reasons = {
            "its memory is read-only": not layout.writable,
            "its elements may share memory with each other": layout.repeats(),
            "it requires grad": facts.history,
        }
        yield from (f"{why}, and {_has_no_readonly(target)}" for why, holds in reasons.items() if holds)
    elif route.request.traced and _is_guarded(facts, layout):
        yield "a compiler would make its read-only array writable"


def _has_no_readonly(room: Backend) -> str:
    return f"{room.name} has no read-only arrays"


def _plan(route: Route, steps: list[Step]) -> Plan:
    """Hold `copy=False` against the steps; an empty array has no memory to share, and is cast like any."""
    if route.request.copy is False:
        empty = 0 in route.facts.shape
        why = next((step.copies for step in steps if step.copies and (step.verb == "cast" or not empty)), "")
        if why:
            unsafe = route.request.unsafe
            how, do = (
                ("without a copy", f"to_backend(x, {route.target.name!r})")
                if unsafe
                else ("with copy=False", "copy=None")
            )
            raise CopyError.because(f"{route.asked()} {how}", why, do)
    return Plan(route, tuple(steps))
