"""Streams of the emulated accelerator: nothing is done before somebody waits, then everything in order."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from emulated.there import api
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Callable


def sent(x: torch.Tensor) -> torch.Tensor:
    """A copy to the host that nobody has waited for."""
    return x.to("cpu", non_blocking=True)


def arrived(x: torch.Tensor) -> bool:
    """Whether the copy is done."""
    return not bool(x.isnan().any())


@pytest.fixture
def ones() -> torch.Tensor:
    """A tensor of the device that is complete."""
    x = torch.ones(3, device="emu")
    api.synchronize()
    return x


WAITS = {
    "the device": lambda event: api.synchronize(),
    "the stream": lambda event: api.current_stream().synchronize(),
    "the event": lambda event: event.synchronize(),
    "a copy that blocks": lambda event: torch.ones(1, device="emu").cpu(),
    "a value": lambda event: torch.ones(1, device="emu").item(),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_wait__completes_a_copy(ones: torch.Tensor, wait: Callable[..., Any]) -> None:
    """A copy is done after any kind of wait."""
    host = sent(ones)
    event = api.Event()
    event.record()
    assert not arrived(host)

    wait(event)

    assert arrived(host)


def test_event__covers_earlier_work_only(ones: torch.Tensor) -> None:
    """An event stands for what was queued before it and no more."""
    before = sent(ones)
    event = api.current_stream().record_event()
    after = sent(ones)

    event.synchronize()

    assert (arrived(before), arrived(after)) == (True, False)
    api.synchronize()


def test_wait_event__uses_the_recording_at_the_call(ones: torch.Tensor) -> None:
    """A wait for an event covers the work that it stood for at the call."""
    producer, consumer = api.Stream(), api.Stream()
    event = producer.record_event()
    consumer.wait_event(event)
    with producer:
        host = sent(ones)
    event.record(producer)

    consumer.synchronize()

    assert not arrived(host)
    api.synchronize()


@pytest.mark.parametrize("question", ["stream", "event"])
def test_query__second_call_completes_the_work(ones: torch.Tensor, question: str) -> None:
    """A program that polls comes to an end, since the second query does the work."""
    host = sent(ones)
    stream = api.current_stream()
    event = stream.record_event()
    asked = stream.query if question == "stream" else event.query

    assert not asked()
    assert asked()
    assert arrived(host)


def test_stream__does_not_wait_for_another(ones: torch.Tensor) -> None:
    """A wait for one stream does not complete the work of another."""
    side = api.Stream()
    with api.stream(side):
        host = sent(ones)

    api.current_stream().synchronize()

    assert not arrived(host)
    side.synchronize()
    assert arrived(host)


def test_event__makes_the_current_stream_wait(ones: torch.Tensor) -> None:
    """`wait` makes the current stream wait for the work before the event."""
    side = api.Stream()
    with side:
        host = sent(ones)

    side.record_event().wait()
    api.current_stream().synchronize()

    assert arrived(host)


def test_stream__mutual_waits_do_not_deadlock(ones: torch.Tensor) -> None:
    """Streams that wait for each other in turn all complete."""
    one, other = api.Stream(), api.Stream()
    x = torch.zeros(1, device="emu")
    one.wait_stream(api.current_stream())
    for _ in range(200):
        with one:
            x += 1
        other.wait_stream(one)
        with other:
            x *= 1
        one.wait_stream(other)

    one.synchronize()

    assert x.tolist() == [200]


def test_stream__nests_and_belongs_to_its_thread() -> None:
    """Nested streams end in order, and each thread has a current one of its own."""
    seen = []
    one, other = api.Stream(), api.Stream(device="emu:0", priority=0)
    with one:
        with other:
            thread = threading.Thread(target=lambda: seen.append(api.current_stream()))
            thread.start()
            thread.join()
            seen.append(api.current_stream())
        seen.append(api.current_stream())

    assert seen == [api.default_stream(), other, one]
    assert api.current_stream() == api.default_stream()
    assert len({one, other, api.default_stream()}) == 3


def test_synchronize__raises_an_error_once() -> None:
    """An error in queued work is raised by one wait, and the device goes on."""
    x = torch.ones(3, device="emu")[torch.tensor([9], device="emu")]

    with pytest.raises(IndexError):
        api.synchronize()

    assert torch.ones(3, device="emu").tolist() == [1, 1, 1]
    assert x.shape == (1,)


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call] # theirs
    """Notes every operator that runs inside it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[object] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> object:  # type: ignore[no-untyped-def]
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def test_synchronize__is_invisible_to_modes(ones: torch.Tensor) -> None:
    """A mode does not see the queued work that runs inside it."""
    doubled = ones * 2
    host = sent(doubled)

    with Watch() as watch:
        api.synchronize()

    assert watch.seen == []
    assert host.tolist() == [2, 2, 2]


def counting() -> torch.Tensor:
    """1, 2, 3 on the device, complete."""
    x = torch.tensor([1.0, 2.0, 3.0], device="emu")
    api.synchronize()
    return x


def test_copy__read_too_early_gives_garbage() -> None:
    """The result of a non-blocking copy is there only after a wait."""
    x = counting()
    host = x.to("cpu", non_blocking=True)
    assert host.isnan().all()

    api.current_stream().synchronize()
    assert host.tolist() == [1, 2, 3]


def test_copy__pinned_source_written_too_early_arrives_changed() -> None:
    """A write to a pinned source before a wait changes what arrives."""
    pinned = torch.ones(3).pin_memory()
    x = pinned.to("emu", non_blocking=True)
    pinned.fill_(-1)
    assert x.tolist() == [-1, -1, -1]

    y = pinned.to("emu", non_blocking=True)
    api.synchronize()
    pinned.fill_(5)
    assert y.tolist() == [-1, -1, -1]


def test_stream__without_a_wait_computes_with_garbage() -> None:
    """A stream that does not wait for a copy computes with garbage."""
    pinned, side = torch.ones(3).pin_memory(), api.Stream()
    x = torch.empty(3, device="emu")
    with side:
        x.copy_(pinned, non_blocking=True)
    assert (x + 1).isnan().all()

    api.current_stream().wait_stream(side)
    assert (x + 1).tolist() == [2, 2, 2]


@pytest.mark.parametrize("recorded", [False, True])
def test_record_stream__keeps_memory_from_being_reused(recorded: bool) -> None:
    """Memory in use by another stream is reused too early unless it was recorded."""
    x, side = torch.ones(257, device="emu"), api.Stream()
    side.wait_stream(api.current_stream())
    with side:
        later = x + 0
    if recorded:
        x.record_stream(side)
    del x
    api.current_stream().synchronize()

    side.synchronize()

    with side:
        assert later.isnan().any().item() is not recorded
