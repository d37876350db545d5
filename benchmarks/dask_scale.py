"""Measure the time and the memory that it takes to compute a large Dask array, and write the table.

    python benchmarks/dask_scale.py             # 2 GB, some minutes, 7 GB of memory; writes a page
    python benchmarks/dask_scale.py --mb 256    # less, and writes nothing

Each statement runs in a new process, in turns with its reference. A process first runs it on a small array,
which loads what it needs. Memory is the peak of the resident set of that process above what was there before,
in sizes of the result. The chunks are Dask's automatic ones, of 128 MiB at most.
"""

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from fresh import RESET, resident, run
from harness import TIME, figure

README = Path(__file__).with_suffix(".md")

PAGE = """# Dask arrays at scale

`python benchmarks/dask_scale.py --rounds {rounds}` wrote this page on {date}. Each statement ran
{rounds} times in a new process, in turns with its reference. A time is a median. A ratio is of the
medians, with the middle half of the ratios of single rounds. Memory is the peak of the resident set
above what was there before, in sizes of the result: the largest of all rounds. `x` has {mb:,} MB of
float64 in chunks of {chunk:,.0f} MB: `{make}`.

{tables}

The machine: {machine}
"""

MAKE = "x = da.arange(n, dtype='float64') + 0.5"

LOADS = "import numpy as np, dask, dask.array as da, xbridge, xbridge.tree"

CLUSTER = (
    "from distributed import Client, LocalCluster\n"
    "cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=':0')\n"
    "client = Client(cluster)\n"
)


class Row(NamedTuple):
    """A statement, its reference, and the most that it may take, in times of the reference."""

    ours: str
    reference: str
    target: float


def _stored(dtype: str) -> str:
    return f"da.store(x.astype('{dtype}'), y := np.empty(n, '{dtype}'), lock=False)"


THREADS = (
    Row("y = xbridge.to_numpy(x)", _stored("float64"), 1.15),
    Row("y = xbridge.to_numpy(x, dtype='float32')", _stored("float32"), 1.15),
    Row("y = xbridge.to_backend(x, 'torch')", _stored("float64"), 1.15),
    Row("y = xbridge.to_backend(x, 'torch', dtype='float32')", _stored("float32"), 1.15),
    Row("y = xbridge.tree.to_numpy([x[: n // 2], x[n // 2 :]], dtype='float32')", _stored("float32"), 1.15),
)

PROCESSES = (
    Row("y = xbridge.to_numpy(x)", "y = x.compute()", 1.1),
    Row("y = xbridge.to_numpy(x, dtype='float32')", "y = x.astype('float32').compute()", 1.1),
)

MOST = 1.35
"""The most memory, in sizes of the result."""

CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
if __name__ == "__main__":
    import dask_scale
    dask_scale.measure(*sys.argv[2:])
"""


class Run(NamedTuple):
    """One run of a statement."""

    seconds: float
    peak: float


def measure(setup: str, statement: str, n: str) -> None:
    """Print the time and the peak of memory of a statement. This is what runs in the new process."""
    space: dict[str, Any] = {}
    exec(LOADS, space)  # noqa: S102 -- the statements are ours
    exec(setup, space)  # noqa: S102 -- likewise
    for items in (2**21, int(n)):
        space["n"] = items
        exec(MAKE, space)  # noqa: S102 -- likewise
        RESET.write_text("5", encoding="ascii")  # the peak is now what is resident
        before, begin = resident("VmRSS:"), time.perf_counter()
        exec(statement, space)  # noqa: S102 -- likewise
        seconds = time.perf_counter() - begin
        peak = resident("VmHWM:") - before
        made = space.pop("y")
        size = sum(y.nbytes for y in (made if isinstance(made, list) else [made]))
        del made
    print(json.dumps([seconds, peak / size]))
    if "client" in space:
        space["client"].shutdown()


def rounds_of(rows: tuple[Row, ...], setup: str, n: int, rounds: int) -> Mapping[str, list[Run]]:
    """Run each statement of some rows in turns."""
    statements = list(dict.fromkeys(word for row in rows for word in (row.ours, row.reference)))
    runs: dict[str, list[Run]] = {statement: [] for statement in statements}
    shuffle = random.Random(rounds).shuffle  # noqa: S311 -- no secret
    for _ in range(rounds):
        shuffle(statements)
        for statement in statements:
            printed = run(CHILD, str(Path(__file__).parent), setup, statement, str(n))
            runs[statement].append(Run(*json.loads(printed.splitlines()[-1])))
    return runs


def table(rows: tuple[Row, ...], runs: Mapping[str, list[Run]]) -> str:
    """Return the table of some rows."""
    lines = [
        "| call | reference | takes | ratio of times | target | memory | of the reference | target |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        ours, other = ([one.seconds for one in runs[word]] for word in (row.ours, row.reference))
        peak, beside = (max(one.peak for one in runs[word]) for word in (row.ours, row.reference))
        found = figure(ours, other, TIME)
        ratio = f"{found.value:.2f}x ({found.low:.2f}x to {found.high:.2f}x)"
        cells = (
            f"`{row.ours}`",
            f"`{row.reference}`",
            f"{statistics.median(ours):.2f} s",
            ratio if found.value <= row.target else f"**{ratio}**",
            f"at most {row.target:.2f}x",
            f"{peak:.2f}" if peak <= MOST else f"**{peak:.2f}**",
            f"{beside:.2f}",
            f"at most {MOST:.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mb", type=int, help="the size of the array (2048); with it, no page is written")
    parser.add_argument("--rounds", type=int, default=5, help="how often each statement runs (5)")
    asked = parser.parse_args()
    import dask  # noqa: PLC0415 -- a new process need not import it twice
    import dask.array as da  # noqa: PLC0415 -- likewise

    megabytes = asked.mb or 2048
    n = megabytes * 10**6 // 8
    parts = []
    for title, rows, setup in (
        ("Threads of this process", THREADS, "dask.config.set(scheduler='threads')"),
        ("A cluster of two processes of one thread each", PROCESSES, CLUSTER),
    ):
        parts.append(f"## {title}\n\n{table(rows, rounds_of(rows, setup, n, asked.rounds))}")
    text = PAGE.format(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        rounds=asked.rounds,
        mb=megabytes,
        chunk=da.arange(n, dtype="float64").chunksize[0] * 8 / 1e6,
        make=MAKE,
        tables="\n\n".join(parts),
        machine=f"{os.cpu_count()} processors, Python {platform.python_version()}, Dask {dask.__version__}",
    )
    print(text)
    if not asked.mb:
        README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
