"""How a plan is run: the one place where every conversion passes, so those who watch stand here.

What a library raises on the way is chained to an error of ours. While nobody watches, that anybody could
costs one look at a flag here, and nothing on the hot path. While somebody does, the tables of the hot path
are empty, so that every conversion has a plan and comes by.
"""

from __future__ import annotations

import sys
from time import perf_counter
from typing import TYPE_CHECKING

from xbridge import _registry
from xbridge.errors import (
    FOREIGN_ERRORS,
    DeviceError,
    DTypeError,
    GradientError,
    UnsupportedArrayError,
    XBridgeError,
)

if TYPE_CHECKING:
    from types import FrameType

    from xbridge._plan import Plan
    from xbridge._protocol import Array

_FAILURES: dict[str, type[XBridgeError]] = {
    "cast": DTypeError,
    "check": DTypeError,
    "move": DeviceError,
    "export": DeviceError,
    "import_": DeviceError,
    "detach": GradientError,
    "track": GradientError,
}
_ENTRANCES = ("xbridge._convert", "xbridge._policy")
"""The modules whose functions users call to convert."""


def run(x: Array, plan: Plan) -> Array:
    """Do the steps, in sight of whoever watches. What a compiler traces, it runs without us."""
    if _registry.watchers and not plan.route.target.tracing():
        return _watched(x, plan)
    return _perform(x, plan)


def _perform(x: Array, plan: Plan) -> Array:
    for step in plan.steps:
        try:
            x = getattr(step.room, step.verb)(x, *step.args)
        except XBridgeError:
            raise
        except FOREIGN_ERRORS as error:
            failure = _FAILURES.get(step.verb, UnsupportedArrayError)
            why = f"the step {step.action} failed with {error!r}"
            raise failure.because(plan.route.asked(), why, f"that step in {step.room.name} itself") from error
    return x


def _watched(x: Array, plan: Plan) -> Array:
    """Ask the policy before, and tell the records afterwards."""
    from xbridge import _policy, _record  # noqa: PLC0415 -- only while somebody watches

    told = plan.told(x[0] if isinstance(x, list) else x)  # a list is what is stacked
    caller = _caller()
    _policy.forbid(told)
    _policy.warn(told, caller)
    begin = perf_counter()
    y = _perform(x, plan)
    _record.tell(told, caller, perf_counter() - begin)
    return y


def _caller() -> FrameType:
    """Where the user called us: outside of the innermost function of ours that users call."""
    frame = sys._getframe()  # noqa: SLF001 -- warnings and tracebacks use it likewise
    while frame.f_back and frame.f_globals.get("__name__") not in _ENTRANCES:
        frame = frame.f_back
    while frame.f_back and str(frame.f_globals.get("__name__")).startswith("xbridge._"):
        frame = frame.f_back
    return frame
