"""One array, one conversion: find its backend, have the steps planned, run them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from xbridge import _host
from xbridge._decide import across, within
from xbridge._plan import in_words, run
from xbridge._registry import backend_for, get
from xbridge.backends import HOST

if TYPE_CHECKING:
    from xbridge._plan import Request
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


def enter(x: object, *, must_share: bool = False, fetch: bool = False) -> Guest:
    """`x` as an array of some backend. What nobody owns is admitted as a host array.

    With `fetch`, from whatever device: that is for who asked for the host.
    """
    room = backend_for(type(x))
    if room is None or isinstance(x, room.scalars):
        return Guest(_host.admit(x, must_share=must_share, fetch=fetch), get(HOST), foreign=room is None)
    return Guest(x, room)


def convert(guest: Guest, target: Backend, request: Request) -> Array:
    """The array in the target's library, as requested."""
    source = guest.room
    refused = source.refusal(guest.array, leaving=guest.foreign or source is not target)
    if refused:
        raise refused.error.because(in_words(source, guest.facts(), target), refused.why, refused.do)
    if source is target:
        return run(guest.array, within(source, guest.array, request))
    return run(guest.array, across(source, target, guest.array, request))
