"""Another thread knows of the streams and modes of this one, and holds nobody up."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from emulated.there import DEVICE, KIND, PACES, api, paced
from inside import get_backend

import xbridge
from xbridge._transfer.threads import participating_backends
from xbridge.backends.torch import _transfer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("small_buffers")

PATIENCE = 60


def made(i: int) -> torch.Tensor:
    """What the current stream has yet to compute."""
    return torch.full((4,), float(i), device=KIND) + 1


EXPECTED = [[i + 1.0] * 4 for i in range(3)]


@pytest.mark.parametrize("pace", PACES.values(), ids=PACES)
@pytest.mark.parametrize("target", ["numpy", "torch"])
def test_prefetch__batch_is_complete_when_handed_out(target: str, pace: bool) -> None:
    """A batch is complete when it is handed out, even if its work was queued before."""
    with paced(pace), api.stream(api.Stream()):
        batches = [made(i) for i in range(3)]

        ahead = iter(xbridge.prefetch(batches, target, device="cpu"))
        assert [x.tolist() for x in ahead] == EXPECTED


def test_prefetch__iterable_runs_on_the_consumers_stream() -> None:
    """The iterable runs in another thread, on the stream and in the modes of the consumer."""
    seen = []

    def batches() -> Iterator[torch.Tensor]:
        for i in range(2):
            seen.append((api.current_stream(), torch.is_grad_enabled(), threading.get_ident()))
            yield torch.full((2,), i)

    mine = api.Stream()
    with api.stream(mine), torch.no_grad():
        list(xbridge.prefetch(batches(), "numpy"))

    assert [(stream == mine, recording) for stream, recording, _ in seen] == [(True, False)] * 2
    assert threading.get_ident() not in {thread for *_, thread in seen}


def test_prefetch__iterable_sees_the_consumers_default_device() -> None:
    """The iterable makes tensors on the default device of the consumer."""

    def batches() -> Iterator[torch.Tensor]:
        yield torch.ones(2)

    with torch.device("meta"):
        (batch,) = xbridge.prefetch(batches(), "torch")

    assert batch.is_meta
    (batch,) = xbridge.prefetch(batches(), "torch")
    assert batch.device.type == "cpu"


def test_participating_backends__names_each_library_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries that share a device are each asked for their own stream on it."""
    ours, fast = get_backend("torch"), SimpleNamespace(types=())
    theirs = SimpleNamespace(host_only=False, device_of=lambda x: x.place, fast=fast)
    monkeypatch.setattr("xbridge._transfer.threads.backend_for", lambda _: theirs)
    xs: list[object] = [SimpleNamespace(place=xbridge.Device(place)) for place in (DEVICE, "cpu")]
    found = list(participating_backends(xs, ours))
    assert found == [(theirs, DEVICE), (ours, DEVICE), (theirs, "cpu")]


def test_transfer__does_not_wait_for_other_streams() -> None:
    """A transfer from the host does not wait for a computation on another stream."""
    if KIND == "cuda":
        pytest.skip("a computation that goes on until it may end is the pretend one's")
    computed = threading.Event()
    with api.stream(api.Stream()):
        api.current_stream().do(lambda: computed.wait(PATIENCE))
        loss = made(1)
        wanted = xbridge.transfer(loss, "numpy")

    for batch in (np.ones(100), [np.ones(3), np.ones(4)]):
        xbridge.transfer(batch, "torch", device=KIND).result(PATIENCE)
    assert not wanted.done()
    computed.set()
    assert wanted.result(PATIENCE).tolist() == [2] * 4


def captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that what this thread asks for is recorded into a graph."""
    me = threading.get_ident()
    word = "is_current_stream_capturing"
    monkeypatch.setattr(api, word, lambda: threading.get_ident() == me, raising=False)


def test_transfer__refuses_other_threads_during_graph_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a graph is captured, no other thread may convert, and the error says what may."""
    x = torch.ones(4, device=KIND)
    captured(monkeypatch)
    monkeypatch.setattr(api.Stream, "record_event", None)

    for call in (
        lambda: xbridge.transfer(x, "numpy").result(),
        lambda: xbridge.transfer(np.ones(2), "torch", device=KIND).result(),
        lambda: next(iter(xbridge.prefetch([np.ones(2)], "torch", device=KIND))),
    ):
        with pytest.raises(xbridge.DeviceError) as failure:
            call()  # type: ignore[no-untyped-call] # of several kinds
        assert str(failure.value) == (
            f"cannot convert arrays to or from {DEVICE} in another thread: a graph is being captured, "
            "and follows this one alone"
        )


def test_prefetch__refuses_the_next_batch_during_graph_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait is recorded into a graph, and no thread converts meanwhile: the request for a batch raises."""
    loop = iter(xbridge.prefetch([np.ones(2)] * 5, "torch", device=KIND))
    next(loop)
    with monkeypatch.context() as patch:
        captured(patch)
        patch.setattr(api.Stream, "record_event", None)
        with pytest.raises(xbridge.DeviceError, match="a graph is being captured"):
            next(loop)
    assert [*loop] == []


def test_to_backend__uses_no_pinned_buffer_during_graph_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a graph is captured, arrays are moved without pinned buffers."""
    captured(monkeypatch)
    monkeypatch.setattr(_transfer, "pin_buffer", None)

    for options in ({}, {"dtype": "float32"}, {"copy": True}):
        assert xbridge.to_backend(np.ones(100), "torch", device=KIND, **options).sum().item() == 100
    batch = xbridge.tree.to_backend([np.ones(2)] * 3 + [np.ones(3)] * 20, "torch", device=KIND)
    assert sum(x.sum() for x in xbridge.tree.to_numpy(batch)) == 66
    moved = _transfer.transfers.to_device_many([torch.ones(2)] * 3, xbridge.Device(DEVICE))
    assert len(moved or ()) == 3


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_prefetch__batches_on_the_device_are_bounded(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that only queues work has at most `depth + 2` batches on the device."""
    if KIND == "cuda":
        pytest.skip("a computation that goes on until it may end is the pretend one's")
    begun: list[int] = []
    used: list[int] = []
    backend, enough = get_backend("torch"), threading.Semaphore(0)
    move = backend.to_device

    def watched(x: torch.Tensor, device: xbridge.Device) -> Any:
        begun.append(len(used))
        enough.release()
        return move(x, device)

    monkeypatch.setattr(backend, "to_device", watched)
    stream = api.Stream()
    with api.stream(stream):
        batches = (torch.full((4,), float(i)) for i in range(12))
        for i, batch in enumerate(xbridge.prefetch(batches, "torch", device=KIND, depth=depth)):
            assert str(batch.device) == DEVICE
            stream.do(lambda i=i: used.append(i))
            if i < 12 - depth:
                assert enough.acquire(timeout=PATIENCE)
    # When batch k began, the device had done its work with batch k - depth - 2, and with all before it.
    assert len(begun) == 12
    assert all(done >= k - depth - 1 for k, done in enumerate(begun)), begun
    stream.synchronize()
    assert used == list(range(12))
