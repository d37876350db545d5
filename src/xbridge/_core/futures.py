"""Call a function on behalf of a future, in the thread that has taken the call over."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


def settle(future: Future[T], fn: Callable[[], T]) -> None:
    """Call a function unless its future was cancelled. The future gets the result, or the exception."""
    if future.set_running_or_notify_cancel():
        with _Failures(future):
            future.set_result(fn())


class _Failures(NamedTuple):
    """A context that puts the exception of its block into a future, whose `result` raises it."""

    future: Future[Any]

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """End the block."""
        if error is not None:
            self.future.set_exception(error)
        return True
