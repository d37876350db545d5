"""Every conversion of the process, by the line that called for it and the route that it took.

A record holds one row for each line and route, however long it runs, and stops telling lines apart before
there are too many of them. It sees all threads, because a hidden transfer is often another thread's.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from xbridge._core.locks import lock
from xbridge._observe.rows import QueueStats, RecordRow, table
from xbridge.backends import _registry
from xbridge.errors import MissingLibraryError

if TYPE_CHECKING:
    from os import PathLike
    from typing import Self

    from xbridge._engine.execute import Caller
    from xbridge._plan.steps import Plan

_MOST_ROWS = 10_000
_ELSEWHERE: dict[str, Any] = {
    "file": "elsewhere",
    "line": 0,
    "function": "",
    "avoid": "",
    "source": "anything",
    "target": "anything",
}


class record:  # noqa: N801 -- read as a statement, like `contextlib.suppress`
    """Collect what is converted in a `with` block, in all threads of the process.

    `rows` has one row for each line of code and route; `summary()` is a table of them, `to_json()` a list,
    and `plot(path)` a picture. `queues` has one entry for each line with a `prefetch` from which batches
    were taken.

    Conversions of the block are planned one by one, so each takes microseconds longer. Those that a
    compiler has traced within its library run without anybody's knowledge.

    Examples
    --------
    >>> import numpy as np, xbridge
    >>> with record() as seen:
    ...     for _ in range(3):
    ...         y = xbridge.to_numpy(np.ones(1000), dtype="float32")
    >>> (row,) = seen.rows
    >>> row.calls, row.copied, row.moved, row.avoid
    (3, 12000, 0, 'cast it once (if it stays the same)')
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int, str, str, str], RecordRow] = {}
        self._queues: dict[tuple[str, int, int], QueueStats] = {}
        self._lock = lock()

    def __enter__(self) -> Self:
        """Begin to collect."""
        global _open  # noqa: PLW0603 -- one for the process
        with _changing:
            _open = (*_open, self)
        _registry.watch(1)
        return self

    def __exit__(self, *_: object) -> None:
        """Collect no more; what there is can be read."""
        global _open  # noqa: PLW0603 -- one for the process
        with _changing:
            last = len(_open) - 1 - _open[::-1].index(self)
            _open = _open[:last] + _open[last + 1 :]
        _registry.watch(-1)

    @property
    def rows(self) -> tuple[RecordRow, ...]:
        """What was collected by line and route, the longest time first."""
        with self._lock:
            rows = list(self._rows.values())
        return tuple(sorted(rows, key=lambda row: row.seconds, reverse=True))

    @property
    def queues(self) -> tuple[QueueStats, ...]:
        """How full the queue of each `prefetch` was, the one that was waited for longest first."""
        with self._lock:
            queues = list(self._queues.values())
        return tuple(sorted(queues, key=lambda queue: queue.waited, reverse=True))

    def summary(self, most: int = 20) -> str:
        """What was collected, as a table.

        Parameters
        ----------
        most : int
            How many lines of code to show; the last line of the table counts all.

        Returns
        -------
        str
            Calls, bytes copied, bytes moved between devices, time, and what would avoid it; then the
            queues, a line for each.

        Examples
        --------
        >>> with record() as seen:
        ...     pass
        >>> print(seen.summary())
        nothing was converted
        """
        rows = self.rows
        converted = table(rows, most) if rows else ["nothing was converted"]
        return "\n".join([*converted, *map(str, self.queues)])

    def to_json(self) -> str:
        """What was collected, as a JSON list of objects, one for each row.

        Returns
        -------
        str
            The keys are `file`, `line`, `function`, `source`, `target`, `calls`, `copied`, `moved`,
            `seconds` and `avoid`: what would spare these bytes, or the option that asks for them.

        Examples
        --------
        >>> record().to_json()
        '[]'
        """
        return json.dumps([row._asdict() for row in self.rows], indent=1)

    def plot(self, path: str | PathLike[str], most: int = 12) -> None:
        """Draw bytes and time by line and route into a picture.

        Parameters
        ----------
        path : path
            Where to write it; its ending says in which format, such as ``.png`` or ``.svg``.
        most : int
            How many rows to draw, the longest time first.

        Raises
        ------
        MissingLibraryError
            Matplotlib is not installed.

        Examples
        --------
        >>> record().plot("crossings.png")  # doctest: +SKIP
        """
        try:
            from matplotlib.figure import Figure  # noqa: PLC0415 -- an extra, and only for this
        except ImportError as error:
            reason = f"matplotlib cannot be imported: {error}"
            raise MissingLibraryError.build(
                "draw a record", reason, "pip install 'xbridge-array[plot]'"
            ) from error
        rows = self.rows[:most][::-1]
        places = range(len(rows))
        figure = Figure(figsize=(11, 1.4 + 0.45 * len(rows)), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        copied, moved = ([getattr(row, word) / 1e6 for row in rows] for word in ("copied", "moved"))
        left.barh(places, copied, label="copied")
        left.barh(places, moved, left=copied, label="moved between devices")
        left.set_xlabel("MB")
        names = [f"{row.where}\n{row.source} to {row.target}" for row in rows]
        left.set_yticks(places, names, parse_math=False)  # a file may be named like a formula
        right.barh(places, [row.seconds * 1e3 for row in rows], color="tab:gray")
        right.set_xlabel("ms")
        right.margins(x=0.2)  # for the words behind the bars
        for place, row in enumerate(rows):
            right.annotate(f" {row.calls:,} x", (row.seconds * 1e3, place), va="center")
        for each in (left, right):
            each.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside upper right", ncols=2, frameon=False)
        figure.savefig(path)

    def _add(self, row: RecordRow) -> None:
        """Into the row of its line and route, or into one for all, when there are too many."""
        key = (row.file, row.line, row.source, row.target, row.avoid)
        with self._lock:
            if key not in self._rows and len(self._rows) >= _MOST_ROWS:
                row = row._replace(**_ELSEWHERE)
                key = (row.file, row.line, row.source, row.target, row.avoid)
            known = self._rows.get(key)
            self._rows[key] = row if known is None else known.plus(row)

    def _wait(self, caller: Caller, depth: int, ready: int, seconds: float) -> None:
        key = (caller.f_code.co_filename, caller.f_lineno, depth)
        with self._lock:
            if key in self._queues or len(self._queues) < _MOST_ROWS:
                fresh = QueueStats(*key[:2], caller.f_code.co_qualname, depth, 0, 0, 0.0)
                old = self._queues.get(key, fresh)
                self._queues[key] = QueueStats(
                    *old[:4], old.batches + 1, old.ready + ready, old.waited + seconds
                )


_open: tuple[record, ...] = ()
_changing = lock()


def record_conversion(plan: Plan, caller: Caller, seconds: float) -> None:
    """Tell every open record what was done."""
    row = RecordRow.of(plan, caller, seconds)
    for each in _open:
        each._add(row)  # noqa: SLF001 -- within this module


def merge(seen: record, rows: str) -> None:
    """Add what another process has collected: the JSON of its record."""
    for row in json.loads(rows):
        seen._add(RecordRow(**row))  # noqa: SLF001 -- within this module


def record_wait(caller: Caller, depth: int, ready: int, seconds: float) -> None:
    """Tell every open record that a batch was asked for, and how many were there."""
    for each in _open:
        each._wait(caller, depth, ready, seconds)  # noqa: SLF001 -- within this module
