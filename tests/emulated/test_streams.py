"""Streams of the emulated accelerator: nothing is done before somebody waits, then everything in order."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from emulated.there import api
from torch.utils._python_dispatch import TorchDispatchMode

from xbridge.testing import emulated

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


def test_event__never_recorded_waits_for_nothing(ones: torch.Tensor) -> None:
    """An event that was never recorded is complete."""
    host = sent(ones)
    event = api.Event(enable_timing=False)

    event.synchronize()
    event.wait()
    api.Stream().wait_event(event)

    assert event.query()
    assert not arrived(host)
    api.synchronize()


def test_event__recorded_again_covers_later_work(ones: torch.Tensor) -> None:
    """An event that is recorded again covers the work up to then."""
    event = api.Event()
    event.record()
    host = sent(ones)

    event.record()
    event.synchronize()

    assert arrived(host)


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


@pytest.mark.parametrize("question", ["stream", "event"])
def test_query__first_call_runs_no_work(ones: torch.Tensor, question: str) -> None:
    """A first query only reports that work is pending."""
    stream, event = api.Stream(), api.Event()
    asked = stream.query if question == "stream" else event.query
    with stream:
        for _ in range(2):
            event.record()
            assert asked()
            host = sent(ones)
            event.record()

            assert not asked()

            assert not arrived(host)
            stream.synchronize()
            assert asked()


def test_stream__does_not_wait_for_another(ones: torch.Tensor) -> None:
    """A wait for one stream does not complete the work of another."""
    side = api.Stream()
    with api.stream(side):
        host = sent(ones)

    api.current_stream().synchronize()

    assert not arrived(host)
    side.synchronize()
    assert arrived(host)


def test_wait_stream__orders_two_streams(ones: torch.Tensor) -> None:
    """After `wait_stream`, a wait completes the work of both streams."""
    side = api.Stream()
    with api.stream(side):
        host = sent(ones)
    api.current_stream().wait_stream(side)

    api.current_stream().synchronize()

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


def test_synchronize__from_many_threads(ones: torch.Tensor) -> None:
    """Many threads may wait for the same work, which is done once."""
    x = torch.zeros(1, device="emu")
    for _ in range(300):
        x += 1
    threads = [threading.Thread(target=api.synchronize) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert x.tolist() == [300]


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


def test_delay__copy_is_not_done_at_once(ones: torch.Tensor) -> None:
    """Within a delay, a copy is still pending after the call."""
    with emulated.delay(3600):
        assert not arrived(sent(ones))


def test_delay__copy_completes_by_itself(ones: torch.Tensor) -> None:
    """Within a delay, a copy is done in the end without a wait."""
    with emulated.delay(0.01):
        host = sent(ones)
        while not arrived(host):
            pass


def test_delay__wait_runs_the_copy_at_once(ones: torch.Tensor) -> None:
    """A wait does not last as long as the delay."""
    with emulated.delay(3600):
        assert ones.cpu().tolist() == [1, 1, 1]


def test_delay__inner_delay_counts(ones: torch.Tensor) -> None:
    """Of two nested delays, the inner one applies."""
    with emulated.delay(3600):
        with emulated.delay(0):
            host = sent(ones)
            while not arrived(host):
                pass
        assert not arrived(sent(ones))


def test_delay__ends_with_all_work_done(ones: torch.Tensor) -> None:
    """At the end of a delay, the work of all streams is complete."""
    side = api.Stream()
    with emulated.delay(3600):
        hosts = [sent(ones) for _ in range(3)]
        with side:
            x = torch.zeros(3, device="emu") + 1
            hosts.append(sent(x))

    assert all(arrived(host) for host in hosts)
