"""A pack is seen as what it carries: each array has its plan, and is asked for before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from emulated.engine import SIZES, use_sizes, use_small_buffers, watch_packs
from emulated.there import DEVICE, KIND
from inside import get_backend

import xbridge
from xbridge import explain, policy, record

if TYPE_CHECKING:
    from types import ModuleType


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Buffers so small that a pack has few arrays in it."""
    return use_small_buffers(monkeypatch)


BATCH = [np.full(2, float(i)) for i in range(5)] + [np.arange(3)]


def test_record__counts_each_array_of_a_pack() -> None:
    """A record counts each array of a pack with its own bytes."""
    with record() as seen:
        there = xbridge.transfer(BATCH, "torch", device=KIND).result()
        back = xbridge.transfer(there, "numpy").result()

    assert [x.tolist() for x in back] == [x.tolist() for x in BATCH]
    counted = {(row.source, row.target): (row.calls, row.copied, row.moved) for row in seen.rows}
    assert counted == {
        ("numpy float64 on cpu", f"torch float64 on {DEVICE}"): (5, 0, 80),
        ("numpy int64 on cpu", f"torch int64 on {DEVICE}"): (1, 0, 24),
        (f"torch float64 on {DEVICE}", "numpy float64 on cpu"): (5, 0, 80),
        (f"torch int64 on {DEVICE}", "numpy int64 on cpu"): (1, 0, 24),
    }


def test_record__agrees_with_explain_on_bytes() -> None:
    """A record counts as many bytes as the plans foretell."""
    foretold = [explain(x, "torch", device=KIND) for x in BATCH]
    with record() as seen:
        xbridge.transfer(BATCH, "torch", device=KIND).result()
    assert sum(row.moved for row in seen.rows) == sum(step.nbytes or 0 for p in foretold for step in p.steps)


def test_record__does_not_split_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays are packed alike with and without a record."""
    use_sizes(monkeypatch, SIZES._replace(chunk=4096))
    packs = watch_packs(monkeypatch)
    xbridge.transfer(BATCH, "torch", device=KIND).result()
    with record():
        xbridge.transfer(BATCH, "torch", device=KIND).result()

    assert packs == [len(BATCH)] * 2


def test_policy__forbidden_transfer_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a policy forbids transfers, nothing is sent, in this thread or another."""
    sent: list[object] = []
    monkeypatch.setattr(get_backend("torch").transfers, "to_device_many", lambda *args: sent.append(args))
    monkeypatch.setattr(get_backend("torch"), "to_device", lambda *args: sent.append(args))

    with policy(transfers="raise"):
        under_way = xbridge.transfer(BATCH, "torch", device=KIND)
        ahead = iter(xbridge.prefetch([BATCH], "torch", device=KIND))
        with pytest.raises(xbridge.PolicyError, match="transfers"):
            next(ahead)
    with pytest.raises(xbridge.PolicyError, match="transfers"):
        under_way.result()

    assert not sent
