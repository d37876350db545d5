"""Execute a plan, and notify observers such as a policy or a record.

An exception that a library raises in a step becomes the cause of an error of xbridge. While there is an
observer, no call is cached, so that every conversion has a plan that observers can see. Without one, this
feature costs one read of a counter.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from time import perf_counter
from types import CodeType
from typing import Any, NamedTuple, TypeVar

from xbridge._core.devices import CPU, absent_device_error
from xbridge._core.entry_points import codes
from xbridge._core.protocol import Array, Backend
from xbridge._core.tracing import none_in_traces, outside_traces, traced_as
from xbridge._plan.rules import has_device
from xbridge._plan.steps import Plan, Step
from xbridge._registry import registry
from xbridge.errors import (
    Chained,
    DeviceError,
    DTypeError,
    GradientError,
    UnsupportedArrayError,
    ValueLossError,
    XBridgeError,
    index_errors,
)

T = TypeVar("T")

_MOVES = ("to_device_many", "stream_to_device")
"""Steps that are functions of `transfers`."""

_FAILURES: dict[str, type[XBridgeError]] = {
    **dict.fromkeys(("astype", "check_cast"), DTypeError),
    **dict.fromkeys(("to_device", *_MOVES), DeviceError),
    **dict.fromkeys(("to_dlpack", "from_dlpack"), DeviceError),
    **dict.fromkeys(("detach", "require_grad"), GradientError),
}


_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep  # noqa: PTH120 -- as code objects have it
_KIT = _PACKAGE + "testing" + os.sep
"""The test kit calls conversions as a user does."""


class CallSite(NamedTuple):
    """A line that asked for a conversion: the attributes of a frame object without its local variables.

    So a record keeps no array alive.
    """

    f_code: CodeType
    f_lineno: int
    f_globals: dict[str, Any]


inherited_call_site: ContextVar[CallSite | None] = ContextVar("xbridge caller", default=None)
"""For a worker thread, the line that asked for its work in the thread that started it."""


@outside_traces
def find_call_site() -> CallSite:
    """Return the line outside of the package that called the innermost entry point on the stack."""
    known = inherited_call_site.get()
    if known:
        return known
    frame = sys._getframe()  # noqa: SLF001 -- `logging` and `warnings` find callers by it too
    while frame.f_back and id(frame.f_code) not in codes:
        frame = frame.f_back
    while frame.f_back and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return CallSite(frame.f_code, frame.f_lineno, frame.f_globals)


def is_ours(file: str) -> bool:
    """Return True for files of this package except the test kit, which calls xbridge as users do."""
    return file.startswith(_PACKAGE) and not file.startswith(_KIT)


class Observer:
    """The base class of observers, which are notified of every conversion: policies and records."""

    def forbid(self, plan: Plan) -> None:
        """Raise an error if the conversion may not run."""

    def before(self, plan: Plan, caller: CallSite) -> None:
        """Observe a conversion before it runs."""

    def after(self, plan: Plan, caller: CallSite, seconds: float, source: Array, result: Array) -> None:
        """Observe a conversion after it has run, and the time that it took."""


@traced_as(lambda _: False)
def is_observed(target: Backend) -> bool:
    """Return True if there is an observer, and conversions to the target can be observed."""
    return bool(registry.observers) and not target.is_tracing()


def run_steps(x: Array, plan: Plan, steps: Sequence[Step] | None = None, each: Sequence[Plan] = ()) -> Array:
    """Execute all steps of a plan, or the given ones.

    If `x` is a list of arrays that are converted together, `each` has their plans, so that an error can name
    the array that failed.
    """
    steps = plan.steps if steps is None else steps
    with Chained(lambda error: _step_error(step, plan, error)):  # the last step that began
        try:
            for step in steps:
                owner = step.module.transfers if step.op in _MOVES else step.module
                x = getattr(owner, step.op)(x, *step.args)
            _wait_for_cast(plan, steps)
        except ValueLossError as error:
            conversion = (plan if error.index is None or not each else each[error.index]).conversion
            lacks = conversion.target.unsupported_dtype(conversion.info.dtype, conversion.device)
            if lacks is None:
                raise
            narrowing = ValueLossError.narrowing(conversion.info.dtype, conversion.dtype, cure=lacks.hint)
            narrowing.index = error.index
            raise narrowing from error
    return x


@none_in_traces
def _wait_for_cast(plan: Plan, steps: Sequence[Step]) -> None:
    """Wait for a cast that follows a move from the host to a device.

    The contract says that such a transfer is complete on return, so that any stream may use the result.
    """
    target, start, result_device = plan.conversion.target, plan.conversion.info.device, plan.conversion.device
    if start != CPU or result_device == CPU or not steps or steps[-1].op == "to_device":
        return
    casts = any(step.op == "astype" and step.module is target for step in steps)
    if casts and result_device in target.devices():
        target.transfers.queue_mark(result_device)()


def _step_error(step: Step, plan: Plan, error: Exception) -> XBridgeError:
    failure, target = _FAILURES.get(step.op, UnsupportedArrayError), plan.conversion.target
    reason = f"the step {step.action} failed with {error!r}"
    hint = ""
    if step.op == "check_cast":
        hint = f"naming it: dtype={step.args[0]!r}"
    elif failure is DeviceError and not has_device(target, device := plan.conversion.device):
        return absent_device_error(target.name, device, target.devices(), plan.conversion.asked())
    return failure.build(plan.conversion.asked(), reason, hint)


def run_observed(xs: list[Array], plans: list[Plan], do: Callable[[], T]) -> T:
    """Call `do`, which executes the plans of some arrays, and notify observers before and after.

    Of a list that is stacked, `xs` has the first array only. The time of arrays that are converted together
    is divided among them in proportion to their bytes.
    """
    sized, by = [plan.with_sizes(x) for x, plan in zip(xs, plans, strict=True)], find_call_site()
    notified = registry.observers
    for observer in notified:
        for _ in index_errors(map(observer.forbid, sized)):
            pass
    for observer in notified:
        for plan in sized:
            observer.before(plan, by)
    begin = perf_counter()
    made = do()
    seconds = perf_counter() - begin
    shares = [1 + sum(step.nbytes or 0 for step in plan.steps) for plan in sized]
    results: list[Array] = made if isinstance(made, list) else [made]
    for plan, share, x, y in zip(sized, shares, xs, results, strict=True):
        for observer in notified:
            observer.after(plan, by, seconds * share / sum(shares), x, y)
    return made
