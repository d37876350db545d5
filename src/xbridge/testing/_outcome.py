"""The outcome of a call: the parts of its result, or its exception, and its warnings.

Two outcomes are compared part by part: the promised library, device and dtype, the shape and the values. The
first difference has a short name, its kind, by which failures with one cause are recognized.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xbridge.errors import XBridgeError, type_of
from xbridge.extend import (
    backend_for,
    category,
    get_backend,
    is_inexact,
    printable,
    resolve_dtype,
)
from xbridge.testing._diff import Tolerance, differences, get_library, look_in, resolve
from xbridge.testing._source import literal, read_expression

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge import Device
    from xbridge.testing._diff import Look

_CRASHES = (AttributeError, NameError, AssertionError, RecursionError)
"""Errors that count as a crash of the function and not as a refusal, even if NumPy's call raises too."""


MOST_LISTED = 64
"""The most values that a program lists."""

_SHOWN = 120
"""The most characters of a value in one line."""


class Outcome(NamedTuple):
    """The result or the exception of a call, and its warnings."""

    result: Any
    error: BaseException | None
    warned: tuple[warnings.WarningMessage, ...]
    read: list[_Part] | None = None
    """A copy of the parts of the result, if later calls may change them."""


class Difference(NamedTuple):
    """The first difference between two outcomes."""

    kind: str
    message: str
    path: str = ""
    """The code that selects the part of the result."""
    check: str = ""
    """A statement that raises if `{part}` is wrong, with `{array}` for an argument."""
    program: tuple[str, ...] = ()
    """Statements of a program after those that make the arrays, where a call and a check do not say it."""


class Promise(NamedTuple):
    """The options of a comparison: how far an outcome must agree with that of the same call with NumPy."""

    backend: str
    device: Device
    dtype: str = "same"
    rtol: float | None = None
    ulp: float | None = None
    errors: bool = True
    warnings: bool = True
    inputs: tuple[str, ...] = ()
    """The floating dtypes of the arguments: a Python number that is computed from them is no more exact."""
    beside: str = "with NumPy"
    """The other call, as messages name it."""


def describe_error(error: BaseException) -> Difference:
    """Return the difference that a call raises."""
    name = type(error).__name__
    return Difference(f"raises {name}", f"{name}: {first_line(error)}")


def outcome(call: Callable[[], Any]) -> Outcome:
    """Run a call to its end: an iterator is read, and warnings are collected."""
    with ExitStack() as stack, warnings.catch_warnings(record=True) as warned:
        if torch := sys.modules.get("torch"):  # which gives some warnings once in a process
            stack.callback(torch.set_warn_always, torch.is_warn_always_enabled())
            torch.set_warn_always(True)
        warnings.simplefilter("always")
        found = catch(call)
    return found._replace(warned=tuple(warned))


def catch(call: Callable[[], Any]) -> Outcome:
    """Run a call to its end, as `outcome` does, without its warnings, which all threads share."""
    result, raised = None, list[BaseException]()

    def keep(_kind: object, error: BaseException | None, _trace: object) -> bool:
        raised.extend([error] if isinstance(error, Exception | SystemExit) else [])
        return bool(raised)

    with ExitStack() as stack:
        stack.push(keep)
        result = call()
        if isinstance(result, Iterator):
            result = list(result)
    return Outcome(result, raised[0] if raised else None, ())


def parts(result: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the parts of a result in order, each with the code that selects it."""
    if isinstance(result, Mapping):
        for key in result:
            yield from parts(result[key], f"{path}[{key!r}]")
    elif isinstance(result, tuple | list):  # by position: not every library names the fields of a result
        for index, part in enumerate(result):
            yield from parts(part, f"{path}[{index}]")
    elif is_dataclass(result) and not isinstance(result, type):
        for field in fields(result):
            yield from parts(getattr(result, field.name), f"{path}.{field.name}")
    else:
        yield path, result


def compare(actual: Outcome, expected: Outcome, promise: Promise) -> Difference | None:
    """Return the first difference from NumPy's outcome; None if there is none."""
    actual, read = _read(actual)
    expected, usual = _read(expected)
    if actual.error is not None:
        if expected.error is not None and not isinstance(actual.error, _CRASHES):
            return None
        return describe_error(actual.error) if promise.errors else None
    if expected.error is not None:
        text = f"{type(expected.error).__name__}: {first_line(expected.error)}"
        said = f"the call {promise.beside} raises {text}"
        return Difference("does not raise", said) if promise.errors else None
    if [part.path for part in read] != [part.path for part in usual]:
        text = f"its results are {_paths(read)}; {promise.beside} {_paths(usual)}"
        check = "assert not isinstance(result, (tuple, list, dict))"
        if isinstance(expected.result, tuple | list):
            check = f"assert isinstance(result, (tuple, list)) and len(result) == {len(expected.result)}"
        return Difference("structure", text, check=check)
    for one, other in zip(read, usual, strict=True):
        path = one.path
        if found := _compare_part(one, other, promise):
            message = f"result{path}: {found.message}" if path else found.message
            return found._replace(message=message, path=path)
    return _compare_warnings(actual, expected) if promise.warnings else None


def first_line(error: BaseException | str) -> str:
    """Return the first line of a message, as a comment of a program can have it."""
    return printable((str(error).strip().splitlines() or [""])[0])


class _Part(NamedTuple):
    """A part of a result that was read."""

    path: str
    value: Any
    look: Look | None


def _read(made: Outcome) -> tuple[Outcome, list[_Part]]:
    """Return an outcome and the parts of its result; its error is that of reading, if a lazy part raises."""
    if made.read is not None:
        return made, made.read
    found = outcome(lambda: [_Part(path, part, _look(part)) for path, part in parts(made.result)])
    whole = made._replace(error=made.error or found.error, warned=(*made.warned, *found.warned))
    return whole, found.result or []


def kept(made: Outcome) -> Outcome:
    """Return an outcome with a copy of its result, because that may be a buffer that later calls fill."""
    whole, read = _read(made)
    return whole._replace(read=[one._replace(value=copied(one.value)) for one in read])


def copied(x: Any) -> Any:
    """Return a copy of an array that may be overwritten, and anything else as it is."""
    backend = backend_for(type(x))
    if backend is None or backend.assumes_immutable or not isinstance(x, backend.array_types):
        return x
    made = outcome(lambda: backend.copy(x))
    return x if made.error is not None else made.result


def _paths(found: list[_Part]) -> str:
    return ", ".join(part.path or type(part.value).__name__ for part in found) or "nothing"


def _compare_warnings(actual: Outcome, expected: Outcome) -> Difference | None:
    """Compare the classes of warnings. Each library has its own RuntimeWarnings about numbers."""
    usual = {each.category for each in expected.warned} | {RuntimeWarning}
    for each in actual.warned:
        if not issubclass(each.category, tuple(usual)):
            name = each.category.__name__
            return Difference(f"warns {name}", f"{name}: {first_line(each.message)}")
    return None


def _compare_part(  # noqa: PLR0911 -- a return for each difference, in the order of their weight
    mine: _Part, theirs: _Part, promise: Promise
) -> Difference | None:
    one, a, other, b = mine.value, mine.look, theirs.value, theirs.look
    if a is None or b is None:
        is_array = b is not None and not isinstance(other, np.generic | int | float | complex)
        if a is None and is_array and one is not None:
            text = f"{type_of(one)}, and {promise.beside} an array"
            return Difference("backend", text, check=_IS_LIKE)
        both = a is None and b is None and (one is None) == (other is None)
        same = both and (type(one) is not type(other) or _is_equal(one, other))
        is_plain = isinstance(other, str | int | float | complex | np.generic | None)
        check = f"assert {{part}} == {other!r}".replace("== None", "is None") if is_plain else ""
        check = "assert {part} is not None" if one is None else check
        return None if same else Difference("values", _short(one, other, promise), check=check)
    if not isinstance(one, int | float | complex):
        owned = backend_for(type(one)) is not None
        if found := find_foreign(a.backend if owned else promise.backend, a.device, promise):
            return found
        is_number = isinstance(other, int | float | complex) and not isinstance(other, np.generic)
        near = resolve_dtype("nearest", b.dtype, get_backend(promise.backend), promise.device)
        is_kind = promise.dtype == "kind" and category(a.dtype) == category(near)
        if not (is_number or is_kind or promise.dtype == "any" or a.dtype == near):
            check = f"assert str({{part}}.dtype).rpartition('.')[2] != {a.dtype!r}"
            text = f"the result is {a.dtype}, and {promise.beside} {b.dtype}"
            return Difference("dtype", text, check=check)
    if a.shape != b.shape:
        shape = "tuple({part}.shape)" if hasattr(one, "shape") else "np.shape({part})"
        text = f"the shape is {a.shape}, and {promise.beside} {b.shape}"
        return Difference("shape", text, check=f"assert {shape} == {b.shape}")
    if a.dtype == b.dtype and a.values.tobytes() == b.values.tobytes():
        return None
    dtypes = (a.dtype, b.dtype, *(promise.inputs if is_inexact(a.dtype) else ()))
    close = Tolerance.of(*dtypes, rtol=promise.rtol, ulp=promise.ulp, equal_nan=True)
    lines = differences(a, b, [], close.agree, names=("actual", promise.beside), explain=close.explain)
    if not lines:
        return None
    check = _check_values(one, a, b, close)
    return Difference("values", "\n".join([_short(one, other, promise), *lines]), check=check)


_IS_LIKE = "assert isinstance({part}, type({array}))"


def find_foreign(backend: str, device: Device, promise: Promise) -> Difference | None:
    """Return the difference of a result that is of another library or on another device."""
    if get_library(backend) != get_library(promise.backend):
        text = f"the result is of {backend}, and the arguments of {promise.backend}"
        return Difference("backend", text, check=_IS_LIKE)
    if device != promise.device:
        text = f"the result is on {device}, and the arguments on {promise.device}"
        return Difference("device", text, check="assert {part}.device == {array}.device")
    return None


def _check_values(one: Any, a: Look, b: Look, near: Tolerance) -> str:
    """Return a statement on the values of an array or a number; "" for more than a program lists."""
    if b.values.size > MOST_LISTED or b.values.dtype.kind not in "biufc":
        return ""
    code = "{part}" if backend_for(type(one)) is None else read_expression(a.backend, "{part}")
    if near.relative == near.absolute == 0:
        return f"np.testing.assert_array_equal({code}, {literal(b.values)})"
    tolerances = f"rtol={near.relative}, atol={near.absolute}"
    return f"np.testing.assert_allclose({code}, {literal(b.values)}, {tolerances})"


def _short(one: Any, other: Any, promise: Promise) -> str:
    """Return both values in one line."""
    return f"gives {one_line(repr(one))}, and {promise.beside} {one_line(repr(other))}"


def one_line(text: str) -> str:
    """Return the beginning of a text in one line."""
    return " ".join(text.split())[:_SHOWN]


def _look(x: Any) -> Look | None:
    """Read an array or a number; None for any other object. A lazy array is computed."""
    try:
        backend, x = resolve(np.asarray(x) if isinstance(x, int | float | complex) else x, "compare")
    except XBridgeError:
        return None
    found = look_in(backend, x)
    return found._replace(shape=found.values.shape)


def _is_equal(one: Any, other: Any) -> bool:
    """Return True if two objects without values are equal, or cannot be compared."""
    if getattr(type(one), "__eq__", None) is object.__eq__:  # it is equal to itself alone
        return True
    same = outcome(lambda: bool(one == other))
    return same.error is not None or same.result is True
