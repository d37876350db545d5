"""A plan: what was asked, the steps that do it, and how they are run.

Each step is one verb of one room: the source's, the target's or the host's. What a library raises on the
way is chained to an error of ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from xbridge.errors import (
    FOREIGN_ERRORS,
    DeviceError,
    DTypeError,
    GradientError,
    UnsupportedArrayError,
    XBridgeError,
)

if TYPE_CHECKING:
    from types import ModuleType

    from xbridge._devices import Device
    from xbridge._protocol import Array, Backend, Facts


class Request(NamedTuple):
    """What the caller asked, checked and in canonical words."""

    device: Device | None = None
    dtype: str | None = None
    copy: bool | None = None
    grad: str | None = None
    track: bool = False
    exact: bool = False
    """Whether no value may be lost, though the dtype was named."""
    traced: bool = False
    """Whether a compiler will handle the result, which makes read-only arrays writable."""


class Step(NamedTuple):
    """One verb of one room: the source's, the target's, or the host's."""

    room: Backend | ModuleType
    verb: str
    args: tuple[object, ...] = ()
    copies: str = ""
    """Why it makes new memory; empty if it does not."""


class Route(NamedTuple):
    """Where an array comes from and where it goes."""

    source: Backend
    target: Backend
    facts: Facts
    request: Request
    dtype: str
    device: Device

    def asked(self) -> str:
        """The conversion in words, for errors."""
        return in_words(self.source, self.facts, self.target)


class Plan(NamedTuple):
    """What will be done to an array, in order."""

    route: Route
    steps: tuple[Step, ...]


def in_words(source: Backend, facts: Facts, target: Backend) -> str:
    """What was given and what was asked, as errors begin."""
    given = f"{source.name} {facts.dtype} array of shape {facts.shape} on {facts.device}"
    return f"convert a {given} to {target.name}"


_FAILURES: dict[str, type[XBridgeError]] = {
    "cast": DTypeError,
    "check": DTypeError,
    "move": DeviceError,
    "export": DeviceError,
    "import_": DeviceError,
    "detach": GradientError,
    "track": GradientError,
}


def run(x: Array, plan: Plan) -> Array:
    """Do the steps. What a library raises is chained to ours."""
    for step in plan.steps:
        try:
            x = getattr(step.room, step.verb)(x, *step.args)
        except XBridgeError:
            raise
        except FOREIGN_ERRORS as error:
            failure = _FAILURES.get(step.verb, UnsupportedArrayError)
            why = f"the step {' '.join(map(str, (step.verb, *step.args)))} failed with {error!r}"
            raise failure.because(plan.route.asked(), why, f"that step in {step.room.name} itself") from error
    return x
