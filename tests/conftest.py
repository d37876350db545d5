"""A registry for tests that add to it, and CuPy's stub for those that stand in a GPU's place.

The tests expect the CPU to be JAX's default device. Where there is a GPU, `JAX_PLATFORMS=cpu,cuda` lets JAX
use it too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import stub_cupy

from xbridge.backends import INDEX, _registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

os.environ.setdefault("JAX_PLATFORMS", "cpu")
collect_ignore = ["kit_projects.py"]  # a plugin of some tests, which pytest wants to import as such


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names that differ between processes: tests could not be distributed over several."""
    moving = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if moving:
        raise pytest.UsageError("an address is part of the name of a test: " + ", ".join(moving))


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tables of the test's own, as they are before anything is loaded."""
    monkeypatch.setattr(_registry, "by_type", {})
    monkeypatch.setattr(_registry, "_failed", set())
    monkeypatch.setattr(_registry, "_current", set())
    monkeypatch.setattr(_registry, "_Loaded", type("_Loaded", (), {}))
    monkeypatch.setattr(_registry, "_entries", dict(INDEX))
    monkeypatch.setattr(_registry, "_plugins", None)
    yield
    monkeypatch.undo()
    _registry._renew()


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """CuPy, for this test: a stub with two devices."""
    made = stub_cupy.module()
    stub_cupy.install(monkeypatch, made)
    return made
