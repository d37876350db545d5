"""The report that `explain` of an aligned function returns."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, NamedTuple

from xbridge.extend import table

if TYPE_CHECKING:
    from xbridge.extend import Plan


class CallPlan(NamedTuple):
    """The libraries of a call, the plan of each argument, and where the derivative comes from."""

    function: str
    library: str
    """The library of the function, which computes."""
    caller: str
    """The library that the results go back to."""
    tracked: bool
    """True if an argument requires grad or is traced, so that the call is part of a graph or a transform."""
    arguments: dict[str, Plan]
    """The plan of each array, by its place in the call."""
    derivative: str

    def __str__(self) -> str:
        """Return one line for each fact."""
        how = "tracked" if self.tracked else "nothing is tracked"
        facts = [
            ("call", f"{self.function} in {self.library}, results to {self.caller}, {how}"),
            *((path, repr(plan)) for path, plan in self.arguments.items()),
            ("derivative", self.derivative),
        ]
        return "\n".join(table(facts))

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"
