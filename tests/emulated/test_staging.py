"""A staged transfer is right, on a real accelerator and the pretend one; any one mistake in it is caught."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest
from emulated import staging
from emulated.checks import CHECKS
from emulated.staging import Ring
from emulated.there import KIND, PACES, RUSHED, api, paced

if TYPE_CHECKING:
    from collections.abc import Callable

every_pace = pytest.mark.parametrize("pace", PACES.values(), ids=PACES)

WAITS = {
    "for the memory of the target": "self.stream.wait_stream(self.api.current_stream())  # the memory",
    "for the buffer to be free": "event.synchronize()  # the last copy out of it",
    "for the copies, by the consumer": "self.api.current_stream().wait_stream(self.stream)",
    "for the producer": "self.stream.wait_stream(self.api.current_stream())  # whoever makes it",
    "for the copy into the buffer": "event.synchronize()  # the copy into it",
}
MISTAKES = {
    **{f"no wait {what}": (line, f"...  # {line}") for what, line in WAITS.items()},
    "a buffer is used again too soon": ("== len(self.buffers):", "== len(self.buffers) + 1:"),
    "the event comes before the copy": (
        "                buffer.copy_(part, non_blocking=True)\n            event.record(self.stream)\n",
        "                event.record(self.stream)\n                buffer.copy_(part, non_blocking=True)\n",
    ),
}


def mutant(right: str, wrong: str) -> type[Ring]:
    """The ring with one mistake in it."""
    source = inspect.getsource(staging)
    assert source.count(right) == 1
    names: dict[str, Any] = {"__name__": "mutant"}
    exec(compile(source.replace(right, wrong), "mutant", "exec"), names)
    found: type[Ring] = names["Ring"]
    return found


def caught(check: Callable[[Ring], None], ring: Ring, pace: float | None) -> bool:
    """Whether the check fails; what the ring left undone is done afterwards."""
    with paced(pace):
        try:
            check(ring)
        except AssertionError:
            return True
        finally:
            api.synchronize()
    return False


@every_pace
@pytest.mark.parametrize("check", CHECKS)
def test_a_staged_transfer_is_right(check: Callable[[Ring], None], pace: float | None) -> None:
    with paced(pace):
        check(Ring(KIND))


@pytest.mark.parametrize("pace", RUSHED.values(), ids=RUSHED)
@pytest.mark.parametrize(("right", "wrong"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_it_is_caught(right: str, wrong: str, pace: float | None) -> None:
    wrong_ring = mutant(right, wrong)

    assert any(caught(check, wrong_ring(KIND), pace) for check in CHECKS)
