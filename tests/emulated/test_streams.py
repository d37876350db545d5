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
def test_a_copy_is_done_after_a_wait(ones: torch.Tensor, wait: Callable[..., Any]) -> None:
    host = sent(ones)
    event = api.Event()
    event.record()
    assert not arrived(host)

    wait(event)

    assert arrived(host)


def test_an_event_means_what_was_asked_before_it_and_no_more(ones: torch.Tensor) -> None:
    before = sent(ones)
    event = api.current_stream().record_event()
    after = sent(ones)

    event.synchronize()

    assert (arrived(before), arrived(after)) == (True, False)
    api.synchronize()


def test_an_event_that_was_never_recorded_waits_for_nothing(ones: torch.Tensor) -> None:
    host = sent(ones)
    event = api.Event(enable_timing=False)

    event.synchronize()
    event.wait()
    api.Stream().wait_event(event)

    assert event.query()
    assert not arrived(host)
    api.synchronize()


def test_an_event_that_is_recorded_again_means_the_later_work(ones: torch.Tensor) -> None:
    event = api.Event()
    event.record()
    host = sent(ones)

    event.record()
    event.synchronize()

    assert arrived(host)


def test_a_wait_for_an_event_covers_the_work_that_it_meant_at_the_call(ones: torch.Tensor) -> None:
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
def test_a_second_query_completes_the_work(ones: torch.Tensor, question: str) -> None:
    host = sent(ones)
    stream = api.current_stream()
    event = stream.record_event()
    asked = stream.query if question == "stream" else event.query

    assert not asked()
    assert asked()
    assert arrived(host)


@pytest.mark.parametrize("question", ["stream", "event"])
def test_a_first_query_runs_no_work(ones: torch.Tensor, question: str) -> None:
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


def test_a_stream_does_not_wait_for_another_one(ones: torch.Tensor) -> None:
    side = api.Stream()
    with api.stream(side):
        host = sent(ones)

    api.current_stream().synchronize()

    assert not arrived(host)
    side.synchronize()
    assert arrived(host)


def test_a_stream_waits_for_another_one_if_wait_stream_is_called(ones: torch.Tensor) -> None:
    side = api.Stream()
    with api.stream(side):
        host = sent(ones)
    api.current_stream().wait_stream(side)

    api.current_stream().synchronize()

    assert arrived(host)


def test_an_event_makes_the_current_stream_wait(ones: torch.Tensor) -> None:
    side = api.Stream()
    with side:
        host = sent(ones)

    side.record_event().wait()
    api.current_stream().synchronize()

    assert arrived(host)


def test_streams_that_wait_for_each_other_in_turn_all_get_there(ones: torch.Tensor) -> None:
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


def test_streams_nest_and_belong_to_their_thread() -> None:
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


def test_many_threads_may_wait_for_the_same_work(ones: torch.Tensor) -> None:
    x = torch.zeros(1, device="emu")
    for _ in range(300):
        x += 1
    threads = [threading.Thread(target=api.synchronize) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert x.tolist() == [300]


def test_an_error_in_the_work_is_raised_once_by_a_wait() -> None:
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


def test_a_mode_does_not_see_the_work_that_is_done_inside_it(ones: torch.Tensor) -> None:
    doubled = ones * 2
    host = sent(doubled)

    with Watch() as watch:
        api.synchronize()

    assert watch.seen == []
    assert host.tolist() == [2, 2, 2]


def test_with_a_delay_a_copy_is_not_done_at_once(ones: torch.Tensor) -> None:
    with emulated.delay(3600):
        assert not arrived(sent(ones))


def test_with_a_delay_a_copy_is_done_by_itself_in_the_end(ones: torch.Tensor) -> None:
    with emulated.delay(0.01):
        host = sent(ones)
        while not arrived(host):
            pass


def test_with_a_delay_a_wait_runs_the_copy_at_once(ones: torch.Tensor) -> None:
    with emulated.delay(3600):
        assert ones.cpu().tolist() == [1, 1, 1]


def test_a_delay_inside_another_one_is_the_one_that_counts(ones: torch.Tensor) -> None:
    with emulated.delay(3600):
        with emulated.delay(0):
            host = sent(ones)
            while not arrived(host):
                pass
        assert not arrived(sent(ones))


def test_a_delay_ends_with_everything_done(ones: torch.Tensor) -> None:
    side = api.Stream()
    with emulated.delay(3600):
        hosts = [sent(ones) for _ in range(3)]
        with side:
            x = torch.zeros(3, device="emu") + 1
            hosts.append(sent(x))

    assert all(arrived(host) for host in hosts)
