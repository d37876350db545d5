"""Any one mistake in the transfer engine is caught: a wait left out, a buffer used too soon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from emulated.engine import CHUNK, SIZES, use_sizes, use_small_buffers
from emulated.there import DEVICE, KIND, PACES, RUSHED, api, paced

import xbridge
import xbridge.tree
from xbridge.backends.torch import _packs, _pinned, _staging, _threads, _transfer

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
        use_sizes(patch, SIZES._replace(chunk=1024, buffers=1, least=1 << 20))
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


BATCH = (20, 21, 21, 300, 7)


def batch_of(start: int) -> list[np.ndarray]:
    """Small arrays of two dtypes, in more than one pack."""
    return [numbers(start + i)[:n].astype(("u1", "i2")[i % 2]) for i, n in enumerate(BATCH)]


def check_batches(engine: ModuleType) -> None:
    """All arrays of a batch arrive, each where memory could begin, and come back when they are computed."""
    with pytest.MonkeyPatch.context() as patch:
        use_sizes(patch, SIZES._replace(chunk=1024, buffers=3, least=1 << 20))
        for start in (20, 40):
            given = batch_of(start)
            there = xbridge.tree.to_backend(given, "torch", device=KIND)
            back = xbridge.tree.to_numpy([x + 1 for x in there])
            for a in given:
                a[:] = 0
            with api.stream(api.Stream()):
                for a, x, b in zip(batch_of(start), there, back, strict=True):
                    assert (x.cpu().numpy() == a).all()
                    assert (b == a + 1).all()
                    assert x.storage_offset() * x.itemsize % 256 == 0


def check_results_that_are_kept(engine: ModuleType) -> None:
    """What came back stays as it is when the only buffer is used again."""
    with pytest.MonkeyPatch.context() as patch:
        use_sizes(patch, SIZES._replace(chunk=4096, buffers=1, least=1 << 20))
        first, _ = [
            xbridge.tree.to_numpy([torch.from_numpy(a).to(KIND) for a in batch_of(start)])
            for start in (80, 90)
        ]
        for a, b in zip(batch_of(80), first, strict=True):
            assert (b == a).all()


def check_handles(engine: ModuleType) -> None:
    """What a handle returns has arrived: all that this stream computed before, and nothing of later work."""
    with pytest.MonkeyPatch.context() as patch:
        use_sizes(patch, SIZES._replace(chunk=4096, buffers=3, least=1 << 20))
        for start in (50, 60, 70):
            side = api.Stream()
            with api.stream(side):
                computed = [torch.from_numpy(a).to(KIND) + 1 for a in batch_of(start)]
                back = xbridge.transfer(computed, "numpy")
                for x in computed:
                    x.zero_()
                del computed, x
                later = [torch.full((n,), 9, device=KIND) for n in (1524, 2048)]
                given = batch_of(start + 3)
                sent = xbridge.transfer(given, "torch", device=KIND)
                for a in given:
                    a[:] = 0
            with api.stream(api.Stream()):
                for a, b in zip(batch_of(start), back.result(), strict=True):
                    assert (b == a + 1).all()
                for a, x in zip(batch_of(start + 3), sent.result(), strict=True):
                    assert (x.cpu().numpy() == a).all()
            assert len(later) == 2


def check_memory_of_handles_that_this_thread_still_uses(engine: ModuleType) -> None:
    """What this thread has dropped, and its stream not, is not written by the next transfer."""
    with pytest.MonkeyPatch.context() as patch:
        use_sizes(patch, SIZES._replace(chunk=4096, least=1 << 20))
        for _ in range(3):
            first = xbridge.transfer([numbers(9)], "torch", device=KIND).result()
            later = first[0] + 0
            del first
            (second,) = xbridge.transfer([numbers(10)], "torch", device=KIND).result()
            assert (later.cpu().numpy() == numbers(9)).all()
            assert (second.cpu().numpy() == numbers(10)).all()


def check_memory_of_a_handle_on_its_way_back(engine: ModuleType) -> None:
    """The memory from which a pack is copied is not used again before."""
    with pytest.MonkeyPatch.context() as patch:
        use_sizes(patch, SIZES._replace(chunk=4096, least=1 << 20))
        x = torch.from_numpy(numbers(11)).to(KIND)
        back = xbridge.transfer([x], "numpy")
        written = [torch.full((SIZE,), 3, dtype=torch.uint8, device=KIND) for _ in range(3)]
        api.current_stream().synchronize()
        assert (back.result()[0] == numbers(11)).all()
        assert len(written) == 3


def check_buffers_of_deleted_handles(engine: ModuleType) -> None:
    """The buffer of a handle that nobody waited for is filled again only when its copy is done."""
    with pytest.MonkeyPatch.context() as patch:
        use_sizes(patch, SIZES._replace(chunk=4096, buffers=2, least=1 << 20))
        for start in (80, 90):
            first = xbridge.transfer(batch_of(start), "torch", device=KIND)
            queued: Any = first._future
            pending = queued._pending._finish()  # the tensors, which nobody has waited for
            del first, queued
            second = xbridge.tree.to_backend(batch_of(start + 3), "torch", device=KIND)
            for given, made in ((start, pending), (start + 3, second)):
                for a, x in zip(batch_of(given), made, strict=True):
                    assert (x.cpu().numpy() == a).all()


def check_a_result_of_another_thread(engine: ModuleType) -> None:
    """It is complete for any stream, casts on the device included, also of what was there before."""
    for given in (numbers(7), torch.from_numpy(numbers(7)).to(KIND)):
        there = xbridge.transfer(given, "torch", device=KIND, dtype="int64").result()

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


def marked_early(copy: str, mark: str) -> tuple[str, str]:
    """The mistake of an event that is recorded before the copy for which it stands."""
    return copy + mark, mark + copy


STAGING = {
    "half a buffer is filled again before it is copied": (
        "        half.event.synchronize()  # the copy out of this half\n",
        "",
    ),
    "half a buffer is read before the copy into it": (
        "        half.event.synchronize()  # the copy into this half\n",
        "",
    ),
    "no wait for what the current stream does": (
        "        api.current_stream(self.buffers.device).record_event().synchronize()\n",
        "",
    ),
    "a piece too few": ("            start = stop\n", "            start = stop - 1\n"),
    "half a buffer is used twice at a time": (
        "halves = cycle(pinned.halves)",
        "halves = cycle(pinned.halves[:1])",
    ),
    "the copy out of half a buffer is marked before it is queued": marked_early(
        "        there.copy_(half.buffer[:size], non_blocking=True)\n",
        "        half.event.record(pinned.stream)\n",
    ),
    "the copy into half a buffer is marked before it is queued": marked_early(
        "            half.buffer[: len(host)].copy_(there, non_blocking=True)\n",
        "            half.event.record(pinned.stream)\n",
    ),
}
PINNED = {
    "a buffer is given back with work under way": ("            if not passed:\n", "            if False:\n"),
    "the buffer of a deleted handle is used before its copy is done": (
        "(self._free if passed else self._unawaited)",
        "self._free",
    ),
    "nobody waits for the copy of a deleted handle": (
        "            pinned = self._unawaited.popleft()\n            pinned.wait()\n",
        "            pinned = self._unawaited.popleft()\n",
    ),
}
PACKS = {
    "a pack to the device is marked before it is queued": marked_early(
        "    there.copy_(pinned.buffer[:stop], non_blocking=True)\n",
        "    pinned.event.record(stream)\n",
    ),
    "a pack to the host is marked before it is queued": marked_early(
        "        pinned.buffer[: len(there)].copy_(there, non_blocking=True)\n",
        "        pinned.event.record(stream)\n",
    ),
    "a pack at the side is marked before it is queued": marked_early(
        "            pinned.buffer[: len(there)].copy_(there, non_blocking=True)\n",
        "            pinned.event.record(pinned.stream)\n",
    ),
    "results are views of a pinned buffer": (
        "block = pinned.host[: parts[-1].stop].copy()",
        "block = pinned.host[: parts[-1].stop]",
    ),
    "a pack is read before it is there": ("        pinned.event.synchronize()  # its copy\n", ""),
    "a pack begins where another one does": (
        "pack.append(_make_part(batch, dtype, used, ",
        "pack.append(_make_part(batch, dtype, 0, ",
    ),
    "no gap after an array": ("    if any(gaps):\n", "    if len(gaps) > 99:\n"),
    "the side does not wait for the pack": (
        "        pinned.stream.wait_event(buffers.api.current_stream(place).record_event())\n",
        "",
    ),
    "the allocator does not hear of the side": ("        there.record_stream(pinned.stream)\n", ""),
    "the allocator does not hear of the consumer": (
        "        made[0].record_stream(mine)  # one memory for all\n",
        "",
    ),
    "a handle returns before the copy": (
        "        if pinned is not None and seconds is None:\n",
        "        if pinned is not None and seconds is None:\n            return True\n",
    ),
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
        except (AssertionError, UserWarning):  # torch warns of memory that is too small for a pack
            return True
        finally:
            api.synchronize()
    return False


@pytest.mark.parametrize("pace", PACES.values(), ids=PACES)
@pytest.mark.parametrize("check", CHECKS)
def test_engine__keeps_each_promise_at_every_pace(
    check: Callable[[ModuleType], None], pace: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transfer engine passes all checks, whether the device is fast or slow."""
    if check is check_that_nobody_waits_for_this_thread and (KIND == "cuda" or pace is not None):
        pytest.skip("nobody can see that: whoever computes may be done")
    with paced(pace):
        check(use_small_buffers(monkeypatch))


MISTAKES: dict[str, dict[str, Any]] = {
    f"{what} ({module.__name__.rpartition('._')[2]})": {"module": module, "right": right, "wrong": wrong}
    for module, mistakes in {
        _staging: STAGING,
        _pinned: PINNED,
        _packs: PACKS,
        _transfer: CROSSING,
        _threads: THREADED,
    }.items()
    for what, (right, wrong) in mistakes.items()
}


@pytest.mark.parametrize("pace", RUSHED.values(), ids=RUSHED)
@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_engine__each_planted_mistake_is_caught(
    mistake: dict[str, Any], pace: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each planted mistake makes at least one of the checks fail."""
    assert any(caught(check, use_small_buffers(monkeypatch, **mistake), pace) for check in CHECKS)
