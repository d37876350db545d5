"""A backend that is replaced while it moves arrays: what is under way arrives, and all buffers are freed."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from emulated.engine import SIZES, use_sizes, use_small_buffers
from emulated.there import KIND, PACES, paced
from inside import get_backend

import xbridge
import xbridge.backends.torch
import xbridge.tree


def tensors(start: int) -> list[torch.Tensor]:
    return [torch.arange(5).to(KIND) + start + i for i in range(3)]


def numbers(made: list[Any]) -> list[list[int]]:
    return [xbridge.to_list(x) for x in made]


@pytest.mark.usefixtures("own_registry")
@pytest.mark.parametrize("pace", PACES.values(), ids=PACES)
def test_register_backend__replaces_one_that_moves_arrays(
    pace: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transfers of the old backend arrive, the new one is used, and `release_buffers` frees those of both."""
    use_small_buffers(monkeypatch)
    use_sizes(monkeypatch, SIZES._replace(chunk=1024, buffers=3, least=1 << 20))
    used: list[str] = []
    module, old = ModuleType("another_torch"), get_backend("torch")

    class Another(type(old.transfers)):  # type: ignore[misc] # a class that only torch's backend knows
        """Torch's transfers, which say when they are used."""

        def fetch_many(self, xs: list[torch.Tensor], /) -> list[Any] | None:
            used.append("fetch")
            return old.transfers.fetch_many(xs)

        def release_buffers(self) -> None:
            used.append("release")

    vars(module).update(vars(xbridge.backends.torch), transfers=Another())
    with paced(pace):
        handle, dropped = (xbridge.transfer(tensors(start), "numpy") for start in (10, 20))
        loop = iter(xbridge.prefetch((np.arange(3) + i for i in range(5)), "torch", device=KIND))
        first = next(loop)
        xbridge.register_backend("torch", module, roots=("torch",), replace=True)
        assert get_backend("torch") is not old
        assert numbers(xbridge.tree.to_numpy(tensors(30))) == numbers(tensors(30))
        assert used == ["fetch"]
        assert numbers(handle.result()) == numbers(tensors(10))
        assert numbers([first, *loop]) == [[i, i + 1, i + 2] for i in range(5)]
        del dropped  # nobody has waited for its copy
        xbridge.release_buffers()
    assert used == ["fetch", "release"]
