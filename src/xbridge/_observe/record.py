"""`record`: count all conversions of the process by calling line, source and target.

A record has one row for each of these, so its size does not depend on how long it runs. Beyond a limit, all
new lines share one row. A record observes all threads, because hidden transfers often happen in other
threads.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Self
from weakref import ref

from xbridge._core import text
from xbridge._core.entry_points import entry_point
from xbridge._core.locks import lock
from xbridge._core.protocol import Array
from xbridge._engine.execute import CallSite, Observer
from xbridge._observe.foreign import watch
from xbridge._observe.policy import words_of
from xbridge._plan.reasons import IF_SAME, ONCE
from xbridge._plan.steps import Plan
from xbridge._registry.registry import add_observer, remove_observer
from xbridge.errors import OptionError, shown

_MOST_ROWS = 10_000

_ROWS_SHOWN = 20
"""The number of rows that a table shows."""

_SUMMED = ("calls", "copied", "cast", "moved", "seconds", "stale")
"""The fields of a row that are sums."""

_AMOUNTS = ("calls", "copied", "cast", "moved", "time")
_RIGHT = range(3, 8)
"""The columns that are aligned to the right: the amounts."""

_NOTHING = "nothing was converted"

_ASKED = "nothing: copy=True asks for new memory"
"""The advice for an explicit copy, which the program wants because the source will change."""


class RecordRow(NamedTuple):
    """The conversions from one source to one target that one line of code asked for."""

    file: str
    line: int
    function: str
    source: str
    target: str
    calls: int
    copied: int
    """Bytes of new memory of the same dtype, on the same device."""
    cast: int
    """Bytes of new memory of another dtype, on the same device."""
    moved: int
    """Bytes that came from another device."""
    seconds: float
    avoid: str
    """How to avoid these bytes, or the option that asks for them. Empty if there are none."""
    call: str = ""
    """The library's own call that converted; empty if xbridge did."""
    stale: int = 0
    """Results in use that share memory with a tensor which the program has written to since."""

    @property
    def where(self) -> str:
        """Return file and line, as a relative path if the file is in the working directory or below.

        For a cell of a notebook, return its number, as in ``In [3]``.
        """
        shell = getattr(sys.modules.get("IPython"), "get_ipython", bool)()
        cells = getattr(getattr(shell, "compile", None), "_filename_map", {})
        if self.file in cells:
            return f"In [{cells[self.file]}]:{self.line}"
        path = Path(self.file)
        path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        return f"{path}:{self.line}"

    @classmethod
    def of(cls, plan: Plan, caller: CallSite, seconds: float) -> Self:
        """Return the row of one conversion."""
        code, conversion = caller.f_code, plan.conversion
        source = f"{conversion.source.name} {conversion.info.dtype} on {conversion.info.device}"
        target = f"{conversion.target.name} {conversion.dtype} on {conversion.device}"
        place = (code.co_filename, caller.f_lineno, code.co_qualname, source, target)
        sizes = {"copies": 0, "casts": 0, "transfers": 0}  # the words of a policy
        for step in plan.steps:
            sizes[words_of(step)[-1]] += step.nbytes or 0
        copied, cast, moved = sizes.values()
        return cls(*place, 1, copied, cast, moved, seconds, _advise(plan))

    def plus(self, other: RecordRow) -> RecordRow:
        """Return the sum of two rows."""
        return self._replace(**{word: getattr(self, word) + getattr(other, word) for word in _SUMMED})


class _SharedResult(NamedTuple):
    """A result that shares memory with a tensor, and how often that had been written to."""

    key: tuple[str | int, ...]
    result: ref[Array]
    source: ref[Array]
    writes: int

    def is_stale(self) -> bool:
        """Return True if the program has the result still, and has written to the tensor since."""
        source = self.source()
        return self.result() is not None and source is not None and _count_writes(source) != self.writes


def _count_writes(x: Array) -> int | None:
    """Return how often a tensor was written to, which torch counts; None for any other array."""
    try:
        count = getattr(x, "_version", None)
    except RuntimeError:  # torch does not count writes to an inference tensor
        return None
    return count if type(count) is int else None


class _Counter(Observer):
    """The observer of a record, which counts its rows."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str | int, ...], RecordRow] = {}
        self._shared: dict[int, _SharedResult] = {}
        self._lock = lock()

    def rows(self) -> list[RecordRow]:
        """Return the rows, in the order of their first conversion."""
        stale = Counter(one.key for one in list(self._shared.values()) if one.is_stale())
        with self._lock:
            return [row._replace(stale=row.stale + stale[key]) for key, row in self._rows.items()]

    def end(self) -> None:
        """Count the results that are stale now for good, because the program may drop them."""
        with self._lock:
            self._rows = dict(zip(self._rows, self.rows(), strict=True))
            self._shared = {}

    def after(self, plan: Plan, caller: CallSite, seconds: float, source: Array, result: Array) -> None:
        """Count a conversion that has run, and watch a result that shares memory with a tensor."""
        key = self.add(RecordRow.of(plan, caller, seconds))
        version = _count_writes(source) if plan.shares_memory and result is not source else None
        if version is not None:
            place = id(result)
            forget = ref(result, lambda _: self._shared.pop(place, None))
            self._shared[place] = _SharedResult(key, forget, ref(source), version)

    def add(self, row: RecordRow) -> tuple[str | int, ...]:
        """Add a row to the sum for its line, source and target, or to a shared row if there are too many."""
        key = _row_key(row)
        with self._lock:
            if key not in self._rows and len(self._rows) >= _MOST_ROWS:
                row = row._replace(file="elsewhere", line=0, function="", avoid="")
                row = row._replace(source="anything", target="anything", call="")
                key = _row_key(row)
            known = self._rows.get(key)
            self._rows[key] = row if known is None else known.plus(row)
        return key


class record:  # noqa: N801 -- read as a statement, like `contextlib.suppress`
    """Collect the conversions in a `with` block.

    `rows` has one row for each line of code, source and target. `summary()` returns them as a table, which
    a notebook shows, and `to_json()` as a list.

    Parameters
    ----------
    foreign : bool
        False records the conversions by xbridge, in all threads of this process. True adds those by the own
        calls of the libraries that are imported, in this thread, as far as a library offers a hook: PyTorch
        does, for `Tensor.numpy`, `cpu`, `to`, `tolist`, `item`, `torch.as_tensor`, `np.asarray` of a
        tensor, and others of this kind. It does not for `torch.from_numpy`, which copies nothing.

    Notes
    -----
    Conversions in the block are planned one by one, so each takes microseconds longer; with `foreign=True`,
    so does each call of PyTorch. What other processes convert, such as the workers of a data loader, and what
    compiled code does is not recorded.

    Examples
    --------
    >>> import numpy as np, xbridge
    >>> with record() as seen:
    ...     for _ in range(3):
    ...         y = xbridge.to_numpy(np.ones(1000), dtype="float32")
    >>> (row,) = seen.rows
    >>> row.calls, row.copied, row.cast, row.moved, row.avoid
    (3, 0, 12000, 0, 'cast it once (if it stays the same)')
    """

    @entry_point
    def __init__(self, *, foreign: bool = False) -> None:
        if foreign is not True and foreign is not False:
            raise OptionError.build(f"take foreign={shown(foreign)}", "it is True or False", "foreign=True")
        self._counter = _Counter()
        self._foreign = foreign
        self._watches: list[ExitStack] = []

    def __enter__(self) -> Self:
        if self._foreign:
            self._watches.append(watch(lambda *row: self._counter.add(RecordRow(*row))))
        add_observer(self._counter)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop collecting conversions. The rows stay."""
        remove_observer(self._counter)
        self._counter.end()
        if self._watches:
            self._watches.pop().close()

    @property
    def rows(self) -> tuple[RecordRow, ...]:
        """Return the rows by line, source and target, the longest time first."""
        return tuple(sorted(self._counter.rows(), key=lambda row: row.seconds, reverse=True))

    def summary(self, most: int = _ROWS_SHOWN) -> str:
        """Return the record as a table.

        Parameters
        ----------
        most : int
            The number of rows to show. The last line of the table counts all rows.

        Returns
        -------
        str
            Calls, bytes copied, cast and moved between devices, time, and how to avoid them.

        Examples
        --------
        >>> with record() as seen:
        ...     pass
        >>> print(seen.summary())
        nothing was converted
        """
        return "\n".join(_table(self.rows, most))

    def __repr__(self) -> str:
        rows = self.rows
        if not rows:
            return f"<record: {_NOTHING}>"
        amounts = dict(zip(_AMOUNTS, _format_amounts(reduce(RecordRow.plus, rows)), strict=True))
        lines = len({(row.file, row.line) for row in rows})
        shown = {"calls": amounts.pop("calls"), "lines": f"{lines:,}", **amounts}
        return f"<record: {', '.join(map(' '.join, shown.items()))}>"

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        return text.preformatted(str(self))

    def to_json(self) -> str:
        """Return the record as a JSON list of objects, one for each row.

        Returns
        -------
        str
            The keys are `file`, `line`, `function`, `source`, `target`, `calls`, `copied`, `cast`, `moved`,
            `seconds`, `avoid`: how to avoid these bytes, or the option that asks for them, `call`: the
            library's own call, empty if xbridge converted, and `stale`: the results that may have changed
            because the program wrote to the tensor whose memory they share, or to another view of it.

        Examples
        --------
        >>> record().to_json()
        '[]'
        """
        return json.dumps([row._asdict() for row in self.rows], indent=1)


def merge(seen: record, rows: str) -> None:
    """Add the rows of a record of another process, from its JSON."""
    for row in json.loads(rows):
        seen._counter.add(RecordRow(**row))  # noqa: SLF001 -- within this module


def _row_key(row: RecordRow) -> tuple[str | int, ...]:
    return row.file, row.line, row.source, row.target, row.avoid, row.call


def _table(rows: Sequence[RecordRow], most: int) -> list[str]:
    """Return a head, the first rows, and the sum of all rows, as lines."""
    if not rows:
        return [_NOTHING]
    count = f"all {len(rows)}" if len(rows) > 1 else "all"
    cells: list[tuple[str, ...]] = [("where", "from", "to", *_AMOUNTS, "to avoid it")]
    for row in rows[:most]:
        target = f"{row.target} by {row.call}" if row.call else row.target
        is_stale = f"copy=True: {row.stale:,} may have changed with their source" if row.stale else ""
        cells.append((row.where, row.source, target, *_format_amounts(row), is_stale or row.avoid))
    total = _format_amounts(reduce(RecordRow.plus, rows))
    return text.table([*cells, (count, "", "", *total, "")], _RIGHT)


def _format_amounts(row: RecordRow) -> tuple[str, ...]:
    memory = map(text.format_bytes, (row.copied, row.cast, row.moved))
    return (f"{row.calls:,}", *memory, text.format_seconds(row.seconds))


def _advise(plan: Plan) -> str:
    """Return how to avoid the steps that make new memory, unless the caller asked for new memory."""
    reasons = [step.copy_reason for step in plan.steps if step.copy_reason and step.nbytes != 0]
    if reasons and plan.conversion.options.copy:
        return _ASKED
    advice = "; ".join(dict.fromkeys(chain.from_iterable(why.advice for why in reasons)))
    return advice + IF_SAME if any(why.kind in ONCE for why in reasons) else advice
