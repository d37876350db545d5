"""Any one mistake in the transfer engine is caught: a wait left out, a buffer used too soon."""

from __future__ import annotations

import gc
import sys
import threading
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
    from typing import TypeAlias

SIZE = 5 * CHUNK + 7


def numbers(start: int) -> np.ndarray:
    """Bytes below 0xFF, and none where it would be in another piece."""
    return ((np.arange(SIZE) * 7 + start) % 251).astype(np.uint8)


def check_what_is_sent() -> None:
    """What arrives is what was there at the call, for whoever uses it next, on any stream."""
    source = numbers(1)
    there = xbridge.to_backend(source, "torch", device=KIND)
    source[:] = 0

    with api.stream(api.Stream()):
        assert (there.cpu().numpy() == numbers(1)).all()


def check_memory_that_is_still_used() -> None:
    """Work that the current stream still has to do on the memory does not reach what arrives."""
    for _ in range(2):
        torch.zeros(SIZE, dtype=torch.uint8, device=KIND).add_(3)
        there = xbridge.to_backend(numbers(2), "torch", device=KIND)

        assert (there.cpu().numpy() == numbers(2)).all()


def check_what_is_fetched() -> None:
    """What the current stream has yet to compute is on the host on return."""
    for start in (3, 4):
        x = torch.from_numpy(numbers(start)).to(KIND) + 1

        assert (xbridge.to_numpy(x) == numbers(start) + 1).all()


def check_packs() -> None:
    """Small tensors arrive as large ones do, there and back, and so does what comes after them."""
    with pytest.MonkeyPatch.context() as patch:
        use_sizes(patch, SIZES._replace(chunk=1024, buffers=1, least=1 << 20))
        packs_arrive()


def packs_arrive() -> None:
    for start in (5, 6):
        xs = [torch.from_numpy(numbers(start + i)[: 20 + i % 2]) for i in range(6)]
        there = _transfer.to_device_many(xs, xbridge.Device(DEVICE))
        more = _transfer.to_device_many([x + 1 for x in xs], xbridge.Device(DEVICE))
        back = _transfer.to_device_many(
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


def check_batches() -> None:
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


def check_results_that_are_kept() -> None:
    """What came back stays as it is when the only buffer is used again."""
    with pytest.MonkeyPatch.context() as patch:
        use_sizes(patch, SIZES._replace(chunk=4096, buffers=1, least=1 << 20))
        first, _ = [
            xbridge.tree.to_numpy([torch.from_numpy(a).to(KIND) for a in batch_of(start)])
            for start in (80, 90)
        ]
        for a, b in zip(batch_of(80), first, strict=True):
            assert (b == a).all()


def check_handles() -> None:
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


def check_memory_of_handles_that_this_thread_still_uses() -> None:
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


def check_memory_of_a_handle_on_its_way_back() -> None:
    """The memory from which a pack is copied is not used again before."""
    with pytest.MonkeyPatch.context() as patch:
        use_sizes(patch, SIZES._replace(chunk=4096, least=1 << 20))
        x = torch.from_numpy(numbers(11)).to(KIND)
        back = xbridge.transfer([x], "numpy")
        written = [torch.full((SIZE,), 3, dtype=torch.uint8, device=KIND) for _ in range(3)]
        api.current_stream().synchronize()
        assert (back.result()[0] == numbers(11)).all()
        assert len(written) == 3


def check_buffers_of_deleted_handles() -> None:
    """The buffer of a handle that nobody waited for is filled again only when its copy is done."""
    with pytest.MonkeyPatch.context() as patch:
        use_sizes(patch, SIZES._replace(chunk=4096, buffers=2, least=1 << 20))
        for start in (80, 90):
            first = xbridge.transfer(batch_of(start), "torch", device=KIND)
            queued: Any = first._future
            pending = queued._work[0]._finish()  # the tensors, which nobody has waited for
            del first, queued
            second = xbridge.tree.to_backend(batch_of(start + 3), "torch", device=KIND)
            for given, made in ((start, pending), (start + 3, second)):
                for a, x in zip(batch_of(given), made, strict=True):
                    assert (x.cpu().numpy() == a).all()


def check_a_result_of_another_thread() -> None:
    """It is complete for any stream, casts on the device included, also of what was there before."""
    for given in (numbers(7), torch.from_numpy(numbers(7)).to(KIND)):
        there = xbridge.transfer(given, "torch", device=KIND, dtype="int64").result()

        with api.stream(api.Stream()):
            assert (there.cpu().numpy() == numbers(7)).all()


def check_what_another_thread_reads() -> None:
    """Another thread reads what this one has asked for, on whatever stream."""
    side = api.Stream()
    with api.stream(side):
        x = torch.from_numpy(numbers(8)).to(KIND) + 1
        under_way = xbridge.transfer([x, x[:3]], "numpy")

    whole, some = under_way.result()
    assert (whole == numbers(8) + 1).all()
    assert (some == numbers(8)[:3] + 1).all()


def check_memory_that_this_thread_still_uses() -> None:
    """What this thread has dropped, and its stream not, is not written by the next transfer."""
    for _ in range(5):  # for a moment the other thread may have it too
        first = xbridge.transfer(numbers(9), "torch", device=KIND).result()
        later = first + 0
        del first
        second = xbridge.transfer(numbers(10), "torch", device=KIND).result()

        assert (later.cpu().numpy() == numbers(9)).all()
        assert (second.cpu().numpy() == numbers(10)).all()


def check_batches_that_come_ahead_of_their_use() -> None:
    """Each is there when it is handed out, and stays until the caller's stream is done with it."""
    batches = (numbers(i) for i in range(6))
    side = api.Stream()
    with api.stream(side):
        ahead = iter(xbridge.prefetch(batches, "torch", device=KIND))
        later = [batch + 1 for batch in ahead]

        for i, x in enumerate(later):
            assert (x.cpu().numpy() == numbers(i) + 1).all()


def check_batches_that_are_made_on_the_device() -> None:
    """What the iterable has asked for in its thread is on the host when it is handed out."""
    batches = ([torch.from_numpy(numbers(i)).to(KIND) + 1] for i in range(4))

    for i, (batch,) in enumerate(xbridge.prefetch(batches, "numpy")):
        assert (batch == numbers(i) + 1).all()


def check_that_nobody_waits_for_this_thread() -> None:
    """A transfer from the host goes on while the current stream computes."""
    computing = torch.ones(3, device=KIND) + 1
    asked = api.current_stream().record_event()
    xbridge.transfer(numbers(11), "torch", device=KIND, dtype="int64").result()

    assert not asked.query()
    assert computing.eq(2).all().item()


def check_buffers_that_are_freed_meanwhile() -> None:
    """Whatever is under way arrives, however often unused buffers are freed."""
    wait, home = api.Event.synchronize, threading.get_ident()
    freeing: list[bool] = []

    def free_and_wait(event: Any) -> None:
        if threading.get_ident() == home and not freeing:
            freeing.append(True)
            xbridge.release_buffers()
            freeing.clear()
        wait(event)

    with pytest.MonkeyPatch.context() as patch:
        use_sizes(patch, SIZES._replace(chunk=4096, buffers=3, least=1 << 14, fused=1 << 14))
        computed = [torch.from_numpy(a).to(KIND) + 1 for a in batch_of(12)]
        large = np.arange(1 << 14, dtype=np.int16)
        patch.setattr(api.Event, "synchronize", free_and_wait)
        back = xbridge.transfer(computed, "numpy")
        sent = xbridge.transfer(batch_of(13), "torch", device=KIND)
        there = xbridge.to_backend(large, "torch", device=KIND)
        assert (xbridge.to_numpy(there) == large).all()
        for a, b in zip(batch_of(12), xbridge.tree.to_numpy(computed), strict=True):
            assert (b == a + 1).all()
        for a, b in zip(batch_of(12), back.result(), strict=True):
            assert (b == a + 1).all()
        for a, x in zip(batch_of(13), sent.result(), strict=True):
            assert (x.cpu().numpy() == a).all()


CHECKS = [check for name, check in dict(globals()).items() if name.startswith("check_")]


Plant: TypeAlias = "Callable[[pytest.MonkeyPatch], None]"


def left_out(cls: type, method: str, caller: str) -> Plant:
    """The mistake of a function that does not call a method, such as a wait."""
    real = getattr(cls, method)

    def call(*args: Any, **options: Any) -> Any:
        return None if sys._getframe(1).f_code.co_qualname == caller else real(*args, **options)

    return lambda patch: patch.setattr(cls, method, call)


def marked_early(module: ModuleType) -> Plant:
    """The mistake of an event that is recorded before the copy for which it stands."""

    def queue(goal: torch.Tensor, source: torch.Tensor, pinned: Any, stream: Any) -> None:
        pinned.event.record(stream)
        goal.copy_(source, non_blocking=True)

    return lambda patch: patch.setattr(module, "queue_copy", queue)


def instead(home: object, name: str, wrong: Callable[..., Any]) -> Plant:
    """The mistake of a function that does something else. It has the right function as its first argument."""
    real = getattr(home, name)
    return lambda patch: patch.setattr(home, name, lambda *args, **options: wrong(real, *args, **options))


def no_wait(real: Callable[..., Any], slot: Any) -> Any:
    """Take a buffer for the next user as if its last copy were known to be done."""
    slot.is_ready = True
    return real(slot)


def free_all(real: Callable[..., None], buffers: Any) -> None:
    """Free the memory of all buffers, so that others write to it."""
    real(buffers)
    for pinned in gc.get_objects():
        if type(pinned) is _pinned.PinnedBuffer:
            pinned.host.fill(0)


MISTAKES: dict[str, Plant] = {
    "half a buffer is filled again before it is copied": left_out(api.Event, "synchronize", "_send"),
    "half a buffer is read before the copy into it": left_out(api.Event, "synchronize", "_fetch"),
    "no wait for what the current stream does": left_out(api.Event, "synchronize", "Crew._share"),
    "a piece too few": instead(_staging, "pieces", lambda real, *args: [*real(*args)][:-1]),
    "half a buffer is used twice at a time": instead(
        _staging, "cycle", lambda real, halves: real(halves[:1])
    ),
    "a copy out of half a buffer is not marked": left_out(api.Event, "record", "_send"),
    "a copy into half a buffer is not marked": left_out(api.Event, "record", "_fetch.<locals>.ask"),
    "a copy of a pack of arrays is marked before it is queued": marked_early(_packs),
    "a copy of a pack of tensors is marked before it is queued": marked_early(_transfer),
    "a call returns with work under way": left_out(_pinned.PinnedBuffer, "wait", "Loan.__exit__"),
    "the buffer of a deleted handle is used too early": instead(_pinned._Slot, "take", no_wait),
    "nobody waits for the copy of a deleted handle": left_out(_pinned.PinnedBuffer, "wait", "_Slot.take"),
    "buffers are freed while they are in use": instead(_pinned.PinnedBuffers, "release", free_all),
    "results are views of a pinned buffer": instead(
        _packs,
        "_unpack_on_host",
        lambda real, parts, pinned: [x for part in parts for x in _packs._split_block(pinned.host, part)],
    ),
    "a pack is read before it is there": left_out(api.Event, "synchronize", "_carry_packs.<locals>.land"),
    "a pack begins where another one does": instead(
        _packs, "_make_part", lambda real, batch, dtype, start, *args: real(batch, dtype, 0, *args)
    ),
    "arrays begin where no memory would": lambda patch: patch.setattr(_packs, "ALIGNMENT", 16),
    "the side does not wait for the pack": left_out(api.Stream, "wait_event", "_queue_fetch_aside"),
    "the allocator does not hear of the side": left_out(torch.Tensor, "record_stream", "_queue_fetch_aside"),
    "the allocator does not hear of the consumer": left_out(
        torch.Tensor, "record_stream", "begin_send.<locals>.queue"
    ),
    "a handle returns before the copy": left_out(api.Event, "synchronize", "Pending.wait"),
    "a pack in which all begin at the same place": instead(
        _transfer, "PackSegment", lambda real, xs, chosen, start, pitch: real(xs, chosen, 0, pitch)
    ),
    "no wait for what the thread has asked for": left_out(
        api.Event, "synchronize", "threaded.<locals>.in_thread"
    ),
    "unfinished data is handed out": left_out(api.Stream, "synchronize", "threaded.<locals>.in_thread"),
    "the allocator does not hear of the stream of the thread": left_out(
        torch.Tensor, "record_stream", "threaded.<locals>.in_thread"
    ),
    "the consumer's own stream is used": instead(
        _threads, "worker_stream", lambda real, place: api.current_stream(place)
    ),
}


def caught(check: Callable[[], None], pace: float | None) -> bool:
    """Whether the check fails; what the engine left undone is done afterwards."""
    with paced(pace):
        try:
            check()
        except (AssertionError, RuntimeError, UserWarning):  # torch sees memory that is too small for a pack
            return True
        finally:
            api.synchronize()
    return False


@pytest.mark.parametrize("pace", PACES.values(), ids=PACES)
@pytest.mark.parametrize("check", CHECKS)
def test_engine__keeps_each_promise_at_every_pace(
    check: Callable[[], None], pace: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transfer engine passes all checks, whether the device is fast or slow."""
    if check is check_that_nobody_waits_for_this_thread and (KIND == "cuda" or pace is not None):
        pytest.skip("nobody can see that: whoever computes may be done")
    use_small_buffers(monkeypatch)
    with paced(pace):
        check()


@pytest.mark.parametrize("pace", RUSHED.values(), ids=RUSHED)
@pytest.mark.parametrize("plant", MISTAKES.values(), ids=MISTAKES)
def test_engine__each_planted_mistake_is_caught(
    plant: Plant, pace: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each planted mistake makes at least one of the checks fail."""
    plant(monkeypatch)

    def is_seen(check: Callable[[], None]) -> bool:
        use_small_buffers(monkeypatch)
        return caught(check, pace)

    assert any(map(is_seen, CHECKS))
