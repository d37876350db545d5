"""What xbridge promises of transfers holds for large arrays too, which go through pinned buffers."""

from __future__ import annotations

import pytest
from emulated.engine import use_small_buffers
from emulated.test_transfers import *  # noqa: F403 -- the same promises


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """All arrays are large to buffers this small."""
    use_small_buffers(monkeypatch)
