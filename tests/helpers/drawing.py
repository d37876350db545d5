"""What strategies draw, and what they shrink to."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, find, given, settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis import strategies as st


FIND = settings(max_examples=2000, database=None, derandomize=True)


def drawn(strategy: st.SearchStrategy[Any], count: int = 80) -> list[Any]:
    """Some of what a strategy draws."""
    found: list[Any] = []

    @settings(
        max_examples=count,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(strategy)
    def keep(x: Any) -> None:
        found.append(x)

    keep()
    return found


def least(strategy: st.SearchStrategy[Any], such: Callable[[Any], object] = lambda x: True) -> Any:
    """What a strategy shrinks to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # comparing a signalling NaN
        return find(strategy, such, settings=FIND)  # type: ignore[arg-type] # any truth value
