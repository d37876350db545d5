"""Earlier calls, calls in other threads and settings: what a result must not depend on, or change.

Each trial is a `Call` with a judge of its own. It begins from the first state of the function.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from linecache import getline
from operator import setitem
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from xbridge.extend import category, get_backend
from xbridge.testing._call import program
from xbridge.testing._interleavings import DeadlockError, Interleavings, run_alone
from xbridge.testing._outcome import Difference, compare, copied, kept, one_line, outcome, parts
from xbridge.testing._precision import retyped
from xbridge.testing._settings import changed_by, module_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xbridge.testing._call import Call, Program
    from xbridge.testing._interleavings import Switch
    from xbridge.testing._reachable import ReachableState
    from xbridge.testing._settings import Settings
    from xbridge.testing._source import Recipe

T = TypeVar("T")

_DEPENDS = "depends on earlier calls"

_MOST_CALLS = 3
"""The most earlier calls, after which what a function counts or collects may make a difference."""


def repetitions(call: Call, state: ReachableState) -> Iterator[Call]:
    """Yield the calls that find what an earlier call leaves behind: caches and buffers.

    A function without state is called once more, because it may be random.
    """
    narrowed = [] if state.is_empty else retyped(call)
    others = [call] if state.is_empty else _others(call)
    for one, other in [(call, one) for one in (*others, *narrowed)] + [(one, call) for one in narrowed]:
        by = partial(_judge_repeated, other=other, state=state)
        yield one._replace(by=by, options={"beside": "in a first call"})


def writes(call: Call, state: ReachableState, settings: Settings) -> Iterator[Call]:
    """Yield the calls that find what a function keeps: settings, its arguments and its result."""
    yield call._replace(by=partial(_judge_settings, settings=settings))
    if not (state.is_empty or get_backend(call.promise.backend).assumes_immutable):
        plain = call.map(lambda x: x._replace(properties=()))
        by = partial(_judge_overwritten, state=state)
        yield plain._replace(by=by, options={"beside": "in a first call"})


def races(call: Call, state: ReachableState, is_over: Callable[[], bool]) -> Iterator[Call]:
    """Yield the calls that find what a call in another thread changes, until the time is over."""
    for other in _others(call):
        by = partial(_judge_threads, other=other, state=state, is_over=is_over)
        yield call._replace(options={"beside": "alone"}, by=by)


def _others(call: Call) -> list[Call]:
    """Return calls of the same dtypes: the same one, one with other values, and longer ones."""
    return [call, call.map(_other_values), *(_longer(call, axis) for axis in (0, -1))]


def _longer(call: Call, axis: int) -> Call:
    """Return a call with twice the length along the first or the last axis of the first array."""
    sides = [one.values.shape[axis] for one in call.recipes() if one.values.ndim > -axis]

    def double(one: Recipe) -> Recipe:
        if not sides or one.values.ndim <= -axis or one.values.shape[axis] != sides[0]:
            return one
        return one.with_values(np.concatenate([one.values, one.values], axis))

    return call.map(double)


def _other_values(one: Recipe) -> Recipe:
    """Return an array of the same dtype and shape with other values, close to the given ones."""
    values = one.values.reshape(-1)[::-1].reshape(one.values.shape)
    kind = category(one.dtype)
    with np.errstate(all="ignore"):
        other = ~values if kind == "bool" else values // 2 + 1 if kind == "int" else values / 2 + 0.25
    return one.with_values(other.astype(one.values.dtype))


def _judge_repeated(call: Call, *, other: Call, state: ReachableState) -> Difference | None:
    """Compare a call after another one with the same call before it, and a result with itself before it."""
    one, another = call._replace(state=None), other._replace(state=None)
    state.restore()
    result = one.run()
    first = kept(result)
    if not state.is_empty:
        another.run()
    if found := compare(result, first, call.promise):
        made, before = _two_programs(call, other)
        lines = [f"first = {made.call}", before.call, *made.checked(found, "first")]
        return found._replace(kind="changes an earlier result", program=(*before.made, *lines))
    for count in [0] if state.is_empty else range(1, _MOST_CALLS + 1):
        state.restore()
        for _ in range(count):
            another.run()
        if found := compare(one.run(), first, call.promise):
            made, before = _two_programs(call, other)
            lines = [before.call] * count + made.checked(found)
            return found._replace(kind=_DEPENDS, program=(*before.made, *lines))
    return None


def _judge_settings(call: Call, *, settings: Settings) -> Difference | None:
    """Find a setting of the process that a call changes for all other code."""
    settings.restore()
    found = outcome(partial(changed_by, call.bind([one.make() for one in call.recipes()]))).result
    settings.restore()
    if found is None:
        return None
    text, before, after = found
    made = program(call)
    said = f"{text} was {one_line(before)} and became {one_line(after)}"
    lines = (
        f"import {module_of(text)}",
        f"before = str({text})",
        f"{made.call}  # {said}",
        f"assert str({text}) == before",
    )
    return Difference("changes a setting", said, program=lines)


def _judge_overwritten(call: Call, *, state: ReachableState) -> Difference | None:
    """Compare a call with itself after its result was overwritten, as its caller may do."""
    one = call._replace(state=None)
    state.restore()
    result = one.run()
    first, written = kept(result), []
    with ExitStack() as before:  # parts may share memory, so the one that was written last is put back first
        for path, part in parts(result.result):
            copy = copied(part)
            if copy is not part and outcome(partial(setitem, part, ..., _OTHER)).error is None:
                before.callback(setitem, part, ..., copy)
                written.append(path)
        found = compare(one.run(), first, call.promise)
    if found is None:
        return None
    made = program(call)
    lines = [f"first = {made.call}", *(f"first{path}[...] = {_OTHER}" for path in written)]
    found = found._replace(message=f"the result is memory that later calls read\n{found.message}")
    return found._replace(kind=_DEPENDS, program=(*lines, *made.checked(found)))


_OTHER = 77
"""A number that is written over results."""


def _judge_threads(
    call: Call, *, other: Call, state: ReachableState, is_over: Callable[[], bool]
) -> Difference | None:
    """Compare calls in two threads with calls alone, for each operation at which the first is stopped."""
    runs = Interleavings(state.roots)
    run, second = (each.bind([one.make() for one in each.recipes()]) for each in (call, other))

    def begin(start: Callable[..., T], *calls: Any) -> T:
        state.restore()
        return start(*calls)

    try:
        usual = kept(begin(run_alone, run)), kept(begin(run_alone, second))
        if usual[1].error is not None:
            return None
        begin(runs.switches, run)  # from Python 3.12 on, operations are traced from a second call on
        for switch in begin(runs.switches, run):
            if is_over():
                return None
            both = begin(runs.run, run, second, switch)
            for number, (made, alone) in enumerate(zip(both, usual, strict=True)):
                if found := compare(made, alone, call.promise):
                    return _describe_race(call, other, switch, number, found)
    except DeadlockError:
        text = "two calls in threads wait for each other"
        return Difference("is not safe in threads", text, program=("# the calls would not end",))
    finally:
        state.restore()
    return None


def _describe_race(call: Call, other: Call, switch: Switch, number: int, found: Difference) -> Difference:
    """Return a difference with the place of a switch, and a program that switches there."""
    made, second = _two_programs(call, other)
    source = getline(switch.code.co_filename, switch.line).strip()
    where = f"line {switch.line} of {switch.code.co_name}" + (f", {source}" if source else "")
    message = f"{'the second call: ' * number}{found.message}\nwhile another thread runs at {where}"
    lines = (
        *second.made,
        "import sys",
        "from concurrent.futures import ThreadPoolExecutor, wait",
        "pool, seconds = ThreadPoolExecutor(2), []",
        "def switch(frame, event, argument):",
        "    frame.f_trace_opcodes = True",
        f"    here = {switch.code.co_name!r}, {switch.offset}  # {where}",
        "    if event == 'opcode' and not seconds and (frame.f_code.co_name, frame.f_lasti) == here:",
        f"        seconds.append(pool.submit(lambda: {second.call}))",
        "        wait(seconds, 1)",
        "    return switch",
        "def call_first():",
        "    sys.settrace(switch)",
        "    sys._getframe().f_trace_opcodes = True  # Python 3.12 reports operations if tracing starts then",
        "    sys.settrace(switch)",
        f"    return {made.call}",
        *["pool.submit(call_first).result()"] * number,
        *made.checked(found, ("pool.submit(call_first).result()", "seconds[0].result()")[number]),
    )
    return found._replace(kind="is not safe in threads", message=message, program=lines)


def _two_programs(call: Call, other: Call) -> tuple[Program, Program]:
    """Return the programs of two calls, with other names for the arrays of the second."""
    return program(call), program(other, taken=len(call.recipes()))
