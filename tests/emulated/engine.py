"""The transfer engine with buffers of a few bytes, so that a small array goes the way of a large one.

Each of its waits stands on a line of its own, so that a test can leave it out.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import TYPE_CHECKING, Any

from xbridge._registry.registry import get
from xbridge.backends.torch import _packs, _pinned, _staging, _threads, _transfer

if TYPE_CHECKING:
    import pytest
    import torch

    from xbridge import Device

CHUNK = 64
SIZES = _pinned.Sizes(chunk=CHUNK, buffers=2, least=1, fused=1, timed=False)
_VERBS = {
    _transfer: ("to_device", "to_device_many", "stream_to_device", "streams_to_device"),
    _packs: ("send_many", "fetch_many", "begin_send", "begin_fetch"),
    _threads: ("threaded", "queue_mark"),
}


def use_small_buffers(
    monkeypatch: pytest.MonkeyPatch, *, module: ModuleType | None = None, right: str = "", wrong: str = ""
) -> ModuleType:
    """Use buffers of a few bytes until the test ends, and, perhaps, a module with one line exchanged.

    What is not changed is the module itself, so that the tests see what is changed in its functions.
    """
    use_sizes(monkeypatch, SIZES)
    monkeypatch.setattr(_threads, "_worker_streams", {})
    mutant = changed(module, right, wrong) if module else None
    if mutant and module is _pinned:
        monkeypatch.setattr(_pinned, "PinnedBuffers", mutant.PinnedBuffers)
    if mutant and module is _staging:
        monkeypatch.setattr(_transfer, "Crew", mutant.Crew)
    for home, verbs in _VERBS.items():
        for verb in verbs:
            fn = getattr(mutant if mutant and module is home else home, verb)
            monkeypatch.setattr(get("torch"), verb, fn)
    return mutant if mutant and module is _transfer else _transfer


def use_sizes(monkeypatch: pytest.MonkeyPatch, sizes: _pinned.Sizes) -> None:
    """Use buffers of these sizes until the test ends, and none that were made before."""
    monkeypatch.setattr(_pinned, "_sizes", sizes)
    monkeypatch.setattr(_pinned, "_buffers_by_device", {})
    monkeypatch.setattr(_transfer, "_crews", {})


def watch_packs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many arrays cross together from now on, pack by pack."""
    packs: list[int] = []
    to_device_many, put = get("torch").to_device_many, _packs._put_in_order
    assert to_device_many is not None

    def counting(xs: list[torch.Tensor], device: Device) -> list[torch.Tensor]:
        packs.append(len(xs))
        return to_device_many(xs, device)

    def counting_packs(made: list[Any], batch: Any, parts: list[Any], arrays: Any) -> None:
        packs.append(sum(len(part.chosen) for part in parts))
        put(made, batch, parts, arrays)

    monkeypatch.setattr(get("torch"), "to_device_many", counting)
    monkeypatch.setattr(_packs, "_put_in_order", counting_packs)
    return packs


def changed(module: ModuleType, right: str, wrong: str) -> ModuleType:
    """A copy of a module, with one piece of its text exchanged if one is named."""
    source = inspect.getsource(module)
    assert not right or source.count(right) == 1, f"{right!r} stands there {source.count(right)} times"
    copy = ModuleType(module.__name__)
    source = source.replace(right, wrong) if right else source
    exec(compile(source, f"<{module.__name__}, changed>", "exec"), copy.__dict__)
    return copy
