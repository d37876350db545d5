"""The transfer engine with buffers of a few bytes, so that a small array goes the way of a large one."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from xbridge.backends.torch import _transfer
from xbridge.backends.torch._transfer import large, packs, pinned, streams

if TYPE_CHECKING:
    import pytest


CHUNK = 64
SIZES = pinned.Sizes(chunk=CHUNK, buffers=2, least=1)


def use_small_buffers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Use buffers of a few bytes until the test ends, and return the module that moves arrays."""
    use_sizes(monkeypatch, SIZES)
    monkeypatch.setattr(streams, "_worker_streams", {})
    return _transfer


def use_sizes(monkeypatch: pytest.MonkeyPatch, sizes: pinned.Sizes) -> None:
    """Use buffers of these sizes until the test ends, and threads that were not started before."""
    monkeypatch.setattr(pinned, "_sizes", sizes)
    large._threads.cache_clear()


def watch_packs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many arrays cross together from now on, pack by pack."""
    seen: list[int] = []
    put = packs._in_order

    def counting(made: list[Any], batch: Any, parts: list[Any], arrays: Any) -> list[Any]:
        seen.append(sum(len(part.chosen) for part in parts))
        return put(made, batch, parts, arrays)

    monkeypatch.setattr(packs, "_in_order", counting)
    return seen
