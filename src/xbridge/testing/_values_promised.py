"""Promises on values that one further call decides: batches, NaNs, integers, and torch's default device.

Each trial is a `Call` with a judge of its own. None of them needs a reference.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from xbridge.extend import category, is_inexact
from xbridge.testing._call import program
from xbridge.testing._outcome import Difference, compare, describe_error, first_line, kept, outcome, parts
from xbridge.testing._precision import find_inexact, widen
from xbridge.testing._source import read_expression

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xbridge.testing._call import Call
    from xbridge.testing._outcome import Outcome
    from xbridge.testing._source import Recipe

_WIDE = "int64"


def examples(call: Call) -> Iterator[Call]:
    """Yield the call that finds what an example depends on beside itself, if there are several."""
    counts = [len(one.values) for one in call.recipes() if one.values.ndim]
    if counts and counts[0] > 1:
        by = partial(_judge_example, count=counts[0])
        yield call._replace(by=by, options={"beside": "in its batch"})


def _judge_example(call: Call, *, count: int) -> Difference | None:
    """Compare the result for the first example with the first row of the result for all."""

    def is_batch(one: Recipe) -> bool:
        return bool(one.values.shape[:1] == (count,))

    whole = kept(call.run())
    alone = call.map(lambda one: one.with_values(one.values[:1]) if is_batch(one) else one).run()
    if whole.error is not None:
        return None
    found = compare(alone, _first_rows(whole, count), call.promise)
    if found is None:
        return None
    made = program(call)
    named = zip(made.arrays, call.recipes(), strict=True)
    cut = [f"{name} = {name}[:1, ...]" for name, one in named if is_batch(one)]
    return found._replace(kind="depends on its batch", program=(*cut, *made.checked(found)))


def _first_rows(made: Outcome, count: int) -> Outcome:
    """Return an outcome with the first row of each part that has one for each example."""
    rows = [
        one._replace(
            value=one.value[:1, ...],
            look=one.look._replace(shape=(1, *one.look.shape[1:]), values=one.look.values[:1]),
        )
        if one.look is not None and one.look.shape[:1] == (count,)
        else one
        for one in made.read or ()
    ]
    return made._replace(read=rows)


def with_nan(call: Call, nan: str | None, raises: Any) -> Iterator[Call]:
    """Yield the call with a NaN as the first number of each floating array in turn."""
    recipes = call.recipes()
    for n, one in enumerate(recipes):
        if is_inexact(one.dtype) and one.values.size:
            values = one.values.copy()
            values.flat[0] = np.nan
            changed = [*recipes[:n], one.with_values(values), *recipes[n + 1 :]]
            yield call.fill(changed)._replace(by=partial(_judge_nan, nan=nan, raises=raises))


def _judge_nan(call: Call, *, nan: str | None, raises: Any) -> Difference | None:
    """Find a result without the NaN of an argument, or with it."""
    made = call.run()
    if made.error is not None:
        return None if isinstance(made.error, raises) else describe_error(made.error)
    for path, look in find_inexact(made):
        has_nan = bool(np.isnan(look.values).any())
        if look.values.size and has_nan != (nan == "propagates"):
            said = f"result{path} has {'a' if has_nan else 'no'} NaN, and an argument has one"
            check = f"assert {'not ' * has_nan}np.isnan({read_expression(look.backend, '{part}')}).any()"
            return Difference("NaN", said, path, check)
    return None


def in_int64(call: Call) -> Iterator[Call]:
    """Yield the call that finds integers which wrap around, if some could."""
    if any(category(one.dtype) == "int" and one.dtype != _WIDE for one in call.recipes()):
        yield call._replace(by=_judge_overflow, options={"beside": "in int64", "dtype": "any"})


def _judge_overflow(call: Call) -> Difference | None:
    """Compare the numbers of a result with those of the same call in int64."""
    narrow = kept(call.run())
    wide = call.map(lambda one: widen(one, _WIDE) if category(one.dtype) == "int" else one).run()
    if narrow.error is not None or wide.error is not None:
        return None
    found = compare(narrow, wide, call.promise)
    return None if found is None else found._replace(kind="overflows")


def on_meta_device(call: Call) -> Iterator[Call]:
    """Yield the call that finds tensors of torch that are made on the default device."""
    if call.promise.backend == "torch":
        yield call._replace(by=_judge_default_device)


def _judge_default_device(call: Call) -> Difference | None:
    """Call a function while the default device of torch has no memory, which no argument is on."""
    import torch  # noqa: PLC0415 -- only for its arrays

    run = call.bind([one.make() for one in call.recipes()])
    with torch.device("meta"):
        made = outcome(run)
    strays = [path for path, part in parts(made.result) if getattr(part, "is_meta", False)]
    if made.error is None and not strays:
        return None
    why = f"result{strays[0]}" if strays else first_line(made.error or "")
    said, shown = f"a tensor is made on the default device: {why}", program(call)
    check = [f"assert result{strays[0]}.device == {shown.arrays[0]}.device"] if strays else []
    lines = ("torch.set_default_device('meta')", f"result = {shown.call}  # {said}", *check)
    return Difference("device", said, program=lines)
