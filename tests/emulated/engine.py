"""The transfer engine with buffers of a few bytes, so that a small array goes the way of a large one."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from inside import get_backend

from xbridge.backends.torch import _packs, _pinned, _threads, _transfer

if TYPE_CHECKING:
    import pytest
    import torch

    from xbridge import Device

CHUNK = 64
SIZES = _pinned.Sizes(chunk=CHUNK, buffers=2, least=1, fused=1, timed=False)


def use_small_buffers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Use buffers of a few bytes until the test ends, and return the module that moves large arrays."""
    use_sizes(monkeypatch, SIZES)
    monkeypatch.setattr(_threads, "_worker_streams", {})
    return _transfer


def use_sizes(monkeypatch: pytest.MonkeyPatch, sizes: _pinned.Sizes) -> None:
    """Use buffers of these sizes until the test ends, and none that were made before."""
    monkeypatch.setattr(_pinned, "_sizes", sizes)
    monkeypatch.setattr(_pinned, "_buffers_by_device", {})
    monkeypatch.setattr(_transfer, "_crews", {})


def watch_packs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many arrays cross together from now on, pack by pack."""
    packs: list[int] = []
    to_device_many, put = get_backend("torch").to_device_many, _packs._put_in_order
    assert to_device_many is not None

    def counting(xs: list[torch.Tensor], device: Device) -> list[torch.Tensor]:
        packs.append(len(xs))
        return to_device_many(xs, device)

    def counting_packs(made: list[Any], batch: Any, parts: list[Any], arrays: Any) -> None:
        packs.append(sum(len(part.chosen) for part in parts))
        put(made, batch, parts, arrays)

    monkeypatch.setattr(get_backend("torch"), "to_device_many", counting)
    monkeypatch.setattr(_packs, "_put_in_order", counting_packs)
    return packs
