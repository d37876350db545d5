"""Measure other projects' converters beside the xbridge calls that can replace them, and make a page of it.

A row has a function of a project that is installed, or the line that a project's source runs. Before it is
timed, both calls must give the same: containers, types, dtypes and values, and what ours gives must keep the
contract. Whether theirs keeps it is found by the same check, and shown.
"""

from importlib import import_module
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import rows_sites
from harness import TIME, Figure, figure, measure
from report import TRIAL, dated, duration, grid, installed, machine
from rows_adopters import AdopterRow, installed_rows

__all__ = ["Replaced", "measured", "page", "rows_like"]

TARGET = 1.5
"""Our time may be so many times theirs, if theirs is more than `BRIEF`."""

BRIEF_TARGET = 2
"""The same for a brief call, which leaves less time for checks."""

BRIEF = 2e-6
"""The seconds that a brief call takes at most."""

INPUTS = 20
"""Whether a library shares memory may depend on its address, so that so many inputs are checked."""

PAGE = """\
# In place of

{verdict}

This page compares converters of other projects, on typical input, with the xbridge call that can replace
them. Some are called through the project's own public function. For the others, a row has the line that the
[project's source](#the-lines) runs for such input, without the function around it, so these are compared
with less. `make bench` makes the page; this one was made by
`{command}` on {date}. `python benchmarks/run.py --only skorch` measures the rows of one
project, and `--only 'to_tensor(x'` those with such a call.

**How it is measured.** The two calls of a row alternate, in one process and in blocks of {block:g} ms. The
arrays are made anew {trials} times, and each time a call gets {rounds} blocks. A figure is our median time as
a multiple of theirs, followed by the range of the middle half of the rounds. Less is better. The target is
at most {target:g}, or {brief_target:g} if theirs takes at most {brief:g} us. torch uses one thread here:
with more, its own casts take many times as long while another process keeps a core busy.

**What is checked first.** Both calls give the same containers, types, dtypes and values. A result of ours
never shares memory with its input if one of the two can be written and the other must not change. Arrays of
JAX, read-only arrays and tensors that require grad must not change. If theirs shares such memory for one of
{inputs} inputs, the row says *unsafe*, and has the target nevertheless.

{table}

{notes}## The imports

{imports}

## The lines

{lines}

## The machine

{machine}
"""

UNSAFE = {
    "to": "Unsafe: theirs shares memory that the caller may write with an array that may not change.",
    "from": "Unsafe: theirs gives memory that may not change as an array that can be written.",
}


class Replaced(NamedTuple):
    """One measured row."""

    row: AdopterRow
    theirs: float
    """Seconds."""
    ours: float
    figure: Figure
    unsafe: str
    """What theirs does with memory, if it is not safe."""

    @property
    def misses(self) -> bool:
        """True if ours takes longer than its target."""
        return self.figure.value > (TARGET if self.theirs > BRIEF else BRIEF_TARGET)


def rows_like(only: str) -> list[AdopterRow]:
    """Return the rows that have a text in them: lines of projects, and functions of those installed."""
    return [row for row in (*installed_rows(), *rows_sites.ROWS) if any(only in text for text in row)]


def measured(row: AdopterRow, *, trials: int, rounds: int, block: float) -> Replaced:
    """Check a row, measure it, and return what was found."""
    import_module("torch").set_num_threads(1)
    spaces = [prepared(row) for _ in range(INPUTS)]
    found = [check(row, space) for space in spaces]
    times = measure([row.theirs, row.ours], lambda: prepared(row), trials=trials, rounds=rounds, block=block)
    return Replaced(
        row,
        median(times[row.theirs]),
        median(times[row.ours]),
        figure(times[row.ours], times[row.theirs], TIME),
        next(filter(None, found), ""),
    )


def check(row: AdopterRow, space: dict[str, Any]) -> str:
    """Raise an error unless both calls give the same and ours is safe; return what is unsafe about theirs."""
    theirs, ours = (eval(call, space) for call in (row.theirs, row.ours))  # noqa: S307 -- the calls are ours
    space["kept"] = theirs, ours  # so that the memory of the next input is elsewhere
    difference = differs(theirs, ours)
    assert not difference, f"{row.project}: {row.ours} is not {row.theirs}: {difference}"
    assert not unsafe(space["x"], ours), f"{row.project}: {row.ours} does not keep the contract"
    return unsafe(space["x"], theirs)


def prepared(row: AdopterRow) -> dict[str, Any]:
    """Return what a row's calls see."""
    names = {"np": "numpy", "torch": "torch", "jnp": "jax.numpy", "xbridge": "xbridge"}
    space: dict[str, Any] = {name: import_module(path) for name, path in names.items()}
    import_module("xbridge.tree")
    exec(f"{row.imports}\n{row.given}", space)  # noqa: S102 -- the statements are ours
    return space


def differs(theirs: Any, ours: Any) -> str:
    """Return how two results differ; "" if they have the same containers, types, dtypes and values."""
    if type(theirs) is not type(ours):
        return f"a {type(theirs).__name__} and a {type(ours).__name__}"
    if hasattr(theirs, "keys"):
        if list(theirs.keys()) != list(ours.keys()):
            return "other keys"
        return next(filter(None, (differs(theirs[key], ours[key]) for key in theirs.keys())), "")  # noqa: SIM118 -- tianshou's Batch has `keys` and iterates over something else
    if isinstance(theirs, (list, tuple)):
        if len(theirs) != len(ours):
            return f"{len(theirs)} and {len(ours)} items"
        return next(filter(None, map(differs, theirs, ours)), "")
    if not is_array(theirs):
        return "" if theirs == ours else "other values"
    if (theirs.dtype, theirs.shape) != (ours.dtype, ours.shape):
        return f"{theirs.dtype} {tuple(theirs.shape)} and {ours.dtype} {tuple(ours.shape)}"
    if getattr(theirs, "requires_grad", False) != getattr(ours, "requires_grad", False):
        return "only one requires grad"
    return "" if bool((theirs == ours).all()) else "other values"


def unsafe(source: Any, result: Any) -> str:
    """Return what is unsafe about the memory of a result; "" if it is safe.

    Memory that both have must not change through one of them if the other may not change.
    """
    if hasattr(result, "keys"):
        found = (unsafe(source[key], result[key]) for key in result.keys())  # noqa: SIM118 -- as above
        return next(filter(None, found), "")
    if isinstance(source, (list, tuple)) and isinstance(result, (list, tuple)):
        return next(filter(None, map(unsafe, source, result)), "")
    if not (is_array(source) and is_array(result)) or not overlapping(span(source), span(result)):
        return ""
    if can_be_written(result) and not can_be_written(source):
        return UNSAFE["from"]
    assumed = type(result).__module__.startswith("jax")
    return UNSAFE["to"] if assumed and can_be_written(source) else ""


def is_array(x: Any) -> bool:
    """Return True for an array. A scalar of NumPy is none: nobody can write to it."""
    return hasattr(x, "nbytes") and not isinstance(x, np.generic)


def span(x: Any) -> tuple[int, int]:
    """Return the first address of a dense array, and the one behind it."""
    if hasattr(x, "data_ptr"):
        start = x.data_ptr()
    elif hasattr(x, "unsafe_buffer_pointer"):
        start = x.unsafe_buffer_pointer()
    else:
        start = x.__array_interface__["data"][0]
    return start, start + x.nbytes


def overlapping(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return True if two ranges of addresses have a byte in common."""
    return max(one[0], other[0]) < min(one[1], other[1])


def can_be_written(x: Any) -> bool:
    """Return True if an array can be written. A tensor that requires grad cannot, without its gradients."""
    if hasattr(x, "requires_grad"):
        return not x.requires_grad
    return bool(getattr(getattr(x, "flags", None), "writeable", False))


def page(
    results: list[Replaced], *, command: str, quick: bool, trials: int, rounds: int, block: float
) -> str:
    """Return the page. The last three arguments are those of the measurement."""
    long = [result for result in results if result.theirs > BRIEF]
    verdict = (
        f"{sum(r.figure.value <= BRIEF_TARGET for r in results)} of {len(results)} calls took at most "
        f"{BRIEF_TARGET:g} times as long as the converters that they replace, on the\n"
        f"machine below; of the {len(long)} that take over {BRIEF * 1e6:g} us there, "
        f"{sum(not r.misses for r in long)} took at most {TARGET:g} times as long."
    )
    table, notes = lines(results)
    projects = dict.fromkeys(result.row.project for result in results if result.row.imports)
    sites = dict.fromkeys(result.row.project for result in results if not result.row.imports)
    return PAGE.format(
        verdict=TRIAL if quick else verdict,
        command=command,
        date=dated(),
        block=block * 1000,
        trials=trials,
        rounds=rounds,
        target=TARGET,
        brief_target=BRIEF_TARGET,
        brief=BRIEF * 1e6,
        inputs=INPUTS,
        table=table,
        notes="".join(f"{i}. {note}\n" for i, note in enumerate(notes, 1)) + "\n" * bool(notes),
        imports="\n".join(f"- {installed(name)}: {imports_of(name, results)}" for name in projects),
        lines="\n".join(f"- {name}: `{rows_sites.SOURCES[name]}`" for name in sites),
        machine="\n".join(f"- {line}" for line in machine(("xbridge-array", "numpy", "torch", "jax"))),
    )


def lines(results: list[Replaced]) -> tuple[str, list[str]]:
    """Return the table, and what its notes say."""
    notes: list[str] = []
    head = ["project", "given", "theirs", "ours", "theirs takes", "ours takes", "ours / theirs", ""]
    body = [head]
    for result in results:
        row, (value, low, high) = result.row, (TIME.form.format(x) for x in result.figure)
        marks = []
        for word, note in (
            ("unsafe", result.unsafe),
            ("**misses**", (row.why or "Not explained.") if result.misses else ""),
        ):
            if note:
                notes += [note] * (note not in notes)
                marks.append(f"{word} ({notes.index(note) + 1})")
        calls = [f"`{text}`" for text in (row.given, row.theirs, row.ours)]
        times = [duration(result.theirs), duration(result.ours)]
        body.append([row.project, *calls, *times, f"{value} ({low} to {high})", ", ".join(marks)])
    return grid(body), notes


def imports_of(project: str, results: list[Replaced]) -> str:
    """Return the imports of a project's rows."""
    used = dict.fromkeys(
        result.row.imports for result in results if result.row.project == project and result.row.imports
    )
    return "; or ".join(f"`{statement}`" for statement in used)
