"""A registry for tests that add to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from xbridge import _registry
from xbridge.backends import INDEX

if TYPE_CHECKING:
    from collections.abc import Iterator

collect_ignore = ["kit_projects.py"]  # a plugin of some tests, which pytest wants to import as such


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tables of the test's own, as they are before anything is loaded."""
    monkeypatch.setattr(_registry, "by_type", {})
    monkeypatch.setattr(_registry, "_available", {})
    monkeypatch.setattr(_registry, "_current", set())
    monkeypatch.setattr(_registry, "_entries", dict(INDEX))
    monkeypatch.setattr(_registry, "_plugins", None)
    yield
    monkeypatch.undo()
    _registry._warm()
