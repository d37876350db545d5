"""`torch.emu`: what torch and its users ask about the device, under the names that `torch.cuda` has."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from xbridge.testing.emulated._streams import (
    Event,
    Stream,
    current_stream,
    default_stream,
    set_stream,
    stream,
    synchronize,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Event",
    "Stream",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "get_amp_supported_dtype",
    "is_available",
    "is_initialized",
    "manual_seed_all",
    "set_device",
    "set_stream",
    "stream",
    "synchronize",
]


def device_count() -> int:
    """One: torch's Python hooks know no more."""
    return 1


def current_device() -> int:
    """The only one."""
    return 0


@contextmanager
def device(device: object) -> Iterator[None]:
    """Make a device the current one inside a `with` block, as the only one always is."""
    yield


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What `torch.autocast` may be asked for: torch wants to know, on the host's behalf too (checkpoints)."""
    return [torch.float16, torch.bfloat16]


def is_available() -> bool:
    """Always: it is there once it is installed."""
    return True


def is_initialized() -> bool:
    """Always: there is nothing to start."""
    return True


def manual_seed_all(seed: int) -> None:
    """Nothing: random numbers come from the generator of the host."""


def set_device(device: object) -> None:
    """Nothing: the only one is current already."""


def _is_in_bad_fork() -> bool:
    """Never: a forked process has the device's memory, as it has any other."""
    return False
