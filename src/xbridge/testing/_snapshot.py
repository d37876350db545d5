"""Snapshots of arrays: their values, and the flags and counts that show other changes.

Libraries store such flags under names of their own. Every name is read from every array, and an array without
it is skipped.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

from xbridge.errors import XBridgeError
from xbridge.testing._diff import differences, look_in, resolve, same_bits

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from xbridge.protocol import Array, Backend
    from xbridge.testing._diff import Look


_MARKS: dict[str, Callable[[Array], object]] = {
    "flags": attrgetter("flags.num"),
    "requires_grad": attrgetter("requires_grad"),
    "grad_fn": attrgetter("grad_fn"),
    "version": attrgetter("_version"),
}

_State: TypeAlias = "tuple[Look, dict[str, object]]"


class Unchanged(AbstractContextManager[None]):
    """A context that compares arrays at the end of a block with their snapshots at its beginning."""

    def __init__(self, arrays: tuple[Array, ...]) -> None:
        self._entered = [resolve(x, "watch") for x in arrays]
        self._before: list[_State] = []

    def __enter__(self) -> None:
        self._before = [_state(backend, x) for backend, x in self._entered]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        __tracebackhide__ = True
        reports = [
            f"array {number} was changed:\n" + "\n".join(lines)
            for number, (before, entered) in enumerate(zip(self._before, self._entered, strict=True))
            if (lines := _changes(before, *entered))
        ]
        if error is not None:
            for report in reports:
                error.add_note(report)
        elif reports:
            raise AssertionError("\n".join(reports))


def _state(backend: Backend, x: Array) -> _State:
    """Return the snapshot of an array: its look and its marks."""
    marks: dict[str, object] = {**backend.memory_layout(x)._asdict(), **backend.array_info(x)._asdict()}
    for name, read in _MARKS.items():
        with suppress(AttributeError, RuntimeError):
            marks[name] = read(x)
    return look_in(backend, x), marks


def _changes(before: _State, backend: Backend, x: Array) -> list[str]:
    """List the differences from a snapshot, line by line."""
    try:
        after = _state(backend, x)
    except XBridgeError as error:
        return [f"  {error}"]
    marks = {name: (mark, after[1].get(name)) for name, mark in before[1].items()}
    lines = [f"  {name}: {old} became {new}" for name, (old, new) in marks.items() if old != new]
    return [*lines, *differences(before[0], after[0], ["shape"], same_bits, names=("before", "after"))]
