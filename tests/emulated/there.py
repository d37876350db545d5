"""The accelerator that these tests run on: the real one, or else the pretend one."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from xbridge.testing import emulated

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND = "cuda" if torch.cuda.is_available() else "emu"
if KIND == "emu":
    emulated.install()
DEVICE = f"{KIND}:0"
api: Any = getattr(torch, KIND)
"""`torch.cuda` or `torch.emu`: streams and events have the same names in both."""

PACES: dict[str, bool] = {"as it comes": False}
"""Paces at which what is right has to be right: whether queued work is begun in the background."""
if KIND == "emu":
    PACES = {"as late as possible": False, "at once, in the background": True}


@contextmanager
def paced(pace: bool) -> Iterator[None]:
    """Run queued work as it comes, or begin it in the background again and again."""
    if not pace:
        yield
        return
    over = threading.Event()

    def run() -> None:
        while not over.wait(0.0005):
            api.synchronize()

    background = threading.Thread(target=run, daemon=True)
    background.start()
    try:
        yield
    finally:
        over.set()
        background.join()
        api.synchronize()
