"""Measure xbridge beside the idioms and its peers, print the tables, and write them to pages.

details.md has our calls beside the idioms, and in-place-of.md other projects' converters beside our calls;
README.md and its picture are a summary of the first (`summary.py`). A missed target is not a failure, because
the machine may be busy. The tables show it.
"""

import argparse
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import fresh
import in_place_of
import rows_calls
import rows_dask
import rows_jax
import summary
from harness import MS, SHARE, TIME, Figure, best, figure, measure
from report import Result, Table, document
from rows import BULK, FIRST, FIRST_REFERENCE, IMPORT, STACK, No, RecordRow, Section, names, sections
from rows_kit import PLUGIN, names_of_kit, section_of_kit
from rows_tree import names_of_trees, sections_of_trees

PAGES = ("details", "in-place-of")  # in this order: the second leaves torch with one thread


def main() -> None:
    """Measure everything, or what was asked for, and report it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="just enough to see that it works")
    parser.add_argument("--page", choices=PAGES, help="only this page")
    parser.add_argument("--only", default="", metavar="ROW", help="only rows with this text; writes no page")
    parser.add_argument("--output", type=Path, help="folder to write to (benchmarks; with --quick: none)")
    options = parser.parse_args()
    quick: bool = options.quick
    only: str = options.only
    output: Path | None = options.output or (None if quick or only else Path(__file__).parent)
    command = shlex.join(["python", "benchmarks/run.py", *sys.argv[1:]])

    warnings.simplefilter("ignore")  # the idioms' and the peers'; the tests see to ours
    makers = dict(zip(PAGES, (beside_idioms, beside_converters), strict=True))
    found = False
    for name in (options.page,) if options.page else PAGES:
        text = makers[name](only, command, quick=quick)
        found = found or bool(text)
        if text:
            print(text)
        if text and output:
            output.mkdir(parents=True, exist_ok=True)
            (output / f"{name}.md").write_text(text, encoding="utf-8")
            if name == PAGES[0] and not quick:  # the arrays of a trial have other sizes
                summary.write(text, output)
    if not found:
        sys.exit(f"no row has the text {only!r}. Try: python benchmarks/run.py --only to_numpy")


def beside_idioms(only: str, command: str, *, quick: bool) -> str:
    """Return the page of our calls beside the idioms; "" if it has no such row."""
    groups: list[tuple[str, Callable[[], dict[str, Any]], tuple[Section, ...]]] = [
        ("torch", names, sections(quick=quick)),
        ("jax", lambda: {**names(), **rows_jax.names()}, rows_jax.sections(quick=quick)),
        ("jax", lambda: {**names(), **rows_calls.names()}, rows_calls.sections(quick=quick)),
        ("dask", lambda: {**names(), **rows_dask.names()}, rows_dask.sections(quick=quick)),
        ("torch", lambda: {**names(), **names_of_trees()}, sections_of_trees(quick=quick)),
        ("hypothesis", lambda: {**names(), **names_of_kit()}, (section_of_kit(quick=quick),)),
    ]
    tables: list[Table] = []
    for library, space, own in groups:
        wanted = [section for section in map(chosen(only), own) if section.rows]
        if wanted and not find_spec(library):
            progress(f"{library} is not installed: no rows of it")
        elif wanted:
            known = space()
            tables += [timed(section, known) for section in wanted]
    tables += special(only, quick=quick)
    return document(tables, command=command, quick=quick) if tables else ""


def chosen(only: str) -> Callable[[Section], Section]:
    """Return a function that keeps the rows of a section that have a text; all if it is in the title."""

    def keep(section: Section) -> Section:
        rows = [row for row in section.rows if has(only, section.title, row)]
        return section._replace(rows=tuple(rows))

    return keep


def has(only: str, title: str, row: RecordRow) -> bool:
    """Return True if a row has a text in it."""
    return any(only in text for text in (title, row.setup, row.ours, *row.references))


def special(only: str, *, quick: bool) -> Iterator[Table]:
    """Measure what needs processes of its own."""
    bulk = [row for row in (BULK[:1] if quick else (*BULK, STACK)) if has(only, "Memory", row)]
    if bulk:
        yield memory(bulk, names(), quick=quick)
    first = [row for row in (FIRST[:1] if quick else FIRST) if has(only, "First calls", row)]
    if first:
        yield first_calls(first, 3 if quick else 15)
    if has(only, "Import", IMPORT):
        yield imports(quick=quick)
    if has(only, "The pytest plugin, unused", PLUGIN):
        yield plugin(quick=quick)


def beside_converters(only: str, command: str, *, quick: bool) -> str:
    """Return the page of other projects' converters; "" if it has no such row."""
    how = {"trials": 1, "rounds": 5, "block": 5e-4} if quick else {"trials": 10, "rounds": 60, "block": 5e-4}
    results = []
    for row in in_place_of.rows_like(only):
        progress(f"{row.project}: {row.theirs}")
        results.append(in_place_of.measured(row, **how))
    return in_place_of.page(results, command=command, quick=quick, **how) if results else ""


def timed(section: Section, space: dict[str, Any]) -> Table:
    """Measure a section in this process."""
    results = []
    for row in section.rows:
        progress(f"{row.setup}; {row.ours}")
        peers = able(row, prepared(row, space, section.n))
        asked = [row.ours, *row.references, *(peer for peer in peers if not isinstance(peer, No))]
        times = measure(
            asked,
            partial(prepared, row, space, section.n),
            trials=section.trials,
            rounds=section.rounds,
            block=section.block,
        )
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
                why=row.why,
            )
        )
    return Table(section.title, section.reading, section.scale, results)


def memory(rows: list[RecordRow], space: dict[str, Any], *, quick: bool) -> Table:
    """Measure how far memory rises, in a new process for every statement."""
    n = 2**21 if quick else 2**25
    reading = f"Peak of the memory that a call takes, in sizes of its result; {n >> 17} MB."
    results = []
    for row in rows:
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
                why=row.why,
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


def first_calls(rows: list[RecordRow], rounds: int) -> Table:
    """Measure what a call takes in a new process, the import included."""
    reading = (
        "Processor time of a call in a new process that has imported the libraries, as a multiple of that of "
        f"`{FIRST_REFERENCE[1]}` in one that has torch."
    )
    results = []
    for row in rows:
        progress(f"{row.setup}; {row.ours}")
        peers = [peer for peer in row.peers if not isinstance(peer, No)]
        runs = {row.ours: (row.setup, row.ours), FIRST_REFERENCE[1]: FIRST_REFERENCE}
        runs |= {peer: (row.setup, peer) for peer in peers}
        for asked in runs.values():
            fresh.first(*asked)  # compiles what it imports
        turns = [{name: fresh.first(*asked) for name, asked in runs.items()} for _ in range(rounds)]
        times = {name: [turn[name] for turn in turns] for name in runs}
        base = FIRST_REFERENCE[1]
        found = {name: figure(times[name], times[base], TIME) for name in runs}
        results.append(
            Result(
                row.setup,
                row.ours,
                base,
                median(times[row.ours]),
                found[row.ours],
                row.target,
                [found.get(peer, peer) for peer in row.peers],
                row.why,
            )
        )
    return Table("First calls", reading, TIME, results)


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
    return Result(row.setup, row.ours, f"python -c {bare}", seconds, ours, row.target, peers, row.why)


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
