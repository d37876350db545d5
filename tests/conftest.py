"""How hard Hypothesis tries, and a registry for tests that add to it.

Hypothesis tries afresh on every run here, and the same examples every time where CI is set.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, settings

from xbridge import _registry
from xbridge.backends import INDEX

if TYPE_CHECKING:
    from collections.abc import Iterator

collect_ignore = ["kit_projects.py"]  # a plugin of some tests, which pytest wants to import as such

# The first example of a run pays for imports, so an example has no time limit anywhere.
settings.register_profile("dev", max_examples=100, deadline=None)
settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True, print_blob=True)
settings.register_profile(  # a mutant runs thousands of tests: few examples, and none of them made smaller
    "mutation", max_examples=25, deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate)
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


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
