"""A line of a record: what code had converted on one route, or how far ahead of use it had its batches."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from xbridge._core.text import aligned, named_place, short, time

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from xbridge._engine.execute import Caller
    from xbridge._plan.steps import Plan

_TO_AVOID = {
    "its bytes are": "native byte order from the start",
    "not aligned": "aligned memory",
    "no such strides": "a dense array, row by row",
    "its memory is read-only": "convert it once",
    "its elements may share": "an array that repeats nothing",
    "it requires grad": "compute it without gradients, if none are needed",
    "its memory can change": "convert it once",
    "a compiler would": "convert outside of compiled code",
    "still pending": "compute it once",
    "still to be computed": "compute it once",
    "of a list lie apart": "one array from the start",
    " becomes ": "cast it once",
    "it moves from": "keep it where it is, or move it once",
}
"""Words of a reason -> what makes the step needless.

Each changes what is given, or how often, and never how it is asked for: no guard of the caller's or of the
contract's is taken away, and what comes of the call has the same values, dtype, device and gradient.
"""

_IF_SAME = " (if it stays the same)"
"""What is made once for many conversions shows nothing of what is written in between."""

_ASKED = "nothing: copy=True asks for new memory"
"""Of a snapshot. Its source will change, so that not even one conversion for all would do."""


class RecordRow(NamedTuple):
    """What one line of code had converted, on one route."""

    file: str
    line: int
    function: str
    source: str
    target: str
    calls: int
    copied: int
    """Bytes of new memory on the same device."""
    moved: int
    """Bytes that came from another device."""
    seconds: float
    avoid: str
    """What it would take to have none of these bytes, or what asks for them; empty if there are none."""

    @property
    def where(self) -> str:
        """File and line, from here if the file is below here."""
        return f"{named_place(self.file)}:{self.line}"

    @classmethod
    def of(cls, plan: Plan, caller: Caller, seconds: float) -> Self:
        """What one conversion adds."""
        code, conversion = caller.f_code, plan.conversion
        source = f"{conversion.source.name} {conversion.info.dtype} on {conversion.info.device}"
        target = f"{conversion.target.name} {conversion.dtype} on {conversion.device}"
        place = (code.co_filename, caller.f_lineno, code.co_qualname, source, target)
        moved = sum(step.nbytes or 0 for step in plan.steps if step.op in ("to_device", "stream_to_device"))
        copied = sum(step.nbytes or 0 for step in plan.steps) - moved
        return cls(*place, 1, copied, moved, seconds, _to_avoid(plan))

    def plus(self, other: RecordRow) -> RecordRow:
        """Two rows of one line and route as one."""
        return self._replace(
            calls=self.calls + other.calls,
            copied=self.copied + other.copied,
            moved=self.moved + other.moved,
            seconds=self.seconds + other.seconds,
        )


class QueueStats(NamedTuple):
    """How far ahead of its use a line of code had its batches, with `prefetch`."""

    file: str
    line: int
    function: str
    depth: int
    batches: int
    ready: int
    """Batches that were ready when one was asked for, all such counts added up."""
    waited: float
    """Seconds in which the program waited for a batch that was not."""

    def __str__(self) -> str:
        """In one line: full on average means that the program is what takes time."""
        where = f"{named_place(self.file)}:{self.line}"
        full = f"{self.ready / self.batches:.2g} of {self.depth} ready"
        return f"{where}  prefetch  {self.batches:,} batches  {full}  waited {time(self.waited)}"


def table(rows: Sequence[RecordRow], most: int) -> list[str]:
    """The first of some rows, and what all of them come to; at least one."""
    head = ("where", "from", "to", "calls", "copied", "moved", "time", "to avoid it")
    cells = [head, *map(_cells, rows[:most])]
    total = (sum(row.calls for row in rows), sum(row.copied for row in rows))
    moved, seconds = sum(row.moved for row in rows), sum(row.seconds for row in rows)
    count = f"all {len(rows)}" if len(rows) > 1 else "all"
    cells.append((count, "", "", f"{total[0]:,}", *map(short, (total[1], moved)), time(seconds), ""))
    return aligned(cells)


def _cells(row: RecordRow) -> tuple[str, ...]:
    amounts = (f"{row.calls:,}", short(row.copied), short(row.moved), time(row.seconds))
    return (row.where, row.source, row.target, *amounts, row.avoid)


def _to_avoid(plan: Plan) -> str:
    """What would spare each of the steps that make new memory, unless new memory was asked for."""
    reasons = [step.copies for step in plan.steps if step.copies and step.nbytes != 0]
    if reasons and plan.conversion.options.copy:
        return _ASKED
    ways = [[hint for words, hint in _TO_AVOID.items() if words in reason] or [reason] for reason in reasons]
    advice = "; ".join(dict.fromkeys(chain.from_iterable(ways)))
    return advice + _IF_SAME if " once" in advice else advice
