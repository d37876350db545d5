"""Report of what a call of an aligned function does."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from xbridge._core.text import table

if TYPE_CHECKING:
    from xbridge._plan.steps import Plan


class CallPlan(NamedTuple):
    """The libraries of a call, the plan of each argument, and where the derivative comes from."""

    function: str
    library: str
    """The library that computes."""
    caller: str
    """The library that the results go back to."""
    followed: bool
    """True if a graph or a transform follows an argument, so that the call is part of it."""
    arguments: dict[str, Plan]
    """The plan of each array, by its place in the call."""
    derivative: str
    batch: str
    shapes: str

    def __str__(self) -> str:
        """Return one fact a line."""
        how = "followed" if self.followed else "nothing is followed"
        rows = [
            ("call", f"{self.function} in {self.library}, results to {self.caller}, {how}"),
            *((path, f"{plan!r}") for path, plan in self.arguments.items()),
            ("derivative", self.derivative),
            ("batch", self.batch),
            ("shapes", self.shapes),
        ]
        return "\n".join(table(rows))
