"""The transfer engine with buffers of a few bytes, so that a small array goes the way of a large one.

Each of its waits stands on a line of its own, so that a test can leave it out.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import TYPE_CHECKING

from xbridge.backends._registry import get
from xbridge.backends.torch import _pinned, _threads, _transfer

if TYPE_CHECKING:
    import pytest
    import torch

    from xbridge import Device

CHUNK = 64
SIZES = _pinned.Sizes(chunk=CHUNK, buffers=2, least=1)


def use_small_buffers(
    monkeypatch: pytest.MonkeyPatch,
    *,
    staging: str = "",
    crossing: str = "",
    threaded: str = "",
    instead: str = "",
) -> ModuleType:
    """Use buffers of a few bytes, and, perhaps, an engine with one line of a module exchanged."""
    ring = changed(_pinned, staging, instead).PinnedPool if staging else _pinned.PinnedPool
    engine = changed(_transfer, crossing, instead if crossing else "")
    engine.__dict__.update(PinnedPool=ring, sizes=lambda: SIZES)
    for verb in ("to_device", "to_device_many", "stream_to_device", "streams_to_device"):
        monkeypatch.setattr(get("torch"), verb, getattr(engine, verb))
    threads = changed(_threads, threaded, instead if threaded else "")
    monkeypatch.setattr(get("torch"), "threaded", threads.threaded)
    return engine


def watch_packs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many arrays cross together from now on, pack by pack."""
    packs: list[int] = []
    to_device_many = get("torch").to_device_many
    assert to_device_many is not None

    def counting(xs: list[torch.Tensor], device: Device) -> list[torch.Tensor]:
        packs.append(len(xs))
        return to_device_many(xs, device)

    monkeypatch.setattr(get("torch"), "to_device_many", counting)
    return packs


def changed(module: ModuleType, right: str, wrong: str) -> ModuleType:
    """A copy of a module with one piece of its text exchanged."""
    source = inspect.getsource(module)
    assert not right or source.count(right) == 1, f"{right!r} stands there {source.count(right)} times"
    if right:
        source = source.replace(right, wrong)
    copy = ModuleType(module.__name__)
    place = f"<{module.__name__}, changed>" if right else str(module.__file__)  # for who counts lines
    exec(compile(source, place, "exec"), copy.__dict__)
    return copy
