"""The transfer engine with buffers of a few bytes, so that a small array goes the way of a large one.

Each of its waits stands on a line of its own, so that a test can leave it out.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import TYPE_CHECKING

from xbridge._registry.registry import get
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
    """Use buffers of a few bytes until the test ends, and, perhaps, copies with one line exchanged.

    What is not changed is the module itself, so that the tests see what is changed in its functions.
    """
    engine = changed(_transfer, crossing, instead) if staging or crossing else _transfer
    threads = changed(_threads, threaded, instead) if threaded else _threads
    if staging:
        monkeypatch.setattr(engine, "PinnedPool", changed(_pinned, staging, instead).PinnedPool)
    use_sizes(monkeypatch, SIZES, engine)
    monkeypatch.setattr(threads, "_sides", {})
    for verb in ("to_device", "to_device_many", "stream_to_device", "streams_to_device"):
        monkeypatch.setattr(get("torch"), verb, getattr(engine, verb))
    monkeypatch.setattr(get("torch"), "threaded", threads.threaded)
    return engine


def use_sizes(monkeypatch: pytest.MonkeyPatch, sizes: _pinned.Sizes, engine: ModuleType = _transfer) -> None:
    """Use buffers of these sizes until the test ends, and none that were made before."""
    monkeypatch.setattr(engine, "sizes", lambda: sizes)
    monkeypatch.setattr(engine, "_pools", {})


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
    """A copy of a module, with one piece of its text exchanged if one is named."""
    source = inspect.getsource(module)
    assert not right or source.count(right) == 1, f"{right!r} stands there {source.count(right)} times"
    copy = ModuleType(module.__name__)
    source = source.replace(right, wrong) if right else source
    exec(compile(source, f"<{module.__name__}, changed>", "exec"), copy.__dict__)
    return copy
