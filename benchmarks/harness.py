"""Time statements side by side: on a shared machine, only what was measured in turns can be compared.

Every round times one block of each statement, so that what slows the machine slows all of them, and
shuffles them, so that none always follows the same one. A figure is made of the medians; its spread is
the middle half of the figures of single rounds.

Statements are source text: `timeit` compiles them into its loop, so that no wrapper is measured with
them, and the report shows what ran, word for word.
"""

import operator
import random
import statistics
import timeit
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

__all__ = ["MS", "NS", "SHARE", "SPEED", "TIME", "Figure", "Scale", "best", "figure", "interleave", "measure"]


class Scale(NamedTuple):
    """The meaning of a figure of two quantities, and the side of the target on which it should be."""

    of: Callable[[float, float], float]
    """Makes the figure from ours and the reference's."""
    form: str
    at_most: bool = True
    """True if small figures are good."""

    def reaches(self, value: float, target: float) -> bool:
        """Return True if a figure reaches a target."""
        return value <= target if self.at_most else value >= target


TIME = Scale(operator.truediv, "{:.2f}x")
SPEED = Scale(lambda ours, reference: reference / ours, "{:.2f}x", at_most=False)
NS = Scale(lambda ours, reference: (ours - reference) * 1e9, "{:.0f} ns")
MS = Scale(lambda ours, reference: (ours - reference) * 1e3, "{:.1f} ms")
SHARE = Scale(operator.truediv, "{:.2f}")


class Figure(NamedTuple):
    """One measured figure, and between which values the middle half of the rounds gave it."""

    value: float
    low: float
    high: float


def interleave(
    statements: Iterable[str],
    names: Mapping[str, Any],
    *,
    rounds: int,
    block: float,
    clock: Callable[[], float] = perf_counter,
) -> dict[str, list[float]]:
    """Time statements in turns.

    Parameters
    ----------
    statements : iterable of str
        Source text. Each is run before anything is timed.
    names : mapping
        What they see as their globals.
    rounds : int
        How often each gets a turn.
    block : float
        Seconds that a turn should take. A statement that takes longer runs once.
    clock : callable
        Returns seconds: of the wall, or of the processor.

    Returns
    -------
    dict
        For each statement its seconds per run, one for every round.
    """
    globals_ = dict(names)
    timers = {statement: timeit.Timer(statement, timer=clock, globals=globals_) for statement in statements}
    counts = {statement: _count(timer, block) for statement, timer in timers.items()}
    times: dict[str, list[float]] = {statement: [] for statement in timers}
    order, shuffle = list(timers), random.Random(rounds).shuffle  # noqa: S311 -- no secret
    for _ in range(rounds):
        shuffle(order)
        for statement in order:
            count = counts[statement]
            times[statement].append(timers[statement].timeit(count) / count)
    return times


def measure(
    statements: Iterable[str],
    prepare: Callable[[], Mapping[str, Any]],
    *,
    trials: int,
    rounds: int,
    block: float,
    clock: Callable[[], float] = perf_counter,
) -> dict[str, list[float]]:
    """Time statements as `interleave` does, with what they see made anew for each trial."""
    asked = list(statements)
    times: dict[str, list[float]] = {statement: [] for statement in asked}
    for _ in range(trials):
        trial = interleave(asked, prepare(), rounds=rounds, block=block, clock=clock)
        for statement in asked:
            times[statement] += trial[statement]
    return times


def _count(timer: timeit.Timer, block: float) -> int:
    """Return how many runs fill a block. The first run does not count: it may import and learn."""
    timer.timeit(1)
    count, taken = 1, timer.timeit(1)
    while taken < block / 2:
        count *= 2
        taken = timer.timeit(count)
    return max(1, round(count * block / taken))


def best(times: Mapping[str, Sequence[float]], among: Iterable[str]) -> str:
    """Return the fastest of some statements."""
    return min(among, key=lambda statement: statistics.median(times[statement]))


def figure(ours: Sequence[float], reference: Sequence[float], scale: Scale) -> Figure:
    """Compare what was measured in turns.

    Parameters
    ----------
    ours, reference : sequence of float
        One quantity for every round.
    scale : Scale
        What to make of them.

    Returns
    -------
    Figure
        The figure of the medians, with the quartiles of the rounds' own figures.
    """
    single = [scale.of(x, y) for x, y in zip(ours, reference, strict=True)]
    low, _, high = statistics.quantiles(single, n=4)
    return Figure(scale.of(statistics.median(ours), statistics.median(reference)), low, high)
