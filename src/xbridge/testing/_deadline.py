"""The settings of Hypothesis tests that run with several libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Callable

_SETTINGS = "_hypothesis_internal_use_settings"
"""The attribute in which Hypothesis stores the settings of a test. It refuses a second decorator."""


def lift_deadline(test: Callable[..., Any]) -> None:
    """Let an example of a Hypothesis test take any time, because a library may start or compile during one.

    Another deadline than the usual one stays: that of the user's profile, or of settings of the test. A
    method runs with a new object for each library, as pytest's parameters do it, which Hypothesis takes for
    a mistake if there is no mark.
    """
    given: settings = getattr(test, _SETTINGS, None) or settings()
    is_usual = given.deadline == settings.get_profile("default").deadline
    lifted = settings(
        given,
        deadline=None if is_usual else given.deadline,
        suppress_health_check={*given.suppress_health_check, HealthCheck.differing_executors},
    )
    setattr(test, _SETTINGS, lifted)
