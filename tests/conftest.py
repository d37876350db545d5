"""A registry for tests that add to it, and CuPy's stub for those that stand in a GPU's place.

The tests expect the CPU to be JAX's default device. Where there is a GPU, `JAX_PLATFORMS=cpu,cuda` lets JAX
use it too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import stub_cupy
from versions import is_older, skip_compiled

from xbridge._registry import registry
from xbridge.backends import INDEX

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

os.environ.setdefault("JAX_PLATFORMS", "cpu")

if is_older("torch", "2.13"):
    import torch

    torch.compile = torch.export.export = skip_compiled


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out what is not a test, which tests import by a name of its own."""
    return True if collection_path.suffix == ".py" and not collection_path.name.startswith("test_") else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names that differ between processes: tests could not be distributed over several."""
    moving = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if moving:
        raise pytest.UsageError("an address is part of the name of a test: " + ", ".join(moving))


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tables of the test's own, as they are before anything is loaded."""
    empty: dict[str, object] = {
        **{name: {} for name in ("by_type", "_by_subtype")},
        **{name: set() for name in ("_failed", "_current")},
        "_Loaded": type("_Loaded", (), {}),
        "_entries": dict(INDEX),
        "_plugins": None,
    }
    for name, table in empty.items():
        monkeypatch.setattr(registry, name, table)
    yield
    monkeypatch.undo()
    registry._rebuild_in_child()


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """CuPy, for this test: a stub with two devices."""
    made = stub_cupy.module()
    stub_cupy.install(monkeypatch, made)
    return made
