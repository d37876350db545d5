"""The threads of a transfer: what they keep of a finished task, and what they do when they are stopped."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import CancelledError

import pytest

from xbridge._transfer.threads import Worker

PATIENCE = 30.0


class Thing:
    """Something to which a weak reference can be made."""


def when_deleted(thing: object) -> threading.Event:
    """An event that is set when a thing is deleted."""
    gone = threading.Event()
    weakref.finalize(thing, gone.set)
    return gone


def test_worker__keeps_nothing_of_a_finished_task() -> None:
    """A thread that waits for its next task keeps neither the arguments nor the result of the last one."""
    worker, given, made = Worker("xbridge-test", lambda: None), Thing(), Thing()
    given_is_gone, made_is_gone = when_deleted(given), when_deleted(made)
    results = [made]
    future = worker.submit(lambda thing: results.pop(), given)
    assert future.result() is made
    del future, given, made
    try:
        assert given_is_gone.wait(PATIENCE)
        assert made_is_gone.wait(PATIENCE)
    finally:
        worker.finish()


def test_worker__stop_cancels_tasks_that_have_not_begun() -> None:
    """Whoever waits for a task that will never begin is told so, instead of waiting for ever."""
    worker, begun, go_on = Worker("xbridge-test", lambda: None), threading.Event(), threading.Event()
    worker.submit(begun.set)
    first, second = worker.submit(go_on.wait, PATIENCE), worker.submit(go_on.wait)
    assert begun.wait(PATIENCE)
    worker.stop()
    go_on.set()
    assert first.result()
    with pytest.raises(CancelledError):
        second.result(PATIENCE)
