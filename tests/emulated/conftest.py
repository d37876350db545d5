"""A process of its own: the emulated accelerator stays in it, and torch then says that it has one.

Run as `pytest tests/emulated`. Where torch has a CUDA device, the transfers run on that instead, and what is
about the pretend one is left out.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

if find_spec("torch"):
    from emulated.engine import use_small_buffers
    from emulated.there import KIND, PACES, paced

    @pytest.fixture(params=PACES.values(), ids=list(PACES))
    def pace(request: pytest.FixtureRequest) -> Iterator[None]:
        """What is complete when the call returns is so at every pace."""
        with paced(request.param):
            yield

    @pytest.fixture
    def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
        """Buffers so small that every array is large, and that a pack has few arrays in it."""
        use_small_buffers(monkeypatch)

    only_pretend = ["test_device.py", "test_streams.py", "test_operators.py"]
    collect_ignore = only_pretend if KIND == "cuda" else []
else:
    collect_ignore_glob = ["test_*.py"]
