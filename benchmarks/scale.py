"""Measure how the cost of a call grows with its input: bytes, items, leaves, depth, threads, chunks.

    python benchmarks/scale.py            # writes scale.md and scale.svg, in some minutes
    python benchmarks/scale.py --quick    # only tries whether everything runs

The largest inputs take 4 GB of memory.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from html import escape
from math import log2
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import dask.array
import numpy as np
import report
import torch
from harness import TIME, Figure, figure, measure

import xbridge
import xbridge.tree

__all__ = ["SERIES", "Series"]

HOME = Path(__file__).parent
CALLS = 1000
"""Calls of each thread."""

BYTES = tuple(2**power for power in (0, 4, 8, 12, 16, 20, 22, 24, 25, 26, 27, 28, 30))
COUNTS = (1, 10, 100, 1_000, 10_000, 100_000)


class Series(NamedTuple):
    """A call whose input grows."""

    title: str
    unit: str
    """What is counted."""
    sizes: tuple[int, ...]
    given: str
    """Makes `x`, and sees `n`, the size."""
    ours: str
    idiom: str
    clock: Callable[[], float] = time.perf_counter


SERIES = (
    Series(
        "NumPy to torch, shared",
        "bytes",
        BYTES,
        "x = np.ones(n, 'u1')",
        "xbridge.to_torch(x)",
        "torch.from_numpy(x)",
    ),
    Series(
        "NumPy to torch, a copy",
        "bytes",
        BYTES,
        "x = np.ones(n, 'u1')",
        "xbridge.to_torch(x, copy=True)",
        "torch.from_numpy(x.copy())",
    ),
    Series(
        "float64 to float32, of a result of",
        "bytes",
        tuple(size * 4 for size in BYTES[:-1]),
        "x = np.ones(n // 4)",
        "xbridge.to_torch(x, dtype='float32')",
        "torch.from_numpy(x.astype('f4'))",
    ),
    Series(
        "a list of floats to torch",
        "items",
        (*COUNTS, 1_000_000),
        "x = [0.5] * n",
        "xbridge.asarray(x, backend='torch')",
        "torch.tensor(x)",
    ),
    Series(
        "a list of arrays to one tensor",
        "arrays",
        COUNTS,
        "x = [np.ones(8) for _ in range(n)]",
        "xbridge.asarray(x, backend='torch')",
        "torch.from_numpy(np.stack(x))",
    ),
    Series(
        "a dict of arrays to torch",
        "leaves",
        COUNTS,
        "x = {i: np.ones(8) for i in range(n)}",
        "xbridge.tree.to_torch(x)",
        "{key: torch.from_numpy(array) for key, array in x.items()}",
    ),
    Series(
        "a nested list to torch",
        "levels",
        (1, 2, 4, 8, 16, 32, 64, 128, 256, 400),
        "x = nested(n)",
        "xbridge.tree.to_torch(x)",
        "each(x)",
    ),
    Series(
        "torch to NumPy in threads",
        "threads",
        (1, 2, 4, 8),
        "x = torch.ones(8)",
        "in_threads(n, lambda: xbridge.to_numpy(x))",
        "in_threads(n, lambda: x.detach().cpu().numpy())",
    ),
    Series(
        "Dask to NumPy",
        "chunks",
        (1, 10, 100, 1_000, 5_000),
        "x = dask.array.ones(n * 1000, chunks=1000)",
        "xbridge.to_numpy(x)",
        "x.compute()",
        time.process_time,
    ),
)

PAGE = """\
# Cost against size

How much longer than its idiom a call takes while its input grows. The page is made by `{command}`;
this one was made on {date}.

![Multiples of the idiom's time against the size of the input](scale.svg)

The two calls of a row run in turns, in one process; a multiple is a ratio of medians, with the range of the
middle half of the rounds. Less is better. Dask's rows count processor time of all threads, the others wall
time. torch has as many threads as cores.

A tree with more than 64 leaves and containers is walked by code for any container, which takes about 3 us for
each: deep lists with few arrays in them take up to 10 times as long as the idiom.

{tables}

## The machine

{machine}
"""


class Point(NamedTuple):
    """What was measured at one size."""

    size: int
    seconds: float
    multiple: Figure


def main() -> None:
    """Measure all series, and write the page and its picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="just enough to see that it works")
    quick: bool = parser.parse_args().quick
    measured = [(series, [*points(series, quick=quick)]) for series in SERIES]
    text = PAGE.format(
        command="python benchmarks/scale.py",
        date=report.dated(),
        tables="\n\n".join(table(series, found) for series, found in measured),
        machine="\n".join(
            f"- {line}" for line in report.machine(("xbridge-array", "numpy", "torch", "dask"))
        ),
    )
    print(text)
    if not quick:
        (HOME / "scale.md").write_text(text, encoding="utf-8")
        (HOME / "scale.svg").write_text(picture(measured), encoding="utf-8")


def points(series: Series, *, quick: bool) -> Iterator[Point]:
    """Yield a point for each size."""
    for size in series.sizes[:2] if quick else series.sizes:
        print(f"... {series.title}, {size} {series.unit}", file=sys.stderr)
        times = measure(
            (series.ours, series.idiom),
            partial(prepared, series, size),
            trials=1 if quick else 3,
            rounds=5 if quick else 11,
            block=1e-3,
            clock=series.clock,
        )
        ours = times[series.ours]
        yield Point(size, median(ours), figure(ours, times[series.idiom], TIME))


def prepared(series: Series, size: int) -> dict[str, Any]:
    """Return what the statements of a series see."""
    space = {
        "np": np,
        "torch": torch,
        "dask": dask,
        "xbridge": xbridge,
        "n": size,
        "nested": nested,
        "each": each,
        "in_threads": in_threads,
    }
    exec(series.given, space)  # noqa: S102 -- the statements are ours
    return space


def nested(levels: int) -> Any:
    """Return an array in so many lists."""
    made: Any = np.ones(8)
    for _ in range(levels):
        made = [made]
    return made


def each(x: Any) -> Any:
    """Convert what is in lists, as one writes it by hand."""
    return [each(item) for item in x] if isinstance(x, list) else torch.from_numpy(x)


def in_threads(count: int, call: Callable[[], object]) -> None:
    """Call something in several threads at a time."""

    def repeat() -> None:
        for _ in range(CALLS):
            call()

    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(repeat) for _ in range(count)]:
            done.result()


def table(series: Series, found: list[Point]) -> str:
    """Return the table of a series."""
    head = [series.unit, "takes", "multiple"]
    body = [
        [in_words(point.size, series.unit), report.duration(point.seconds), TIME.form.format(value) + spread]
        for point in found
        for value, low, high in [point.multiple]
        for spread in [f" ({low:.2f} to {high:.2f})"]
    ]
    lines = f"`{series.given}`, `{series.ours}` beside `{series.idiom}`."
    return f"## {series.title[0].upper()}{series.title[1:]}\n\n{lines}\n\n{report.grid([head, *body])}"


def in_words(size: int, unit: str) -> str:
    """Return a size in the unit in which it reads best."""
    if unit != "bytes":
        return f"{size:,}"
    power = int(log2(size)) // 10
    return f"{size >> (10 * power)} {('B', 'KiB', 'MiB', 'GiB')[power]}"


WIDTH, HEIGHT, GAP, COLUMNS = 210, 120, 44, 3
LOWEST, HIGHEST = 0.125, 16.0
INK, COLOR = "#808080", "#3f51b5"


def picture(measured: list[tuple[Series, list[Point]]]) -> str:
    """Return a drawing with a small plot for each series, all with the same scale of multiples."""
    parts = []
    for i, (series, found) in enumerate(measured):
        column, row = i % COLUMNS, i // COLUMNS
        left, top = GAP + column * (WIDTH + GAP), GAP + row * (HEIGHT + 2 * GAP)
        parts += plot(series, found, left, top)
    rows = -(-len(measured) // COLUMNS)
    width, height = GAP + COLUMNS * (WIDTH + GAP), rows * (HEIGHT + 2 * GAP)
    style = f'font-family="sans-serif" font-size="12" fill="{INK}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" {style}'
    return "\n".join([f'{head} viewBox="0 0 {width} {height}">', *parts, "</svg>", ""])


def plot(series: Series, found: list[Point], left: int, top: int) -> Iterator[str]:
    """Yield the marks of a plot: its title, the line of the idiom, and the multiples."""
    spread = log2(found[-1].size / found[0].size) or 1.0

    def x(size: int) -> float:
        return left + WIDTH * log2(size / found[0].size) / spread

    def y(multiple: float) -> float:
        part = (log2(multiple) - log2(LOWEST)) / (log2(HIGHEST) - log2(LOWEST))
        return top + HEIGHT * (1 - min(max(part, 0.0), 1.0))

    yield label(left, top - 8, series.title)
    for tick in (0.25, 1.0, 4.0):
        dashes = ' stroke-dasharray="2 6" opacity="0.5"' if tick != 1 else ""
        ends = f'x1="{left}" x2="{left + WIDTH}" y1="{y(tick):.0f}" y2="{y(tick):.0f}"'
        yield f'<line {ends} stroke="{INK}"{dashes}/>'
        yield label(left - 2, y(tick) + 4, f"{tick:g}x", "end")
    marks = [(x(point.size), y(point.multiple.value)) for point in found]
    line = " ".join(f"{across:.1f},{down:.1f}" for across, down in marks)
    yield f'<polyline points="{line}" fill="none" stroke="{COLOR}" stroke-width="2"/>'
    yield from (f'<circle cx="{across:.1f}" cy="{down:.1f}" r="3" fill="{COLOR}"/>' for across, down in marks)
    bottom = top + HEIGHT + 14
    unit = "" if series.unit == "bytes" else f" {series.unit}"
    yield label(left, bottom, in_words(found[0].size, series.unit))
    yield label(left + WIDTH, bottom, in_words(found[-1].size, series.unit) + unit, "end")


def label(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Return words in the picture."""
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(words)}</text>'


if __name__ == "__main__":
    main()
