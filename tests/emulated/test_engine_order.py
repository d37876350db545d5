"""What the transfer engine waits for: without one of the waits, one of these promises would be broken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from emulated.engine import CHUNK, SIZES, use_sizes, use_small_buffers
from emulated.there import DEVICE, KIND, PACES, api, paced

import xbridge
import xbridge.tree
from xbridge.backends.torch import _transfer

if TYPE_CHECKING:
    from collections.abc import Iterator

transfers: Any = _transfer.transfers
SIZE = 5 * CHUNK + 7


@pytest.fixture(params=PACES.values(), ids=list(PACES), autouse=True)
def pace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Small buffers, and a device that is fast or slow."""
    use_small_buffers(monkeypatch)
    with paced(request.param):
        yield request.param


def numbers(start: int) -> np.ndarray:
    """Bytes below 0xFF, and none where it would be in another piece."""
    return ((np.arange(SIZE) * 7 + start) % 251).astype(np.uint8)


def test_engine__memory_that_is_still_used() -> None:
    """Work that the current stream still has to do on the memory does not reach what arrives."""
    for _ in range(2):
        torch.zeros(SIZE, dtype=torch.uint8, device=KIND).add_(3)
        there = xbridge.to_backend(numbers(2), "torch", device=KIND)

        assert (there.cpu().numpy() == numbers(2)).all()


def test_engine__packs() -> None:
    """Small tensors arrive as large ones do, there and back, and so does what comes after them."""
    with pytest.MonkeyPatch.context() as patch:
        use_sizes(patch, SIZES._replace(chunk=1024, buffers=1, least=1 << 20))
        packs_arrive()


def packs_arrive() -> None:
    for start in (5, 6):
        xs = [torch.from_numpy(numbers(start + i)[: 20 + i % 2]) for i in range(6)]
        there = transfers.to_device_many(xs, xbridge.Device(DEVICE))
        more = transfers.to_device_many([x + 1 for x in xs], xbridge.Device(DEVICE))
        back = transfers.to_device_many(
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


def test_engine__batches() -> None:
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


def test_engine__a_result_of_another_thread() -> None:
    """It is complete for any stream, casts on the device included, also of what was there before."""
    for given in (numbers(7), torch.from_numpy(numbers(7)).to(KIND)):
        there = xbridge.transfer(given, "torch", device=KIND, dtype="int64").result()

        with api.stream(api.Stream()):
            assert (there.cpu().numpy() == numbers(7)).all()


def test_engine__what_another_thread_reads() -> None:
    """Another thread reads what this one has asked for, on whatever stream."""
    side = api.Stream()
    with api.stream(side):
        x = torch.from_numpy(numbers(8)).to(KIND) + 1
        under_way = xbridge.transfer([x, x[:3]], "numpy")

    whole, some = under_way.result()
    assert (whole == numbers(8) + 1).all()
    assert (some == numbers(8)[:3] + 1).all()


def test_engine__memory_that_this_thread_still_uses() -> None:
    """What this thread has dropped, and its stream not, is not written by the next transfer."""
    for _ in range(5):  # for a moment the other thread may have it too
        first = xbridge.transfer(numbers(9), "torch", device=KIND, dtype="int64").result()
        later = first + 0
        del first
        second = xbridge.transfer(numbers(10), "torch", device=KIND, dtype="int64").result()

        assert (later.cpu().numpy() == numbers(9)).all()
        assert (second.cpu().numpy() == numbers(10)).all()


def test_engine__batches_that_come_ahead_of_their_use() -> None:
    """Each is there when it is handed out, and stays until the caller's stream is done with it."""
    batches = (numbers(i) for i in range(6))
    side = api.Stream()
    with api.stream(side):
        ahead = iter(xbridge.prefetch(batches, "torch", device=KIND))
        later = [batch + 1 for batch in ahead]

        for i, x in enumerate(later):
            assert (x.cpu().numpy() == numbers(i) + 1).all()


def test_engine__batches_that_are_made_on_the_device() -> None:
    """What the iterable has asked for in its thread is on the host when it is handed out."""
    batches = ([torch.from_numpy(numbers(i)).to(KIND) + 1] for i in range(4))

    for i, (batch,) in enumerate(xbridge.prefetch(batches, "numpy")):
        assert (batch == numbers(i) + 1).all()


def test_engine__nobody_waits_for_this_thread(pace: bool) -> None:
    """A transfer from the host goes on while the current stream computes."""
    if KIND == "cuda" or pace:
        pytest.skip("nobody can see that: whoever computes may be done")
    computing = torch.ones(3, device=KIND) + 1
    asked = api.current_stream().record_event()
    xbridge.transfer(numbers(11), "torch", device=KIND, dtype="int64").result()

    assert not asked.query()
    assert computing.eq(2).all().item()
