"""Make an array of numbers, or of a nested list of numbers and arrays.

Who stacks the arrays of a list? The target, if they are all its own or one of them has a history to keep;
otherwise the host, from views of them all. Either way every element is read once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xbridge import _host
from xbridge._conversion import Guest, convert, enter
from xbridge._devices import CPU
from xbridge._dtypes import category
from xbridge._plan import Request
from xbridge._registry import get
from xbridge.backends import HOST
from xbridge.errors import CopyError, DeviceError, OptionError

if TYPE_CHECKING:
    from xbridge._host import Nest
    from xbridge._protocol import Array, Backend, Facts


def from_numbers(obj: object, target: Backend, request: Request) -> Array:
    """Numbers, in the target's default dtypes unless one was asked for."""
    named = request.dtype if request.dtype != "default" else None
    device = target.resolve_device(request.device or CPU, CPU)
    host = _host.literal(obj, None if named else target.default_dtype("float", device))
    _refuse_sharing(request, host.shape)
    if named and host.dtype.kind in "iu" and category(named) == "int":
        _host.check(host, named)
    request = request._replace(dtype=named or "default", copy=None)
    return convert(Guest(host, get(HOST)), target, request)


class Members:
    """The arrays in a nested list, entered and compared."""

    def __init__(self, nest: Nest) -> None:
        self.shape, self.weak = nest.shape, nest.weak
        self.guests = [
            Guest(leaf, get(HOST)) if weak else enter(leaf)
            for leaf, weak in zip(nest.leaves, nest.weak, strict=True)
        ]
        self.facts = [guest.facts() for guest in self.guests]
        self.first = self.guests[nest.weak.index(False)].room
        _refuse_ragged(self.facts)

    def strong(self) -> list[Facts]:
        """The facts of what is no Python number."""
        return [facts for facts, weak in zip(self.facts, self.weak, strict=True) if not weak]

    def all_of(self, room: Backend) -> bool:
        """Whether a backend owns every array."""
        return all(weak or guest.room is room for guest, weak in zip(self.guests, self.weak, strict=True))

    def dtype(self) -> str:
        """The dtype that holds them all, as NumPy promotes."""
        names = [facts.dtype for facts in self.strong()]
        if not self.weak.count(True) and len(set(names)) == 1:
            return names[0]
        numbers = [g.array for g, weak in zip(self.guests, self.weak, strict=True) if weak]
        return _host.promote(names, numbers)


def members_of(obj: object) -> Members | None:
    """The arrays in a nested list; None if there are none."""
    return Members(_host.nest(obj)) if _host.is_nest(obj) else None


def from_members(members: Members, target: Backend, request: Request) -> Array:
    """The arrays of a list side by side in one array."""
    _refuse_sharing(request, (*members.shape, *members.facts[0].shape))
    places = list(dict.fromkeys(facts.device for facts in members.strong()))
    if len(places) > 1 and request.device is None:
        raise DeviceError.because(
            "stack the arrays of this list",
            f"they live on {', '.join(places)}",
            "align(*arrays) first",
        )
    named = request.dtype if request.dtype != "default" else None
    mixed = named is not None and len({facts.dtype for facts in members.facts}) > 1
    graph = target.autograd and any(facts.history for facts in members.facts)
    if members.all_of(target) or graph or mixed:
        stacker, place = target, request.device or places[0]
    else:
        stacker, place = get(HOST), None
    part = Request(place, named if named and mixed else members.dtype(), grad=request.grad)
    if not mixed:
        _refuse_loss(members, str(part.dtype))
    parts = [convert(guest, stacker, part) for guest in members.guests]
    stacked = Guest(stacker.stack(parts, members.shape), stacker)
    return convert(stacked, target, request._replace(copy=None))


def _refuse_loss(members: Members, dtype: str) -> None:
    """An integer that the common dtype cannot hold is no reason to round it."""
    for guest, facts in zip(members.guests, members.facts, strict=True):
        if category(facts.dtype) == "int" and facts.dtype != dtype:
            guest.room.check(guest.array, dtype)


def _refuse_ragged(facts: list[Facts]) -> None:
    shapes = list(dict.fromkeys(str(one.shape) for one in facts))
    if len(shapes) > 1:
        raise OptionError.because(
            "make an array of this list",
            f"it holds shapes {', '.join(shapes)}",
            "arrays of one shape",
        )


def _refuse_sharing(request: Request, shape: tuple[int, ...]) -> None:
    if request.copy is False and 0 not in shape:
        raise CopyError.because(
            "make an array of this list with copy=False",
            "its elements lie apart in memory",
            "copy=None",
        )
