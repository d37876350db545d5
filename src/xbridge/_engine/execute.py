"""How a plan is run: the one place where every conversion passes, so those who watch stand here.

What a library raises on the way is chained to an error of ours. While nobody watches, that anybody could
costs one look at a flag here, and nothing on the hot path. While somebody does, the tables of the hot path
are empty, so that every conversion has a plan and comes by. What another thread does is told as done by the
line that began it.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from contextvars import ContextVar, copy_context
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from xbridge.backends import _registry
from xbridge.errors import (
    Chained,
    DeviceError,
    DTypeError,
    GradientError,
    UnsupportedArrayError,
    ValueLossError,
    index_errors,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from xbridge._core.protocol import Array, Backend
    from xbridge._plan.steps import Plan, Step
    from xbridge.errors import XBridgeError

P = ParamSpec("P")
T = TypeVar("T")

_FAILURES: dict[str, type[XBridgeError]] = {
    "astype": DTypeError,
    "check_cast": DTypeError,
    "to_device": DeviceError,
    "to_device_many": DeviceError,
    "stream_to_device": DeviceError,
    "to_dlpack": DeviceError,
    "from_dlpack": DeviceError,
    "detach": GradientError,
    "require_grad": GradientError,
}
_ENTRANCES = (
    *(
        "xbridge._api",
        "xbridge._align_back",
        "xbridge._observe.policy",
        "xbridge._transfer.api",
        "xbridge.tree.verbs",
    ),
)
"""The modules whose functions users call to convert."""


class Caller(NamedTuple):
    """A line that called for a conversion, named as a frame names it, without its variables."""

    f_code: CodeType
    f_lineno: int
    f_globals: dict[str, Any]


_called: ContextVar[Caller | None] = ContextVar("xbridge caller", default=None)
"""Who called for what is done in this thread, where another one began it."""


def run(x: Array, plan: Plan) -> Array:
    """Do the steps, in sight of whoever watches. What a compiler traces, it runs without us."""
    if is_watched(plan.conversion.target):
        return watched([x[0] if isinstance(x, list) else x], [plan], lambda: perform(x, plan))
    return perform(x, plan)


def is_watched(target: Backend) -> bool:
    """Whether somebody watches, and can see what is done for this target."""
    return bool(_registry.watchers) and not target.is_tracing()


def perform(x: Array, plan: Plan) -> Array:
    """Do the steps, out of sight: for who has said what is done."""
    with Chained(lambda error: _failed(step, plan, error)):  # the step that was last begun
        try:
            for step in plan.steps:
                x = getattr(step.module, step.op)(x, *step.args)
        except ValueLossError as error:
            conversion = plan.conversion
            if conversion.target.unsupported_dtype(conversion.info.dtype, conversion.device) is None:
                raise
            raise ValueLossError.narrowing(conversion.info.dtype, conversion.dtype, both=False) from error
    return x


def _failed(step: Step, plan: Plan, error: Exception) -> XBridgeError:
    failure = _FAILURES.get(step.op, UnsupportedArrayError)
    reason = f"the step {step.action} failed with {error!r}"
    return failure.build(plan.conversion.asked(), reason, f"that step in {step.module.name} itself")


def watched(xs: list[Array], plans: list[Plan], do: Callable[[], T]) -> T:
    """Do what is planned for some arrays: the policy is asked before, and the records are told afterwards.

    Of a list that is stacked, one array stands for all. Those that are done together share the time by bytes.
    """
    from xbridge._observe import policy as _policy  # noqa: PLC0415 -- only while somebody watches
    from xbridge._observe import record as _record  # noqa: PLC0415 -- only while somebody watches

    told, by = [plan.with_sizes(x) for x, plan in zip(xs, plans, strict=True)], caller()
    for _ in index_errors(map(_policy.forbid, told)):
        pass
    for plan in told:
        _policy.warn(plan, by)
    begin = perf_counter()
    made = do()
    seconds = perf_counter() - begin
    shares = [1 + sum(step.nbytes or 0 for step in plan.steps) for plan in told]
    for plan, share in zip(told, shares, strict=True):
        _record.record_conversion(plan, by, seconds * share / sum(shares))
    return made


def caller() -> Caller:
    """Where the user called us: outside of the innermost function of ours that users call."""
    known = _called.get()
    if known:
        return known
    frame = sys._getframe()  # noqa: SLF001 -- warnings and tracebacks use it likewise
    while frame.f_back and frame.f_globals.get("__name__") not in _ENTRANCES:
        frame = frame.f_back
    while frame.f_back and str(frame.f_globals.get("__name__")).startswith(("xbridge._", "xbridge.tree.")):
        frame = frame.f_back
    return Caller(frame.f_code, frame.f_lineno, frame.f_globals)


def begun_by(by: Caller, fn: Callable[P, T]) -> Callable[P, T]:
    """`fn` for another thread: what it converts, `by` has called for, under the policy of this thread now.

    The block of that policy may be left before the thread is done, or has begun.
    """
    context, rules = copy_context(), None
    context.run(_called.set, by)
    if _registry.watchers:
        from xbridge._observe.policy import policy  # noqa: PLC0415 -- only while somebody watches

        rules = policy(**policy.now()._asdict())

    def begun(*args: P.args, **options: P.kwargs) -> T:
        with rules or nullcontext():
            return fn(*args, **options)

    return partial(context.run, begun)
