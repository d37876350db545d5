"""The precision of floating results, by the same call in float64."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np

from xbridge.errors import XBridgeError
from xbridge.extend import CPU, DTYPES, HOST, category, get_backend, is_inexact
from xbridge.testing._call import program
from xbridge.testing._diff import differences, look
from xbridge.testing._outcome import MOST_LISTED, Difference, parts
from xbridge.testing._source import literal, read_expression

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from xbridge.protocol import HostArray
    from xbridge.testing._call import Call
    from xbridge.testing._diff import Look
    from xbridge.testing._outcome import Outcome
    from xbridge.testing._source import Recipe

_NARROW = {"float64": "float32", "complex128": "complex64"}
_LEAST_EXPONENTS = {"float16": -13, "float64": -1021, "complex128": -1021}
"""The exponents of the smallest normal numbers, as `frexp` counts. Other dtypes have that of float32."""


def narrow(one: Recipe) -> Recipe:
    """Round an array to float32, or leave it in a dtype that is no wider."""
    dtype = _NARROW.get(one.dtype)
    with np.errstate(over="ignore"):
        return one if dtype is None else one._replace(values=one.values.astype(dtype))


def _widen(one: Recipe) -> Recipe:
    """Return the same numbers in float64, in NumPy if the library does not have it."""
    if not is_inexact(one.dtype):
        return one
    return widen(one, "complex128" if category(one.dtype) == "complex" else "float64")


def widen(one: Recipe, dtype: str) -> Recipe:
    """Return the same numbers in a wider dtype, in NumPy if the library does not have it."""
    wide = one._replace(values=one.values.astype(dtype), properties=())
    has = get_backend(one.backend).unsupported_dtype(dtype, one.device) is None
    return wide if has else wide._replace(backend=HOST, device=CPU)


def shrink(one: Recipe) -> Recipe:
    """Divide floating numbers by a power of two, so that adding one of them to 1 loses half of its digits."""
    if not is_inexact(one.dtype):
        return one
    facts = DTYPES[one.dtype]
    small = one.values * 2.0 ** -(facts.digits // 2)
    is_normal = np.abs(small) >= 2.0 ** (facts.least + facts.digits - 1)  # a library may take others for zero
    return one._replace(values=np.where(is_normal, small, one.values).astype(one.values.dtype))


def _widen_there(one: Recipe) -> Recipe:
    """Return the same numbers in float64, if the library has it."""
    wide = _widen(one)
    return wide._replace(properties=one.properties) if wide.backend == one.backend else one


def retyped(call: Call) -> list[Call]:
    """Return the call with its numbers in narrower and wider dtypes."""
    changes = (narrow, _widen_there)
    return [call.map(change) for change in changes if any(change(x).dtype != x.dtype for x in call.recipes())]


def judge_accuracy(call: Call, *, ulp: float, is_first: bool = True) -> Difference | None:
    """Compare floating results with those in float64; the first time, find what float64 is rounded to."""
    narrow = call.run()
    with every_digit(call.promise.backend):
        wide = call.map(_widen).run()
    if narrow.error is not None or wide.error is not None:
        return None
    inputs = [one.dtype for one in call.recipes() if is_inexact(one.dtype)]
    for (path, a), (_, b) in zip(find_inexact(narrow), find_inexact(wide), strict=False):
        if a.values.shape != b.values.shape:
            continue
        dtype = min((a.dtype, *inputs), key=lambda name: DTYPES[name].digits)
        errors = _count_ulps(a.values, b.values, dtype)
        if not (errors <= ulp).all():
            names = (a.dtype, "in float64")
            lines = differences(a, b, [], lambda _a, _b, errors=errors: errors <= ulp, names=names)  # type: ignore[misc]
            text = f"{_name(path)} is wrong by {np.nanmax(errors):.3g} units in the last place of {dtype}"
            shown = read_expression(a.backend, "{part}")
            rtol = ulp * 2.0 ** -DTYPES[dtype].digits
            check = f"np.testing.assert_allclose({shown}, {literal(b.values)}, rtol={rtol:.3g}, atol=0)"
            is_long = b.values.size > MOST_LISTED
            return Difference("is inaccurate", "\n".join([text, *lines]), path, "" if is_long else check)
    with every_digit(call.promise.backend):
        return _find_rounding(call.map(_widen), wide, ulp) if is_first else None


def every_digit(library: str) -> AbstractContextManager[object]:
    """Return a context in which a library has float64, as JAX has it only on request."""
    if library != "jax":
        return nullcontext()
    import jax  # noqa: PLC0415 -- only for its arrays

    on: AbstractContextManager[object] = jax.enable_x64(True)  # noqa: FBT003 -- JAX takes it by position
    return on


def _name(path: str) -> str:
    return f"result{path}" if path else "the result"


def find_inexact(made: Outcome) -> Iterator[tuple[str, Look]]:
    """Yield the floating and complex arrays of a result."""
    for path, part in parts(made.result):
        try:
            found = look(part)
        except XBridgeError:
            continue
        if is_inexact(found.dtype):
            yield path, found


_LARGE_STEPS = (2.0**-9, 2.0**-11, 2.0**-13, 2.0**-15)
_SMALL_STEPS = (2.0**-32, 2.0**-33)
"""Steps relative to the arguments: float32 has 24 bits."""


def _find_rounding(call: Call, usual: Outcome, ulp: float) -> Difference | None:
    """Find results in float64 that were rounded to a narrower dtype: they follow no small change.

    Large steps of the arguments in one direction have proportional effects, so the function is smooth there.
    A step below the precision of float32 then has a proportional one too, unless it was rounded away.
    """
    moved = [[*find_inexact(_moved(call, step))] for step in (*_LARGE_STEPS, *_SMALL_STEPS)]
    for (path, start), *others in zip([*find_inexact(usual)], *moved, strict=False):
        values = start.values
        if start.dtype not in _NARROW or any(x.values.shape != values.shape for _, x in others):
            continue
        with np.errstate(all="ignore"):
            steps = zip(others, (*_LARGE_STEPS, *_SMALL_STEPS), strict=True)
            slopes = [(x.values - values) / step for (_, x), step in steps]
            size = abs(slopes[0])
            least = 16 * max(ulp, 1) * 2.0**-53 * abs(values) / _SMALL_STEPS[1]  # what float64 itself rounds
            is_whole = np.rint(values) == values  # as what `round` returns, which has steps of its own
            lost = (size > least) & np.isfinite(size) & ~is_whole
            for slope in slopes[: len(_LARGE_STEPS)]:
                lost &= abs(slope - slopes[0]) < size / 16
            for slope in slopes[len(_LARGE_STEPS) :]:
                lost &= abs(slope - slopes[0]) > size / 2
        if lost.any():
            text = (
                f"{_name(path)} is rounded to fewer digits than float64 has: changes of 1 in 2**32 are lost"
            )
            return Difference("is inaccurate", text, path, program=_compare_steps(call, path, text))
    return None


def _moved(call: Call, step: float) -> Outcome:
    """Run a call with all floating numbers moved by a step, large ones relatively more than small ones."""

    def move(one: Recipe) -> Recipe:
        values = one.values
        if not is_inexact(values.dtype.name):
            return one
        scale = abs(values[np.isfinite(values)]).max(initial=0) or 1.0
        return one._replace(values=values * (1 + step * (1 + values / scale / 2)))

    with np.errstate(all="ignore"):
        return call.map(move).run()


def _compare_steps(call: Call, path: str, said: str) -> tuple[str, ...]:
    """Return a program that compares the effects of a large and of a small step."""
    made = program(call)
    before = f"def result({', '.join(made.arrays)}): return {made.call}{path}"
    inexact = [name for name, one in zip(made.arrays, call.recipes(), strict=True) if is_inexact(one.dtype)]
    moved = ", ".join(f"{name} * (1 + step)" if name in inexact else name for name in made.arrays)
    effect = f"(result({moved}) - result({', '.join(made.arrays)})) / step"
    small, large = (
        read_expression(call.promise.backend, f"effect({step})") for step in (_SMALL_STEPS[0], 2.0**-11)
    )
    return (
        "import numpy as np",
        before,
        f"def effect(step): return {effect}",
        f"np.testing.assert_allclose({small}, {large}, rtol=0.5)  # {said}",
    )


def _count_ulps(a: HostArray, b: HostArray, dtype: str) -> HostArray:
    """Return the distances of numbers from exact ones, in units in the last place of a dtype."""
    digits, least = DTYPES[dtype].digits, _LEAST_EXPONENTS.get(dtype, -125)
    wide = a.astype(b.dtype)
    with np.errstate(all="ignore"):
        rounded = b.astype(dtype).astype(b.dtype)  # a number beyond the range is right if it is infinite
        unit = np.ldexp(1.0, np.maximum(np.frexp(np.abs(b))[1], least) - digits)
        same = (wide == b) | (wide == rounded) | (np.isnan(wide) & np.isnan(b))
        errors = np.where(same, 0.0, np.abs(wide - b) / unit)
    return np.where(np.isnan(errors), np.inf, errors)
