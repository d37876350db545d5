"""Measure xbridge beside the idioms and its peers, print the tables, and write them to README.md.

A missed target is not a failure, because the machine may be busy. The tables show it.
"""

import argparse
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import fresh
import rows_dask
import rows_jax
from harness import MS, SHARE, Figure, best, figure, interleave
from report import Result, Table, document
from rows import BULK, IMPORT, STACK, No, RecordRow, Section, names, sections
from rows_kit import PLUGIN, names_of_kit, section_of_kit
from rows_tree import names_of_trees, sections_of_trees

README = Path(__file__).with_name("README.md")


def main() -> None:
    """Measure everything and report it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="just enough to see that it works")
    parser.add_argument("--output", type=Path, help="where to write (README.md; with --quick: nowhere)")
    options = parser.parse_args()
    quick: bool = options.quick
    output: Path | None = options.output or (None if quick else README)

    warnings.simplefilter("ignore")  # the idioms' and the peers'; the tests see to ours
    space = names()
    tables = [timed(section, space) for section in sections(quick=quick)]
    for library, its in (("jax", rows_jax), ("dask", rows_dask)):
        if find_spec(library):
            known = {**space, **its.names()}
            tables += [timed(section, known) for section in its.sections(quick=quick)]
        else:
            progress(f"{library} is not installed: no rows of it")
    of_trees = {**space, **names_of_trees()}
    tables += [timed(section, of_trees) for section in sections_of_trees(quick=quick)]
    tables += [timed(section_of_kit(quick=quick), {**space, **names_of_kit()})]
    tables += [memory(space, quick=quick), imports(quick=quick), plugin(quick=quick)]
    text = document(tables, quick=quick)
    print(text)
    if output:
        output.write_text(text, encoding="utf-8")


def timed(section: Section, space: dict[str, Any]) -> Table:
    """Measure a section in this process."""
    results = []
    for row in section.rows:
        progress(f"{row.setup}; {row.ours}")
        peers = able(row, prepared(row, space, section.n))
        asked = [row.ours, *row.references, *(peer for peer in peers if not isinstance(peer, No))]
        times: dict[str, list[float]] = {statement: [] for statement in asked}
        for _ in range(section.trials):
            own = prepared(row, space, section.n)
            trial = interleave(asked, own, rounds=section.rounds, block=section.block)
            for statement in asked:
                times[statement] += trial[statement]
        base = best(times, row.references)
        found = {s: figure(times[s], times[base], section.scale) for s in asked}
        results.append(
            Result(
                given=row.setup,
                call=row.ours,
                reference=base,
                seconds=median(times[row.ours]),
                figure=found[row.ours],
                target=row.target,
                peers=[found.get(peer, peer) for peer in peers],
            )
        )
    return Table(section.title, section.reading, section.scale, results)


def memory(space: dict[str, Any], *, quick: bool) -> Table:
    """Measure how far memory rises, in a new process for every statement."""
    n = 2**21 if quick else 2**25
    reading = f"Peak of the memory that a call takes, in sizes of its result; {n >> 17} MB."
    results = []
    for row in BULK[:1] if quick else (*BULK, STACK):
        progress(f"{row.setup}; memory of {row.ours}")

        def rise(statement: str, row: RecordRow = row) -> Figure:
            value = fresh.peak(row.setup, statement, n)
            return Figure(value, value, value)

        peers = able(row, prepared(row, space, 2**13))
        results.append(
            Result(
                given=row.setup,
                call=row.ours,
                reference="one result",
                seconds=None,
                figure=rise(row.ours),
                target=1.05,
                peers=[peer if isinstance(peer, No) else rise(peer) for peer in peers],
            )
        )
    return Table("Memory", reading, SHARE, results)


def imports(*, quick: bool) -> Table:
    """Measure what an import adds to an interpreter that does nothing."""
    reading = (
        "Time beyond that of an interpreter that does nothing. Beside what comes with Python, "
        f"`{IMPORT.ours}` loads: {', '.join(fresh.loaded(IMPORT.ours))}."
    )
    return Table("Import", reading, MS, [added(IMPORT, 5 if quick else 61, 2 if quick else 7)])


def plugin(*, quick: bool) -> Table:
    """Measure what the pytest plugin adds to a run that does not use it."""
    reading = "Time beyond that of the same run of pytest without the plugin."
    return Table("The pytest plugin, unused", reading, MS, [added(PLUGIN, 5 if quick else 31, 0)])


def added(row: RecordRow, rounds: int, fewer: int) -> Result:
    """Measure how much longer than its reference a statement takes, each in a new interpreter."""
    bare = row.references[0]
    progress(row.ours)

    def beyond(statement: str, rounds: int) -> tuple[float, Figure]:
        times = fresh.times([statement, bare], rounds=rounds)
        return median(times[statement]), figure(times[statement], times[bare], MS)

    seconds, ours = beyond(row.ours, rounds)
    peers = [peer if isinstance(peer, No) else beyond(peer, fewer)[1] for peer in row.peers]
    return Result(row.setup, row.ours, f"python -c {bare}", seconds, ours, row.target, peers)


def prepared(row: RecordRow, space: dict[str, Any], n: int) -> dict[str, Any]:
    """Return what a row's statements see, its arrays included."""
    own = {**space, "n": n}
    exec(row.setup, own)  # noqa: S102 -- the statements are ours
    return own


def able(row: RecordRow, space: dict[str, Any]) -> list[str]:
    """Return the peers' statements; where one does not give what ours gives, why not."""
    expected = eval(row.ours, space)  # noqa: S307 -- the statements are ours
    return [peer if isinstance(peer, No) else check(peer, expected, space) for peer in row.peers]


def check(peer: str, expected: Any, space: dict[str, Any]) -> str:
    """Return a statement if its result has the type, dtype and values of ours; if not, why not."""
    try:
        result = eval(peer, space)  # noqa: S307 -- the statements are ours
    except Exception as error:  # noqa: BLE001 -- whatever it raises is the answer
        return No(f"raises {type(error).__name__}: {str(error).split('. ')[0].rstrip('.')}")
    if type(result) is not type(expected):
        return No(f"gives a {type(result).__name__}")
    if isinstance(expected, str):
        return peer if result == expected else No(f"gives {result!r}")
    same = result.dtype == expected.dtype and bool((result == expected).all())
    return peer if same else No("gives other values")


def progress(what: str) -> None:
    """Show on the terminal what is being measured."""
    print(f"... {what}", file=sys.stderr)


if __name__ == "__main__":
    main()
