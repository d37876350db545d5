"""Make an array of numbers, or of a nested list of numbers and arrays.

Who stacks the arrays of a list? The target, where one of them is its own; else the library of those that
are still to be computed, so that they are computed together; else the host, from views of them all. Whoever
does it, every element is read once.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from xbridge import _host
from xbridge._core.devices import CPU
from xbridge._core.dtypes import DTYPES, UNNAMED, category, exact_integers, is_inexact
from xbridge._core.protocol import Facts
from xbridge._engine.convert import Guest, convert, convert_all, enter
from xbridge._engine.execute import run
from xbridge._plan.rules import chosen, destination, foretell
from xbridge._plan.steps import Plan, Request, Route, Step, is_known
from xbridge.backends import HOST
from xbridge.backends._registry import backend_for, get, hot
from xbridge.errors import CopyError, DeviceError, GradientError, OptionError, ValueLossError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array, Backend, HostArray
    from xbridge._host import Nest

T = TypeVar("T")

_dtype_and_shape = attrgetter("dtype", "shape")


class _Element(NamedTuple):
    """An array of a list, or a number beside arrays, whose dtype gives way to theirs."""

    guest: Guest
    facts: Facts
    weak: bool
    scalar: bool
    """Whether it is a scalar of NumPy's, which is placed where the arrays are."""

    def must_stay_exact(self, dtype: str) -> bool:
        """Whether only a named dtype may round it: a number, or an integer whose value can be read."""
        if self.weak or category(self.facts.dtype) != "int" or self.facts.dtype == dtype:
            return self.weak
        room = self.guest.room
        return room.tracing() or room.refusal(self.guest.array, leaving=True) is None


def from_numbers(obj: object, target: Backend, request: Request) -> Array:
    """Numbers, in the target's default dtypes unless one was asked for."""
    named = _named(request)
    device = destination(target, request.device, CPU)
    floating = None if named else target.default_dtype("float", device)
    host = _host.literal(obj, floating, rounding=named is not None and is_inexact(named))
    _refuse_sharing(request, host.shape)
    if named:
        _refuse_overflow(host, named)
    return convert(Guest(host, get(HOST)), target, request._replace(dtype=named or "default", copy=None))


def from_arrays(nest: Nest, target: Backend, request: Request) -> Array:
    """The arrays of a list side by side in one array.

    What is not to be copied is empty, or it was refused; a cast is refused of that too.
    """
    whole = _at_once(nest, target, request) or _one_by_one(nest, target, request)
    return convert(whole, target, request._replace(copy=request.copy and None))


def _one_by_one(nest: Nest, target: Backend, request: Request) -> Guest:
    """Stacked after a look at each, and after a conversion of those that need one."""
    elements = _elements(nest, target, request)
    _refuse_ragged(elements)
    shape = (*nest.shape, *elements[0].facts.shape)
    _refuse_sharing(request, shape)
    place = _one_place(elements, request)
    _refuse_to_cut(elements, target, request)
    named = _named(request)
    dtype = _common_dtype(elements, target, named)

    stacker = _stacker(elements, target, request)
    if stacker.host_only:  # what lies on several devices is gathered there, if any device was named
        spot = None if request.device is None else CPU
    else:
        spot = destination(stacker, request.device, place)
    # Who lacks the common dtype cannot stack in it and narrow the stack.
    where = CPU if spot is None else spot
    narrow = dtype in DTYPES and stacker.lacks(dtype, where) is not None
    if request.dtype not in UNNAMED:
        narrow = False
    elif narrow:
        dtype = chosen(request.dtype, dtype, stacker, where)
    if dtype in DTYPES:  # or it would be computed to be refused
        foretell(stacker, target, Facts(dtype, where, shape), request)
    part = Request(spot, dtype, request.copy and None, request.grad)
    parts = [
        _part(element, stacker, part._replace(exact=not named and (narrow or element.must_stay_exact(dtype))))
        for element in elements
    ]

    tracked = any(element.facts.history for element in elements)
    history = tracked and any(stacker.describe(one).history for one in parts)
    facts = _strong(elements)[0].facts._replace(dtype=dtype, device=where, shape=shape, history=history)
    stack = Step(stacker, "stack", (nest.shape,), "the arrays of a list lie apart in memory")
    plan = Plan(Route(stacker, stacker, facts, part, dtype, where), (stack,))
    return Guest(run(parts, plan), stacker)


def _elements(nest: Nest, target: Backend, request: Request) -> list[_Element]:
    fetch = target.host_only or request.device == CPU
    guests = [
        Guest(_host.literal(leaf, None), get(HOST)) if weak else enter(leaf, target, fetch=fetch)
        for leaf, weak in zip(nest.leaves, nest.weak, strict=True)
    ]
    _compute_unknown(guests, target)
    scalars = get(HOST).scalars
    return [
        _Element(guest, guest.facts(), weak, isinstance(leaf, scalars))
        for guest, leaf, weak in zip(guests, nest.leaves, nest.weak, strict=True)
    ]


def _compute_unknown(guests: list[Guest], target: Backend) -> None:
    """What leaves a library while its shape is not known comes to the host, with all of that library."""
    rooms = {guest.room for guest in guests if not is_known(guest.facts().shape)} - {target}
    for room in rooms:
        places = [i for i, guest in enumerate(guests) if guest.room is room]
        for i, host in zip(
            places, convert_all([guests[i] for i in places], get(HOST), Request()), strict=True
        ):
            guests[i] = Guest(host, get(HOST))


def _strong(elements: list[_Element]) -> list[_Element]:
    """Those that decide on dtype and device. There is one at least, or it would be a list of numbers."""
    return [element for element in elements if not element.weak]


def _placed(elements: list[_Element]) -> list[_Element]:
    """Those that decide on the device."""
    return [element for element in _strong(elements) if not element.scalar] or _strong(elements)


def _common_dtype(elements: list[_Element], target: Backend, named: str | None) -> str:
    """The dtype to stack in, into which every integer among them fits."""
    strong = _strong(elements)
    numbers = [element.guest.array for element in elements if element.weak]
    mixed = _is_mixed(elements)
    if mixed and named:
        dtype = named
    elif mixed or numbers:
        own = all(element.guest.room is target for element in strong)
        dtype = _promoted([element.facts.dtype for element in strong], numbers, target if own else get(HOST))
    else:
        dtype = strong[0].facts.dtype
    for number in numbers:
        _refuse_overflow(number, dtype)
    return dtype


def _promoted(dtypes: list[str], numbers: list[HostArray], library: Backend) -> str:
    """The dtype for all, by the rules of the library; by NumPy's if it has none for them."""
    weak = [_host.sample(number) for number in numbers]
    own: Callable[[list[str], list[complex]], str | None] | None = getattr(library, "promote", None)
    return (own and own(dtypes, weak)) or _host.promote(dtypes, weak)


def _is_mixed(elements: list[_Element]) -> bool:
    return len({element.facts.dtype for element in elements}) > 1


def _stacker(elements: list[_Element], target: Backend, request: Request) -> Backend:
    """Who puts them side by side."""
    place = _placed(elements)[0].facts.device
    own = any(element.guest.room is target for element in elements)
    there = CPU not in (place, request.device) and place in target.devices()
    if own or there or (_named(request) and _is_mixed(elements)):
        return target
    return _together([element.guest for element in elements]) or get(HOST)


def _part(element: _Element, stacker: Backend, request: Request) -> Array:
    """An element as the stacker can take it."""
    guest, facts = element.guest, element.facts
    if facts.dtype == request.dtype and facts.native and not guest.foreign:
        array = _as_it_is(guest, facts, stacker, request)
        if array is not None:
            return array
    return convert(guest._replace(foreign=guest.foreign or stacker.host_only), stacker, request)


def _at_once(nest: Nest, target: Backend, request: Request) -> Guest | None:
    """Plain arrays of one type, dtype and shape, stacked without a look at each; None in doubt.

    Their own library does it, if it can tell whether they are alike; else the host, from its views of them.
    """
    kinds = set(map(type, nest.leaves))
    direct = hot[HOST].get(*kinds) if len(kinds) == 1 else None
    room = backend_for(*kinds) if direct else None
    if direct is None or room is None or request.grad == "keep":
        return None
    stack_all: Callable[[list[Array]], Array | None] | None = getattr(room, "stack_all", None)
    if stack_all:
        row = stack_all(nest.leaves)
        if row is None or (room is not target and room.refusal(row, leaving=True)):
            return None
        _refuse_sharing(request, (*nest.shape, *row.shape[1:]))
        whole = row.reshape((*nest.shape, *row.shape[1:])) if len(nest.shape) > 1 else row
        return Guest(whole if room is target else room.detach(whole), room)  # nobody else's to guard
    if room is target and not room.host_only:
        return None
    hosts = list(map(direct, nest.leaves))
    if any(host is None for host in hosts) or len(set(map(_dtype_and_shape, hosts))) > 1:
        return None
    dtype, shape = _dtype_and_shape(hosts[0])
    if dtype.name not in DTYPES:
        return None
    _refuse_sharing(request, (*nest.shape, *shape))
    return Guest(get(HOST).stack(hosts, nest.shape), get(HOST))


def _as_it_is(guest: Guest, facts: Facts, stacker: Backend, request: Request) -> Array | None:
    """The array for the stacker to read, where that takes no plan; None in doubt, or if somebody watches."""
    direct = hot.get(stacker.name, {}).get(type(guest.array))
    if direct is None:
        return None
    if guest.room is stacker and not stacker.host_only:
        stays = facts.device == request.device and not (facts.history and request.grad == "detach")
        return guest.array if stays else None
    return direct(guest.array) if stacker.host_only and request.grad != "keep" else None


def _together(guests: list[Guest]) -> Backend | None:
    """The library of several arrays that have no memory before they are computed; None if nobody has such."""
    for room, guest in {guest.room: guest for guest in guests}.items():
        if guest.is_late() and sum(other.room is room for other in guests) > 1:
            return room
    return None


def _named(request: Request) -> str | None:
    """The dtype that was asked for by its name."""
    return None if request.dtype in UNNAMED else request.dtype


def _refuse_overflow(numbers: HostArray, dtype: str) -> None:
    """An integer of the list is never wrapped, though the dtype was named."""
    if numbers.size and numbers.dtype.kind in "iu" and category(dtype) == "int":
        least, most = exact_integers(dtype)
        if int(numbers.min()) < least or int(numbers.max()) > most:
            raise ValueLossError.because(
                f"make a {dtype} array of this list",
                "an integer does not fit",
                f"dtype={numbers.dtype.name!r}",
            )


def _one_place(elements: list[_Element], request: Request) -> Device:
    """Where they are, and all of them unless a device was named."""
    places = _distinct(element.facts.device for element in _placed(elements))
    if request.device is None and len(places) > 1:
        raise DeviceError.because(
            "stack the arrays of this list", f"they live on {', '.join(places)}", "align(*arrays) first"
        )
    return places[0]


def _refuse_to_cut(elements: list[_Element], target: Backend, request: Request) -> None:
    tracked = any(element.facts.history for element in elements)
    if request.grad == "keep" and tracked and not target.recording():
        raise GradientError.because(
            "stack the arrays of this list with grad='keep'",
            f"{target.name} records no history now",
            "grad=None",
        )


def _refuse_ragged(elements: list[_Element]) -> None:
    shapes = _distinct(element.facts.shape for element in elements)
    if len(shapes) > 1:
        raise OptionError.because(
            "make an array of this list",
            f"it holds shapes {', '.join(map(str, shapes))}",
            "arrays of one shape",
        )


def _distinct(things: Iterable[T]) -> list[T]:
    """Each once, in order. A size that is traced can be compared, and not hashed."""
    found: list[T] = []
    for thing in things:
        if thing not in found:
            found.append(thing)
    return found


def _refuse_sharing(request: Request, shape: tuple[int, ...]) -> None:
    if request.copy is False and 0 not in shape:
        raise CopyError.because(
            "make an array of this list with copy=False",
            "its elements lie apart in memory",
            "copy=None",
        )
