"""What tests of any part ask the inside: backends, the tables of dtypes, and what is cached.

A test imports private modules of the part that it tests, and takes from here what it needs of another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xbridge import record as planned
from xbridge._core.dtypes import DTYPES, category, exact_integers, is_inexact
from xbridge._core.protocol import FEATURES, REQUIRED
from xbridge._engine import convert
from xbridge._host.memory import native_dtype
from xbridge._registry import registry
from xbridge._registry.call_cache import MOST, cached, direct, direct_asarray, refusals
from xbridge._registry.registry import add_observer, remove_observer
from xbridge._registry.registry import get as get_backend

if TYPE_CHECKING:
    import pytest


__all__ = [
    "DTYPES",
    "FEATURES",
    "MOST",
    "REQUIRED",
    "add_observer",
    "cached",
    "category",
    "direct",
    "direct_asarray",
    "exact_integers",
    "forget_calls",
    "get_backend",
    "is_inexact",
    "is_observed",
    "native_dtype",
    "planned",
    "planned_arrays",
    "refusals",
    "remove_observer",
]


def forget_calls() -> None:
    """Forget all cached calls, as a forked child does."""
    registry._rebuild_in_child()


def is_observed() -> bool:
    """Whether a policy, a record or a plain observer sees all conversions."""
    return bool(registry.observers)


def planned_arrays(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arrays that are planned from now on, each by itself."""
    seen: list[Any] = []
    right = vars(convert)["plan"]

    def plan(source: Any, *args: Any, **options: Any) -> Any:
        seen.append(source.array)
        return right(source, *args, **options)

    monkeypatch.setattr(convert, "plan", plan)
    return seen
