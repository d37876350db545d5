"""Turn what was measured into one Markdown page: how to run it, how to read it, the tables, the machine.

The page is generated, so that it cannot say more than the last run did.
"""

import os
import platform
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import rows_dask
import rows_jax
from harness import Figure, Scale
from rows import PEERS, ROWS, No, huge_pages

__all__ = ["TRIAL", "Result", "Table", "dated", "document", "duration", "grid", "installed", "machine"]

UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
LIBRARIES = ("xbridge-array", "numpy", "torch", "jax", "dask", "ml_dtypes", "array-api-compat", *PEERS)

TRIAL = "This was a trial: the arrays were small and the rounds few, so the figures say nothing."
PAGE = """\
# Benchmarks in full

This page is for those who work on xbridge; [the summary](README.md) is shorter. {verdict}

`make bench` makes this page; this one was made by `{command}` on {date}.
`python benchmarks/run.py --quick` only tries whether everything runs, and `--only ROW` measures the rows that
have a text in them. [In place of](in-place-of.md) has the converters of other projects, and
[Middle sizes](mid-sizes.md) compares ways to copy from 64 KB to 32 MB.

**How it is measured.** The statements of a row run in turns, in one process and in short blocks, so that a
busy machine slows all of them; the arrays are made anew a few times. A figure is a ratio of medians, followed
by the interquartile range. If a row has several references, it is compared with the fastest.

**How to read it.** The tables show our statement and the reference as they ran. The peers are compared with
the same reference. The notes say why a peer has no figure, and why a target was missed.

{tables}

## Notes

{notes}

## The peers' calls

A peer stands in a row if its result has the type, dtype and values of ours. What it promises about
memory, writing and gradients is not compared.

{calls}

Gymnasium's are its `array_conversion` with its namespace of either library, as
`gymnasium.wrappers.numpy_to_torch` and `jax_to_numpy` define them. scikit-learn's is
`sklearn.utils._array_api.move_to` with array API dispatch switched on, given array-api-compat's
namespaces, or JAX's own, and the library's device.

## The machine

{machine}
"""


class Result(NamedTuple):
    """One measured row."""

    given: str
    call: str
    reference: str
    seconds: float | None
    """What our statement takes."""
    figure: Figure
    target: float | None
    peers: Sequence[Figure | str]
    """Figures, or why there are none."""
    why: str
    """Why the target may be missed."""


class Table(NamedTuple):
    """Measured rows that are read alike."""

    title: str
    reading: str
    scale: Scale
    results: Sequence[Result]


def document(tables: Iterable[Table], *, command: str, quick: bool) -> str:
    """Return the whole page.

    Parameters
    ----------
    tables : iterable of Table
        In the order of the page.
    command : str
        What made it.
    quick : bool
        Whether this was the quick run.

    Returns
    -------
    str
        Markdown.
    """
    tables, notes = list(tables), list[str]()
    body = "\n\n".join([section(table, notes) for table in tables])
    return PAGE.format(
        verdict=TRIAL if quick else verdict(tables),
        command=command,
        date=dated(),
        tables=body,
        notes="\n".join(f"{i}. {note}" for i, note in enumerate(notes, 1)),
        calls="\n".join(f"- {line}" for line in calls()),
        machine="\n".join(f"- {line}" for line in machine(LIBRARIES)),
    )


def verdict(tables: Iterable[Table]) -> str:
    """Return how many targets were reached."""
    reached = [
        table.scale.reaches(result.figure.value, result.target)
        for table in tables
        for result in table.results
        if result.target is not None
    ]
    return f"{sum(reached)} of {len(reached)} targets were reached on the machine below."


def section(table: Table, notes: list[str]) -> str:
    """Return one table with its heading; add what its cells need to the notes."""
    better = "Less is better" if table.scale.at_most else "More is better"
    head = ["given", "call", "beside", "takes", "figure", "target", "reached", *PEERS]
    rows = [cells(result, table.scale, notes) for result in table.results]
    used = [i for i in range(len(head)) if any(row[i] for row in rows)]
    body = grid([[row[i] for i in used] for row in [head, *rows]])
    return f"## {table.title}\n\n{table.reading} {better}.\n\n{body}"


def cells(result: Result, scale: Scale, notes: list[str]) -> list[str]:
    """Return a row's cells."""
    value, low, high = (scale.form.format(x) for x in result.figure)
    reached = target = ""
    if result.target is not None:
        sign = "at most" if scale.at_most else "at least"
        target = f"{sign} {result.target:g}"
        reached = "yes" if scale.reaches(result.figure.value, result.target) else "**no**"
        if reached != "yes" and result.why:
            reached = f"{reached} ({number(result.why, notes)})"
    return [
        f"`{result.given}`" if result.given else "",
        f"`{result.call}`",
        f"`{result.reference}`",
        duration(result.seconds),
        f"{value} ({low} to {high})" if low != high else value,
        target,
        reached,
        *(peer(found, scale, notes) for found in result.peers),
    ]


def peer(found: Figure | str, scale: Scale, notes: list[str]) -> str:
    """Return a peer's cell: its figure, or a dash with the number of the note that says why."""
    if not isinstance(found, str):
        return scale.form.format(found.value)
    return f"- ({number(f'{found[0].upper()}{found[1:]}.', notes)})"


def number(note: str, notes: list[str]) -> int:
    """Return the number of a note, which is added if it is new."""
    if note not in notes:
        notes.append(note)
    return notes.index(note) + 1


def grid(rows: list[list[str]]) -> str:
    """Return a Markdown table whose columns also line up on a terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" | ".join(map(str.ljust, row, widths)) for row in rows]
    rule = "-|-".join("-" * width for width in widths)
    return "\n".join(f"| {line} |" for line in [lines[0], rule, *lines[1:]])


def duration(seconds: float | None) -> str:
    """Return a duration in the unit in which it reads best."""
    if seconds is None:
        return ""
    unit, size = next((unit, size) for unit, size in UNITS if seconds >= size)
    return f"{seconds / size:.3g} {unit}"


def calls() -> list[str]:
    """Return what was run for each peer."""
    rows = (*ROWS, *rows_jax.ROWS, *rows_dask.ROWS)
    own = [dict.fromkeys(row.peers[i] for row in rows) for i in range(len(PEERS))]
    return [
        f"{name}: " + ", ".join(f"`{call}`" for call in used if not isinstance(call, No))
        for name, used in zip(PEERS, own, strict=True)
    ]


def dated() -> str:
    """Return the date of today."""
    return datetime.now(UTC).strftime("%Y-%m-%d")


def machine(libraries: Iterable[str]) -> list[str]:
    """Return what the figures depend on."""
    torch = import_module("torch")
    return [
        f"{processor()}, {os.cpu_count()} cores, of which torch uses {torch.get_num_threads()}",
        f"{platform.system()} {platform.machine()}; huge pages: {huge_pages()}",
        f"Python {platform.python_version()}, {', '.join(map(installed, libraries))}",
    ]


def processor() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    found = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (found or [platform.processor() or "unknown processor"])[0]


def installed(name: str) -> str:
    """Return a distribution with its version."""
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:  # ours, when it runs from its source tree
        return f"{name} (not installed)"
