"""Force interleavings of two calls in threads, instead of waiting for them to happen.

A race between threads depends on luck, and a test that waits for it fails now and then. So the first call is
traced, and stopped before each of its operations in turn, where a second call runs to its end in another
thread. One such switch shows most races. Only code of the tested packages is stopped.
"""

from __future__ import annotations

import dis
import sys
from contextvars import copy_context
from functools import cache
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from xbridge.testing._outcome import catch
from xbridge.testing._reachable import root_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import TypeAlias

    from xbridge.testing._outcome import Outcome

    TraceFunction: TypeAlias = "Callable[[FrameType, str, object], TraceFunction | None]"

_LOCAL = (
    "LOAD_FAST",
    "STORE_FAST",
    "LOAD_CONST",
    "PUSH_NULL",
    "RESUME",
    "POP_TOP",
    "PRECALL",
    "COPY",
    "SWAP",
)
"""The prefixes of the names of bytecode operations that other threads cannot notice."""

_MOST_SWITCHES = 200
"""The most operations before which a call is stopped."""

_PATIENCE = 0.2
"""Seconds that the second call may wait for a lock of the stopped call, before that continues."""

_IMPATIENCE = 0.005
"""The same after a second call has once waited in vain."""

_LONGEST = 20.0
"""Seconds after which two calls are regarded as a deadlock."""


class Switch(NamedTuple):
    """An operation before which a call is stopped."""

    code: CodeType
    offset: int
    line: int


def run_alone(call: Callable[[], Any]) -> Outcome:
    """Run a call in a thread of its own, where settings of the thread are as in the others."""
    return _CallThread(call).wait()


class Interleavings:
    """Runs of two calls, of which the first is stopped while the second runs."""

    def __init__(self, roots: frozenset[str]) -> None:
        self._roots = roots
        self._patience = _PATIENCE

    def switches(self, call: Callable[[], Any]) -> list[Switch]:
        """Return the operations of a call that other threads may notice."""
        found: dict[Switch, None] = {}
        _CallThread(call, _tracer(found.setdefault, self._roots)).wait()
        step = -(-len(found) // _MOST_SWITCHES) or 1
        return [*found][::step]

    def run(
        self, first: Callable[[], Any], second: Callable[[], Any], switch: Switch
    ) -> tuple[Outcome, Outcome]:
        """Run one call until an operation, then another one to its end, then the rest of the first.

        If the second waits for a lock of the first, the first goes on beside it.

        Raises
        ------
        DeadlockError
            Both wait for each other.
        """
        started: list[_CallThread] = []

        def stop(here: Switch) -> None:  # pragma: no cover -- coverage is a tracer too, and tracing ends here
            if here == switch and not started:
                _end_tracing()  # the rest of the first call is as fast as usual
                started.append(_CallThread(second))
                started[0].join(self._patience)
                if started[0].is_alive():  # it waits for a lock that is held at the next operations too
                    self._patience = _IMPATIENCE

        outcome = _CallThread(first, _tracer(stop, self._roots, switch.code)).wait()
        return outcome, started[0].wait() if started else run_alone(second)


class DeadlockError(RuntimeError):
    """Two calls in threads wait for each other."""


class _CallThread(Thread):
    """A call in a thread of its own, optionally traced."""

    def __init__(self, call: Callable[[], Any], tracer: TraceFunction | None = None) -> None:
        super().__init__(daemon=True)
        self._call, self._tracer = call, tracer
        self._settings = copy_context()  # `_context` is an attribute of every thread from Python 3.14 on
        self._outcome: Outcome | None = None
        self.start()

    def run(self) -> None:  # pragma: no cover -- coverage is a tracer too, and another one begins here
        sys.settrace(self._tracer)
        if self._tracer is not None:
            # Python 3.12 reports operations only if a frame has asked for them when tracing starts. A frame
            # that asks in a thread that is not traced ends the process there, if another thread is traced.
            sys._getframe().f_trace_opcodes = True  # noqa: SLF001 -- the frame of this call
            sys.settrace(self._tracer)
        try:
            self._outcome = self._settings.run(catch, self._call)
        finally:
            _end_tracing()

    def wait(self) -> Outcome:
        """Return the outcome of the call."""
        self.join(_LONGEST)
        if self._outcome is None:
            raise DeadlockError
        return self._outcome


def _end_tracing() -> None:  # pragma: no cover -- coverage is a tracer too
    """End the tracing of this thread, for which no frame asks any more: see `_CallThread.run`."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 -- the frames of this thread
    while frame is not None:
        frame.f_trace_opcodes = False
        frame = frame.f_back
    sys.settrace(None)


def _tracer(
    stop: Callable[[Switch], object], roots: frozenset[str], only: CodeType | None = None
) -> TraceFunction:
    """Return a trace function that calls another one before each operation that threads may notice.

    Only one function is traced if its code is given.
    """

    def trace(frame: FrameType, event: str, _argument: object) -> TraceFunction | None:
        if event == "call":
            is_ours = root_of(frame.f_globals.get("__name__")) in roots
            if not is_ours or only not in (None, frame.f_code):
                return None
            frame.f_trace = trace  # without it, Python 3.12 and newer trace no operations of this call
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
        elif event == "opcode" and frame.f_lasti in _shared(frame.f_code):
            stop(Switch(frame.f_code, frame.f_lasti, frame.f_lineno))
        return trace

    return trace


@cache
def _shared(code: CodeType) -> frozenset[int]:
    """Return the offsets of the operations of a function that other threads may notice."""
    return frozenset(step.offset for step in dis.get_instructions(code) if not step.opname.startswith(_LOCAL))
