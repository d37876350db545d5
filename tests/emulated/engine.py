"""The transfer engine with buffers of a few bytes, so that a small array goes the way of a large one."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from xbridge.backends.torch import _threads, _transfer

if TYPE_CHECKING:
    import pytest


CHUNK = 64
SIZES = _transfer.Sizes(chunk=CHUNK, buffers=2, least=1)


def use_small_buffers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Use buffers of a few bytes until the test ends, and return the module that moves arrays."""
    use_sizes(monkeypatch, SIZES)
    _threads._worker_streams.clear()
    return _transfer


def use_sizes(monkeypatch: pytest.MonkeyPatch, sizes: _transfer.Sizes) -> None:
    """Use buffers of these sizes until the test ends, and threads that were not started before."""
    monkeypatch.setattr(_transfer, "sizes", lambda: sizes)
    _transfer._threads.cache_clear()


def watch_packs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many arrays cross together from now on, pack by pack."""
    seen: list[int] = []
    carry = _transfer._carry_packs

    def counting(xs: list[Any], packs: Any, queue: Any) -> list[Any]:
        every = list(packs)
        seen.extend(len(pack.at) for pack in every)
        return carry(xs, every, queue)

    monkeypatch.setattr(_transfer, "_carry_packs", counting)
    return seen
