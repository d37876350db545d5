"""Learn what a whole call does: of a scalar or numbers, and of a function whose arguments decide the target.

The parts of such a call are converters that were learned from arrays, or those of the fast path. They make
their checks in each call. Here is only what else the result depends on: the types of the arguments, and the
device of the array that decides.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from xbridge._core.devices import CPU
from xbridge._engine.learned import are_constant, converter, itself
from xbridge._host.importers import import_array
from xbridge._registry.registry import calls, get, learned, never, store_call
from xbridge.backends import HOST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xbridge._core.protocol import Array, Backend
    from xbridge._engine.learned import Convert, Lesson
    from xbridge._engine.source import Source


def learn_scalar(lesson: Lesson, kind: type) -> None:
    """Store what was learned from the array of a scalar, for other scalars of its type."""
    convert = converter(lesson.name, get(HOST).array_types[0], lesson.options)
    read = partial(import_array, must_share=False, fetch=False)
    if convert is never or lesson.options[2] is False:
        return

    def scalar(x: Array) -> Array | None:
        return convert(read(x))

    store_call(learned, (lesson.name, kind, *lesson.options), scalar, lesson.begun)


def learn_call(call: tuple[object, ...], begun: int, convert: Convert, where: Backend | None) -> None:
    """Store what `asarray` does with an object. `where` is the library whose array gave the device."""
    if convert is never or not are_constant(call[1:-1]):
        return
    look = where.device_of if where else None

    def converted(obj: Any, like: Array) -> Array | None:
        if look:
            place = look(like)
            if place is not CPU and place != CPU:
                return None
        return convert(obj)

    store_call(calls, call, converted, begun)


def learn_align(call: tuple[object, ...], lesson: Lesson, sources: list[Source], near: Source | None) -> None:
    """Store what `align` did with arrays of these types. The device is that of `near`, an input or `like`."""
    converters = [
        itself if source.is_number() else converter(lesson.name, type(source.array), lesson.options)
        for source in sources
    ]
    if never in converters or not are_constant(call[1:7]):
        return
    look = near and near.backend.device_of
    at = sources.index(near) if near in sources else None
    # Without a name or `like`, an array of another library than the target's decides if it is followed.
    free = call[1] is None and call[2] is type(None)
    others = [(i, x.backend) for i, x in enumerate(sources) if free and x.backend.name != lesson.name]
    could_decide = [(i, follows) for i, other in others if (follows := other.follows)]

    def aligned(xs: Sequence[Array], like: Array) -> tuple[Array, ...] | None:
        for i, follows in could_decide:
            if follows(xs[i]):
                return None
        place = look(like if at is None else xs[at]) if look else CPU
        if place is not CPU and place != CPU:
            return None
        made = []
        for convert, x in zip(converters, xs):  # noqa: B905 -- as many as there are arguments
            y = convert(x)
            if y is None:
                return None
            made.append(y)
        return tuple(made)

    store_call(calls, call, aligned, lesson.begun)
