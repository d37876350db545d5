"""The deadline of Hypothesis tests that run with several libraries."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable


def lift_deadline(test: Callable[..., Any]) -> None:
    """Let an example of a Hypothesis test take any time, because a library may start or compile during one.

    A deadline of the user's profile stays, and so do settings of the test.
    """
    if settings().deadline == settings.get_profile("default").deadline:
        with suppress(InvalidArgument):  # the test has settings of its own
            settings(deadline=None)(test)
