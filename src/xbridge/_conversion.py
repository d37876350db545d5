"""One array, one conversion: find its backend, have the steps planned, run them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from xbridge import _host
from xbridge._decide import across, within
from xbridge._plan import in_words
from xbridge._registry import backend_for, get
from xbridge._run import run
from xbridge.backends import HOST

if TYPE_CHECKING:
    from xbridge._plan import Plan, Request
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


def plan(guest: Guest, target: Backend, request: Request) -> Plan:
    """What is to be done to it, or why it cannot be done."""
    source = guest.room
    refused = source.refusal(guest.array, leaving=guest.foreign or source is not target)
    if refused:
        raise refused.error.because(in_words(source, guest.facts(), target), refused.why, refused.do)
    if source is target:
        return within(source, guest.array, request)
    return across(source, target, guest.array, request)
