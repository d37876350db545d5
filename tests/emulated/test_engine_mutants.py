"""Any one mistake in the transfer engine is caught: a wait left out, a buffer used too soon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from emulated.engine import CHUNK, use_sizes, use_small_buffers
from emulated.there import DEVICE, KIND, PACES, RUSHED, api, paced

import xbridge
from xbridge.backends.torch import _pinned

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

SIZE = 5 * CHUNK + 7


def numbers(start: int) -> np.ndarray:
    """Bytes below 0xFF, and none where it would be in another piece."""
    return ((np.arange(SIZE) * 7 + start) % 251).astype(np.uint8)


def check_what_is_sent(engine: ModuleType) -> None:
    """What arrives is what was there at the call, for whoever uses it next, on any stream."""
    source = numbers(1)
    there = xbridge.to_backend(source, "torch", device=KIND)
    source[:] = 0

    with api.stream(api.Stream()):
        assert (there.cpu().numpy() == numbers(1)).all()


def check_memory_that_is_still_used(engine: ModuleType) -> None:
    """Work that the current stream still has to do on the memory does not reach what arrives."""
    for _ in range(2):
        torch.zeros(SIZE, dtype=torch.uint8, device=KIND).add_(3)
        there = xbridge.to_backend(numbers(2), "torch", device=KIND)

        assert (there.cpu().numpy() == numbers(2)).all()


def check_what_is_fetched(engine: ModuleType) -> None:
    """What the current stream has yet to compute is on the host on return."""
    for start in (3, 4):
        x = torch.from_numpy(numbers(start)).to(KIND) + 1

        assert (xbridge.to_numpy(x) == numbers(start) + 1).all()


def check_packs(engine: ModuleType) -> None:
    """Small tensors arrive as large ones do, there and back, and so does what comes after them."""
    with pytest.MonkeyPatch.context() as patch:
        use_sizes(patch, _pinned.Sizes(chunk=1024, buffers=1, least=1 << 20), engine)
        packs_arrive(engine)


def packs_arrive(engine: ModuleType) -> None:
    for start in (5, 6):
        xs = [torch.from_numpy(numbers(start + i)[: 20 + i % 2]) for i in range(6)]
        there = engine.to_device_many(xs, xbridge.Device(DEVICE))
        more = engine.to_device_many([x + 1 for x in xs], xbridge.Device(DEVICE))
        back = engine.to_device_many(
            [x + 2 for x in there], xbridge.Device("cpu")
        )  # not what the buffer holds
        with api.stream(api.Stream()):
            for x, y, z, more_of_it in zip(xs, there, back, more, strict=True):
                assert torch.equal(y.cpu(), x)
                assert torch.equal(more_of_it.cpu(), x + 1)
                assert torch.equal(z, x + 2)


def check_a_result_of_another_thread(engine: ModuleType) -> None:
    """It is complete for any stream, casts on the device included."""
    there = xbridge.transfer(numbers(7), "torch", device=KIND, dtype="int64").result()

    with api.stream(api.Stream()):
        assert (there.cpu().numpy() == numbers(7)).all()


def check_what_another_thread_reads(engine: ModuleType) -> None:
    """Another thread reads what this one has asked for, on whatever stream."""
    side = api.Stream()
    with api.stream(side):
        x = torch.from_numpy(numbers(8)).to(KIND) + 1
        under_way = xbridge.transfer([x, x[:3]], "numpy")

    whole, some = under_way.result()
    assert (whole == numbers(8) + 1).all()
    assert (some == numbers(8)[:3] + 1).all()


def check_memory_that_this_thread_still_uses(engine: ModuleType) -> None:
    """What this thread has dropped, and its stream not, is not written by the next transfer."""
    for _ in range(5):  # for a moment the other thread may have it too
        first = xbridge.transfer(numbers(9), "torch", device=KIND).result()
        later = first + 0
        del first
        second = xbridge.transfer(numbers(10), "torch", device=KIND).result()

        assert (later.cpu().numpy() == numbers(9)).all()
        assert (second.cpu().numpy() == numbers(10)).all()


def check_batches_that_come_ahead_of_their_use(engine: ModuleType) -> None:
    """Each is there when it is handed out, and stays until the caller's stream is done with it."""
    batches = (numbers(i) for i in range(6))
    side = api.Stream()
    with api.stream(side):
        ahead = iter(xbridge.prefetch(batches, "torch", device=KIND))
        later = [batch + 1 for batch in ahead]

        for i, x in enumerate(later):
            assert (x.cpu().numpy() == numbers(i) + 1).all()


def check_batches_that_are_made_on_the_device(engine: ModuleType) -> None:
    """What the iterable has asked for in its thread is on the host when it is handed out."""
    batches = ([torch.from_numpy(numbers(i)).to(KIND) + 1] for i in range(4))

    for i, (batch,) in enumerate(xbridge.prefetch(batches, "numpy")):
        assert (batch == numbers(i) + 1).all()


def check_that_nobody_waits_for_this_thread(engine: ModuleType) -> None:
    """A transfer from the host goes on while the current stream computes."""
    computing = torch.ones(3, device=KIND) + 1
    asked = api.current_stream().record_event()
    xbridge.transfer(numbers(11), "torch", device=KIND, dtype="int64").result()

    assert not asked.query()
    assert computing.eq(2).all().item()


CHECKS = [check for name, check in dict(globals()).items() if name.startswith("check_")]

STAGING = {
    "a buffer is filled again before it is copied": (
        "        self.stream.synchronize()  # the next piece will be in the same buffer\n",
        "",
    ),
    "a buffer is read before the copy into it": (
        "        self.stream.synchronize()  # the copy into the buffer\n",
        "",
    ),
    "no wait for what the current stream does": ("                pinned.stream.wait_event(asked)\n", ""),
    "a lane is given back with work under way": (
        "                pinned.stream.synchronize()\n",
        "                pass\n",
    ),
    "a piece too few": ("            start = stop\n", "            start = stop - 1\n"),
}
CROSSING = {
    "a pack in which all begin at the same place": (
        "start, done = start + pitch * len(part), done",
        "done = done",
    ),
}
THREADED = {
    "no wait for what the thread has asked for": ("asked.synchronize()", "pass"),
    "unfinished data is handed out": ("side.synchronize()", "pass"),
    "the allocator does not hear of the consumer": ("y.record_stream(mine[y.device])", "pass"),
    "the consumer's own stream is used": ("else api.stream(side):", "else api.stream(mine[place]):"),
}


def caught(check: Callable[[ModuleType], None], engine: ModuleType, pace: float | None) -> bool:
    """Whether the check fails; what the engine left undone is done afterwards."""
    with paced(pace):
        try:
            check(engine)
        except AssertionError:
            return True
        finally:
            api.synchronize()
    return False


@pytest.mark.parametrize("pace", PACES.values(), ids=PACES)
@pytest.mark.parametrize("check", CHECKS)
def test_the_engine_is_right(
    check: Callable[[ModuleType], None], pace: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if check is check_that_nobody_waits_for_this_thread and (KIND == "cuda" or pace is not None):
        pytest.skip("nobody can see that: whoever computes may be done")
    with paced(pace):
        check(use_small_buffers(monkeypatch))


MISTAKES = {
    **{what: {"staging": right, "instead": wrong} for what, (right, wrong) in STAGING.items()},
    **{what: {"crossing": right, "instead": wrong} for what, (right, wrong) in CROSSING.items()},
    **{what: {"threaded": right, "instead": wrong} for what, (right, wrong) in THREADED.items()},
}


@pytest.mark.parametrize("pace", RUSHED.values(), ids=RUSHED)
@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_it_is_caught(
    mistake: dict[str, str], pace: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert any(caught(check, use_small_buffers(monkeypatch, **mistake), pace) for check in CHECKS)
