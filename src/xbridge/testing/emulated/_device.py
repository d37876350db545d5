"""`torch.emu`: the functions of the device, under the names that `torch.cuda` has."""

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
    """Return 1: torch's Python hooks support one device."""
    return 1


def current_device() -> int:
    """Return 0, the number of the only device."""
    return 0


@contextmanager
def device(device: object) -> Iterator[None]:
    """Do nothing inside a `with` block: the only device is always current."""
    yield


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes of `torch.autocast`, which torch reads for checkpoints on the host too."""
    return [torch.float16, torch.bfloat16]


def is_available() -> bool:
    """Return True: an installed device is available."""
    return True


def is_initialized() -> bool:
    """Return True: there is nothing to initialize."""
    return True


def manual_seed_all(seed: int) -> None:
    """Do nothing: random numbers come from the generator of the host."""


def set_device(device: object) -> None:
    """Do nothing: the only device is current."""


def _is_in_bad_fork() -> bool:
    """Return False: a forked process has a copy of the device's memory."""
    return False
