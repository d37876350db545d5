"""Wrong ways to move a tensor are caught by the tests of the transfers, every time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from emulated import test_transfers as transfers
from emulated.there import RUSHED, api, paced
from inside import get_backend

if TYPE_CHECKING:
    from collections.abc import Callable

    Move = Callable[[torch.Tensor, str], torch.Tensor]


def without_waiting(x: torch.Tensor, device: str) -> torch.Tensor:
    """Return while the copy is under way."""
    return x.to(device, non_blocking=True)


def asking(x: torch.Tensor, device: str) -> torch.Tensor:
    """Ask whether the copy is done, and take no notice of the answer."""
    y = x.to(device, non_blocking=True)
    api.current_stream().query()
    return y


def unordered(x: torch.Tensor, device: str) -> torch.Tensor:
    """Copy on a stream that has not waited for the one that makes the tensor."""
    with api.stream(api.Stream()):
        return x.to(device)


def unwaited(x: torch.Tensor, device: str) -> torch.Tensor:
    """Copy on a stream of its own, in order, and let nobody wait for it."""
    side = api.Stream()
    side.wait_stream(api.current_stream())
    with api.stream(side):
        return x.to(device, non_blocking=True)


def through_pinned_memory(x: torch.Tensor, device: str) -> torch.Tensor:
    """Read the pinned memory before the copy into it is done."""
    if device == "cpu":
        return torch.empty_like(x, device="cpu", pin_memory=True).copy_(x, non_blocking=True).clone()
    return x.to(device)


WRONG: dict[str, Move] = {
    move.__name__: move
    for move in (
        without_waiting,
        asking,
        unordered,
        unwaited,
        through_pinned_memory,
    )
}
RESULT = transfers.test_to_numpy__result_is_complete_on_return
SOURCE = transfers.test_to_backend__source_may_be_written_on_return
PROMISES: list[tuple[Callable[[Any], None], Any]] = [
    *((RESULT, way) for way in transfers.BACK.values()),
    *((SOURCE, way) for way in transfers.SOURCES.values()),
]


def broken(promise: Callable[[Any], None], way: object) -> bool:
    """Whether a promise does not hold."""
    try:
        promise(way)
    except AssertionError:
        return True
    finally:
        api.synchronize()
    return False


@pytest.mark.parametrize("pace", RUSHED.values(), ids=RUSHED)
@pytest.mark.parametrize("move", WRONG.values(), ids=WRONG)
def test_to_device__wrong_way_breaks_a_promise(
    move: Move, pace: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wrong way to move a tensor fails a test of the transfers."""
    monkeypatch.setattr(get_backend("torch"), "to_device", lambda x, device: move(x, str(device)))

    with paced(pace):
        assert any(broken(promise, way) for promise, way in PROMISES)


def test_to_device__right_way_keeps_the_promises() -> None:
    """The same tests pass with the backend's own function."""
    assert not any(broken(promise, way) for promise, way in PROMISES)
