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
def test_copy__read_too_early_gives_garbage(pace: float | None) -> None:
    """The result of a non-blocking copy is there only after a wait."""
    x = counting()
    with paced(pace):
        host = x.to("cpu", non_blocking=True)
        assert host.isnan().all()

        api.current_stream().synchronize()
        assert host.tolist() == [1, 2, 3]


@pace
def test_copy__pinned_target_read_too_early_is_stale(pace: float | None) -> None:
    """A pinned target keeps its old values until somebody waits."""
    x, host = counting(), torch.zeros(3).pin_memory()
    with paced(pace):
        host.copy_(x, non_blocking=True)
        assert host.tolist() == [0, 0, 0]

        api.synchronize()
        assert host.tolist() == [1, 2, 3]


def test_copy__reused_pinned_target_hides_an_early_read() -> None:
    """If the target held the same values before, an early read goes unnoticed."""
    x, host = counting(), torch.zeros(3).pin_memory()
    host.copy_(x)
    host.copy_(x, non_blocking=True)
    assert host.tolist() == [1, 2, 3]

    host.copy_(x + 1, non_blocking=True)
    assert host.tolist() == [1, 2, 3]

    api.synchronize()
    assert host.tolist() == [2, 3, 4]


@pace
def test_copy__pinned_source_written_too_early_arrives_changed(pace: float | None) -> None:
    """A write to a pinned source before a wait changes what arrives."""
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
def test_copy__blocking_copy_releases_its_pinned_source(pace: float | None) -> None:
    """After a blocking copy, the pinned source may be written."""
    pinned = torch.ones(3).pin_memory()
    with paced(pace):
        x = pinned.to("emu")
        pinned.fill_(-1)
        assert x.tolist() == [1, 1, 1]


@pace
@pytest.mark.parametrize("non_blocking", [False, True])
def test_copy__pageable_source_may_be_written_at_once(non_blocking: bool, pace: float | None) -> None:
    """Pageable memory may be written after the call, blocking or not."""
    source = torch.ones(3)
    with paced(pace):
        x = source.to("emu", non_blocking=non_blocking)
        source.fill_(-1)
        assert x.tolist() == [1, 1, 1]


@pace
def test_copy__into_pageable_memory_is_complete(pace: float | None) -> None:
    """A copy into pageable memory is complete when the call returns."""
    host = torch.zeros(3)
    x = counting()
    with paced(pace):
        host.copy_(x, non_blocking=True)
        assert host.tolist() == [1, 2, 3]


@pace
def test_copy__blocking_into_pinned_memory_is_complete(pace: float | None) -> None:
    """A blocking copy into pinned memory is complete when the call returns."""
    host = torch.zeros(3).pin_memory()
    x = counting()
    with paced(pace):
        host.copy_(x)
        assert host.tolist() == [1, 2, 3]


@pace
def test_stream__without_a_wait_computes_with_garbage(pace: float | None) -> None:
    """A stream that does not wait for a copy computes with garbage."""
    pinned, side = torch.ones(3).pin_memory(), api.Stream()
    x = torch.empty(3, device="emu")
    with paced(pace):
        with side:
            x.copy_(pinned, non_blocking=True)
        assert (x + 1).isnan().all()

        api.current_stream().wait_stream(side)
        assert (x + 1).tolist() == [2, 2, 2]


def test_stream__without_a_wait_copies_garbage() -> None:
    """A stream that does not wait for the producer copies garbage."""
    side = api.Stream()
    x = torch.zeros(3, device="emu") + 1
    with side:
        assert x.cpu().isnan().all()

    side.wait_stream(api.current_stream())
    with side:
        assert x.cpu().tolist() == [1, 1, 1]


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


def test_kernel__host_scalar_operand_does_not_wait() -> None:
    """An operator with a host scalar does not wait for the copy of its other operand."""
    pinned = torch.ones(3).pin_memory()
    x = torch.tensor(2.0) * pinned.to("emu", non_blocking=True)

    pinned.fill_(5)

    assert x.tolist() == [10, 10, 10]


def test_kernel__runs_in_the_order_of_the_stream() -> None:
    """An operator is queued like a copy, and reads a pinned source when it runs."""
    pinned = torch.ones(3).pin_memory()
    x = pinned.to("emu", non_blocking=True) * 2

    pinned.fill_(5)

    assert x.tolist() == [10, 10, 10]


def test_kernel__reads_a_host_scalar_at_the_call() -> None:
    """A host scalar may be changed after the call."""
    scale = torch.tensor(2.0)
    x = counting() * scale

    scale.fill_(9)

    assert x.tolist() == [2, 4, 6]


def test_memory__freed_before_use_is_still_read_correctly() -> None:
    """Memory that is freed before its stream has read it keeps its values until then."""
    x = counting()
    y = x * 2
    del x
    z = torch.zeros(3, device="emu")

    assert y.tolist() == [2, 4, 6]
    assert z.tolist() == [0, 0, 0]
