"""What goes wrong on a real accelerator now and then goes wrong on the pretend one every time.

Each test says what is wrong, and what makes it right.
"""

from __future__ import annotations

import pytest
import torch
from emulated.there import RUSHED, api, paced

pace = pytest.mark.parametrize("pace", RUSHED.values(), ids=RUSHED)


def counting() -> torch.Tensor:
    """1, 2, 3 on the device, complete."""
    x = torch.tensor([1.0, 2.0, 3.0], device="emu")
    api.synchronize()
    return x


@pace
def test_a_result_that_is_read_too_early_is_not_there(pace: float | None) -> None:
    x = counting()
    with paced(pace):
        host = x.to("cpu", non_blocking=True)
        assert host.isnan().all()

        api.current_stream().synchronize()
        assert host.tolist() == [1, 2, 3]


@pace
def test_a_pinned_target_that_is_read_too_early_holds_what_it_held(pace: float | None) -> None:
    x, host = counting(), torch.zeros(3).pin_memory()
    with paced(pace):
        host.copy_(x, non_blocking=True)
        assert host.tolist() == [0, 0, 0]

        api.synchronize()
        assert host.tolist() == [1, 2, 3]


def test_a_pinned_target_that_is_used_again_for_the_same_values_hides_that_it_is_read_too_early() -> None:
    x, host = counting(), torch.zeros(3).pin_memory()
    host.copy_(x)
    host.copy_(x, non_blocking=True)
    assert host.tolist() == [1, 2, 3]

    host.copy_(x + 1, non_blocking=True)
    assert host.tolist() == [1, 2, 3]

    api.synchronize()
    assert host.tolist() == [2, 3, 4]


@pace
def test_a_pinned_source_that_is_written_too_early_arrives_changed(pace: float | None) -> None:
    pinned = torch.ones(3).pin_memory()
    with paced(pace):
        x = pinned.to("emu", non_blocking=True)
        pinned.fill_(-1)
        assert x.tolist() == [-1, -1, -1]

        y = pinned.to("emu", non_blocking=True)
        api.synchronize()
        pinned.fill_(5)
        assert y.tolist() == [-1, -1, -1]


@pace
def test_a_pinned_source_may_be_written_after_a_copy_that_blocks(pace: float | None) -> None:
    pinned = torch.ones(3).pin_memory()
    with paced(pace):
        x = pinned.to("emu")
        pinned.fill_(-1)
        assert x.tolist() == [1, 1, 1]


@pace
@pytest.mark.parametrize("non_blocking", [False, True])
def test_pageable_memory_may_be_written_at_once(non_blocking: bool, pace: float | None) -> None:
    source = torch.ones(3)
    with paced(pace):
        x = source.to("emu", non_blocking=non_blocking)
        source.fill_(-1)
        assert x.tolist() == [1, 1, 1]


@pace
def test_a_copy_into_pageable_memory_is_there_at_once(pace: float | None) -> None:
    host = torch.zeros(3)
    x = counting()
    with paced(pace):
        host.copy_(x, non_blocking=True)
        assert host.tolist() == [1, 2, 3]


@pace
def test_a_blocking_copy_into_pinned_memory_is_there_at_once(pace: float | None) -> None:
    host = torch.zeros(3).pin_memory()
    x = counting()
    with paced(pace):
        host.copy_(x)
        assert host.tolist() == [1, 2, 3]


@pace
def test_a_stream_that_does_not_wait_for_the_copy_computes_with_garbage(pace: float | None) -> None:
    pinned, side = torch.ones(3).pin_memory(), api.Stream()
    x = torch.empty(3, device="emu")
    with paced(pace):
        with side:
            x.copy_(pinned, non_blocking=True)
        assert (x + 1).isnan().all()

        api.current_stream().wait_stream(side)
        assert (x + 1).tolist() == [2, 2, 2]


def test_a_stream_that_does_not_wait_for_the_producer_copies_garbage() -> None:
    side = api.Stream()
    x = torch.zeros(3, device="emu") + 1
    with side:
        assert x.cpu().isnan().all()

    side.wait_stream(api.current_stream())
    with side:
        assert x.cpu().tolist() == [1, 1, 1]


@pytest.mark.parametrize("recorded", [False, True])
def test_memory_that_another_stream_still_uses_is_given_away_unless_it_is_recorded(recorded: bool) -> None:
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


def test_a_host_scalar_that_comes_first_causes_no_wait() -> None:
    pinned = torch.ones(3).pin_memory()
    x = torch.tensor(2.0) * pinned.to("emu", non_blocking=True)

    pinned.fill_(5)

    assert x.tolist() == [10, 10, 10]


def test_a_kernel_waits_as_a_copy_does() -> None:
    pinned = torch.ones(3).pin_memory()
    x = pinned.to("emu", non_blocking=True) * 2

    pinned.fill_(5)

    assert x.tolist() == [10, 10, 10]


def test_a_host_scalar_is_taken_at_the_call() -> None:
    scale = torch.tensor(2.0)
    x = counting() * scale

    scale.fill_(9)

    assert x.tolist() == [2, 4, 6]


def test_memory_that_is_freed_before_its_stream_gets_there_is_still_read_right() -> None:
    x = counting()
    y = x * 2
    del x
    z = torch.zeros(3, device="emu")

    assert y.tolist() == [2, 4, 6]
    assert z.tolist() == [0, 0, 0]
