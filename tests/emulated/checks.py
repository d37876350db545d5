"""What a staged transfer promises: the right one keeps it, and a wrong one does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from emulated.there import KIND

if TYPE_CHECKING:
    from emulated.staging import Ring

SIZE = 64 * 3 + 7


def numbers(start: int) -> torch.Tensor:
    """Bytes on the host, all below 0xFF and none where it would be in another."""
    return (torch.arange(SIZE) * 7 + start).remainder(251).to(torch.uint8)


def check_to_device(ring: Ring) -> None:
    """What arrives is what was there at the call, for whoever uses it next."""
    source = numbers(1)
    x = ring.to_device(source)
    source.fill_(0)

    assert torch.equal((x + 1).cpu(), numbers(1) + 1)


def check_to_device_into_used_memory(ring: Ring) -> None:
    """Work that the current stream still has to do on the memory does not reach what arrives."""
    for _ in range(2):
        torch.zeros(SIZE, dtype=torch.uint8, device=KIND).add_(3)
        x = ring.to_device(numbers(2))

        assert torch.equal(x.cpu(), numbers(2))


def check_to_host(ring: Ring) -> None:
    """What was there is on the host on return."""
    x = numbers(3).to(KIND)

    assert torch.equal(ring.to_host(x), numbers(3))


def check_to_host_what_is_still_computed(ring: Ring) -> None:
    """What the current stream has yet to compute is on the host on return."""
    x = numbers(4).to(KIND) + 1

    assert torch.equal(ring.to_host(x), numbers(4) + 1)


CHECKS = (
    check_to_device,
    check_to_device_into_used_memory,
    check_to_host,
    check_to_host_what_is_still_computed,
)
