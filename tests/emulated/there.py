"""The accelerator that these tests run on: the real one, or else the pretend one."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from xbridge.testing import emulated

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

KIND = "cuda" if torch.cuda.is_available() else "emu"
if KIND == "emu":
    emulated.install()
DEVICE = f"{KIND}:0"
api: Any = getattr(torch, KIND)
"""`torch.cuda` or `torch.emu`: streams and events have the same names in both."""

PACES: dict[str, float | None] = {"as it comes": None}
RUSHED: dict[str, float | None] = {}
"""Paces at which what is right has to be right; and those at which what is wrong is wrong every time."""
if KIND == "emu":
    PACES = {"as late as possible": None, "at once, in the background": 0}
    RUSHED = {"as late as possible": None, "with a delay": 60}


def paced(seconds: float | None) -> AbstractContextManager[None]:
    """Copies as they come, or in the background, so many seconds late."""
    return nullcontext() if seconds is None else emulated.delay(seconds)
