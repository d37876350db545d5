"""The smallest call that fails as another one does: of fewer arguments, with plain properties and values.

Each step is kept if the call still fails in the same way, and in the same line of the library. A call that
fails because of its properties keeps passing without them, so that the cause stays the same.
"""

from __future__ import annotations

import inspect
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xbridge._core.devices import CPU
from xbridge.testing._call import removals
from xbridge.testing._outcome import outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xbridge._core.protocol import HostArray
    from xbridge.testing._call import Call
    from xbridge.testing._outcome import Difference
    from xbridge.testing._source import Recipe
    from xbridge.testing.check.stages import Change


class Failure(NamedTuple):
    """A call, what is wrong with it, and the line of the library that raises."""

    call: Call
    difference: Difference
    line: str
    """A file and a number; "" if nothing raises."""

    def is_like(self, other: Failure | None) -> bool:
        """Return True if another call fails in the same way."""
        return other is not None and (other.difference.kind, other.line) == (self.difference.kind, self.line)


def fail(call: Call, package: str) -> Failure | None:
    """Run a call, and return how it fails; None if it does not."""
    difference = call.judge()
    if difference is None:
        return None
    line = _line_of(call, package) if difference.kind.startswith("raises") else ""
    return Failure(call, difference, line)


def _line_of(call: Call, package: str) -> str:
    """Return the last line of a package that an exception of a call comes from."""
    filled = call.fill([one.make() for one in call.recipes()])
    error = outcome(partial(call.f, *filled.args, **filled.kwargs)).error
    frames = reversed(traceback.extract_tb(error.__traceback__ if error else None))
    return next(filter(None, (_place(one.filename, one.lineno, package) for one in frames)), "")


def line_of_definition(f: Callable[..., Any], package: str) -> str:
    """Return the line of a package at which a function is defined; "" if it is not defined there."""
    code = getattr(inspect.unwrap(f), "__code__", None)
    return _place(code.co_filename, code.co_firstlineno, package) if code else ""


def _place(path: str, number: int | None, package: str) -> str:
    """Return the file of a package and a line; "" for a file of another one."""
    _, found, rest = path.replace("\\", "/").rpartition(f"/{package}/")
    if found:
        return f"{package}/{rest}:{number}"
    return f"{package}.py:{number}" if path.endswith(f"/{package}.py") else ""


def without_properties(call: Call) -> Call:
    """Return the call with plain arrays of the same values on the default device."""
    return call.map(lambda one: one._replace(properties=(), device=CPU))


def has_properties(call: Call) -> bool:
    """Return True if an array has a property or is on another device."""
    return any(one.properties or one.device != CPU for one in call.recipes())


def shrink(failure: Failure, package: str, is_over: Callable[[], bool]) -> tuple[Failure, list[str]]:
    """Return the smallest call that fails in the same way, and the properties that it needs."""
    is_plain = has_properties(failure.call) and fail(without_properties(failure.call), package) is None

    def try_call(call: Call) -> Failure | None:
        again = fail(call, package)
        if again is None or not failure.is_like(again):
            return None
        if is_plain and fail(without_properties(call), package) is not None:
            return None
        return again if call.expected().error is None or failure.call.expected().error is not None else None

    is_shorter = True
    while is_shorter and not is_over():
        is_shorter = False
        for simpler in _simpler(failure.call):
            if is_over():
                break
            again = try_call(simpler)
            if again is not None:
                failure, is_shorter = again, True
                break
    return failure, [name for name, _ in removals(failure.call)]


def _simpler(call: Call) -> Iterator[Call]:
    """Yield calls that are simpler in one way, the largest steps first."""
    recipes = call.recipes()
    for name in call.kwargs:
        yield call._replace(kwargs={k: value for k, value in call.kwargs.items() if k != name})
    for _, remove in removals(call):
        yield remove(call)
    for number, one in enumerate(recipes):
        for name in one.properties:
            yield _change(call, number, one.without(name))
    longest = max((one.values.ndim for one in recipes), default=0)
    if longest > 1:
        yield _with_values(call, lambda _, v: v[0] if v.ndim == longest else v)
    for side in sorted({n for one in recipes for n in one.values.shape if n > 1}, reverse=True):
        for length in (n for n in (1, 2, 3, side // 2, side - 1) if n < side):
            yield _with_values(call, partial(_cut, side=side, length=length))
            yield _with_values(call, partial(_cut, side=side, length=-length))
    for number, one in enumerate(recipes):
        for simple in _plainer(one.values):
            yield _change(call, number, one.with_values(simple))


def _with_values(call: Call, change: Change) -> Call:
    """Return the call with other values, and of the properties those that they can have."""
    return call.fill(one.with_values(change(n, one.values)) for n, one in enumerate(call.recipes()))


def _change(call: Call, number: int, recipe: Recipe) -> Call:
    return call.fill([recipe if n == number else one for n, one in enumerate(call.recipes())])


def _cut(_index: int, values: HostArray, *, side: int, length: int) -> HostArray:
    """Shorten the sides of one length: a negative number of elements is counted from the end."""
    part = slice(length) if length > 0 else slice(length, None)
    cut: HostArray = values[tuple(part if n == side else slice(None) for n in values.shape)]
    return cut


def _plainer(values: HostArray) -> Iterator[HostArray]:
    """Yield values that are easier to read: sorted ones, and ones of few digits."""
    if values.dtype.kind != "f" or not values.size or not np.isfinite(values).all():
        return
    for made in (np.sort(values, axis=None).reshape(values.shape), np.round(values, 1), np.round(values, 3)):
        plain: Any = made.astype(values.dtype)
        if plain.tobytes() != values.tobytes() and len(str(plain.tolist())) <= len(str(values.tolist())):
            yield plain
