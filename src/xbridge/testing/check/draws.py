"""Calls that Hypothesis draws: several properties at once, and values of each argument by itself.

A drawn call has other values, sides and layouts than the one it is made of, on any device. The values stay
between the least and the greatest of an argument, so that they stay in the domain of the function.
"""

from __future__ import annotations

import unittest
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from xbridge._core.devices import CPU
from xbridge.testing._outcome import parts
from xbridge.testing._source import ON_REQUEST, properties_of
from xbridge.testing.strategies import host_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from xbridge._core.devices import Device
    from xbridge._core.protocol import HostArray
    from xbridge.testing._call import Call
    from xbridge.testing._source import Recipe

    Drawn = tuple[str, Call]
    """The label of the arguments that were drawn, and the call."""

_SIDES = (1, 2, 3, 5, 17)
_INTEGERS = (-1, 40)
_MOST_PROPERTIES = 2
_SPECIAL = (np.nan, np.inf, -np.inf, -0.0)


_OUTER = ("neg", "conj", "byte-swapped", "read-only")
"""Properties that are applied outside of those of memory."""


class _OverError(unittest.SkipTest):
    """The time for draws is over. Hypothesis ends a run at once if a test skips."""


def run_draws(
    strategy: st.SearchStrategy[Drawn],
    run: Callable[[Drawn], None],
    number: int,
    most: int,
    is_over: Callable[[], bool],
) -> None:
    """Call a function with drawn calls, the same ones for the same seed, until the time is over."""

    @seed(number)
    @settings(
        max_examples=most,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=[*HealthCheck],  # pyright: ignore[reportArgumentType] -- an enumeration
    )
    @given(strategy)
    def draw_and_run(drawn: Any) -> None:
        if is_over():
            raise _OverError("the time is over")
        run(drawn)

    try:
        draw_and_run()
    except _OverError:
        return


def calls_like(
    calls: Sequence[Drawn], devices: Sequence[Device], *, special: bool
) -> st.SearchStrategy[Drawn]:
    """Strategy of calls with the arguments of one of several calls, changed.

    Parameters
    ----------
    calls : sequence of tuple
        Labels, and calls with plain arrays, the simplest first.
    devices : sequence of Device
        Those other than the default one.
    special : bool
        True to draw NaN, infinities and negative zeros too.
    """
    return st.sampled_from(calls).flatmap(partial(_changed, devices=devices, special=special))


@st.composite
def _changed(draw: st.DrawFn, labelled: Drawn, devices: Sequence[Device], *, special: bool) -> Drawn:
    label, call = labelled
    recipes = call.recipes()
    if not recipes:
        return label, _draw_integers(draw, call)
    sides = {n: n for one in recipes for n in one.values.shape}
    if draw(st.booleans()):
        sides = {n: draw(st.sampled_from(_SIDES)) for n in sides}
    device = draw(st.sampled_from([CPU, *devices]))
    single = draw(st.booleans()) and {one.values.dtype.name for one in recipes} == {"float64"}
    made = []
    for one in recipes:
        shape = tuple(sides[n] for n in one.values.shape)
        values = _values(draw, one.values, shape, special=special)
        values = values.astype("float32") if single else values
        made.append(_laid_out(draw, one._replace(values=values, device=device)))
    return label, call.fill(made)


def _draw_integers(draw: st.DrawFn, call: Call) -> Call:
    """Replace the integers among the arguments of a call, which has no arrays, by drawn ones."""

    def change(x: Any) -> Any:
        return draw(st.integers(*_INTEGERS)) if type(x) is int else x

    return call._replace(
        args=tuple(map(change, call.args)), kwargs={name: change(x) for name, x in call.kwargs.items()}
    )


def is_as_described(call: Call) -> bool:
    """Return True if the arrays of a call have the values of their recipes. Some exclude others."""
    return not call.changed([one.make() for one in call.recipes()])


def is_degenerate(call: Call) -> bool:
    """Return True if NumPy's own result of a call has a NaN or an infinity, or it warns of one."""
    expected = call.expected()
    arrays = [
        np.asarray(part)
        for _, part in parts(expected.result)
        if isinstance(part, np.ndarray | np.generic | float)
    ]
    return bool(expected.warned) or not all(np.isfinite(x).all() for x in arrays if x.dtype.kind in "fc")


def _values(draw: st.DrawFn, values: HostArray, shape: tuple[int, ...], *, special: bool) -> HostArray:
    """Draw values of one argument: as they are, in another order, few distinct ones, or any between."""
    resized = np.resize(values, shape)
    kind = draw(st.sampled_from(("as they are", "shuffled", "few", "any")))
    if kind == "as they are" or not values.size:
        return resized
    if kind == "any" and values.dtype.kind in "fiu":
        bounds = (values.min().item(), values.max().item())
        resized = draw(_between(values.dtype.name, shape, bounds))
    elif kind == "few":
        resized = np.resize(values.reshape(-1)[: draw(st.integers(1, 2))], shape)
    else:
        order = np.random.default_rng(draw(st.integers(0, 15))).permutation(resized.size)
        resized = resized.reshape(-1)[order].reshape(shape)
    if special and values.dtype.kind == "f" and draw(st.booleans()):
        resized.reshape(-1)[draw(st.integers(0, resized.size - 1))] = draw(st.sampled_from(_SPECIAL))
    return resized


def _between(dtype: str, shape: tuple[int, ...], bounds: tuple[float, float]) -> st.SearchStrategy[HostArray]:
    """Strategy of ordinary numbers within bounds: not so small that their products vanish."""
    least, greatest = bounds
    near = max(abs(least), abs(greatest)) * 2.0**-10
    drawn = host_arrays(dtypes=dtype, shapes=shape, elements=bounds)
    return drawn.map(lambda x: np.array(np.where((x != 0) & (abs(x) < near), least, x), dtype).reshape(shape))


def _laid_out(draw: st.DrawFn, recipe: Recipe) -> Recipe:
    """Draw up to two properties of an array."""
    names = [name for name in properties_of(recipe.backend) if name not in ON_REQUEST]
    for name in sorted(_unique(draw, names), key=_OUTER.__contains__):
        if recipe.takes(name):
            recipe = recipe._replace(properties=(*recipe.properties, name))
    return recipe


def _unique(draw: st.DrawFn, names: list[str]) -> Iterator[str]:
    if names:
        yield from draw(st.lists(st.sampled_from(names), max_size=_MOST_PROPERTIES, unique=True))
