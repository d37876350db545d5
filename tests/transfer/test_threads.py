"""The threads of a transfer: what they keep of a finished task, and what they do when they are stopped."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import CancelledError

import numpy as np
import pytest
from gate import Gate

import xbridge
from xbridge._transfer import api, threads
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
    worker, given, made = Worker("xbridge-test"), Thing(), Thing()
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
    worker, begun, go_on = Worker("xbridge-test"), threading.Event(), threading.Event()
    worker.submit(begun.set)
    first, second = worker.submit(go_on.wait, PATIENCE), worker.submit(go_on.wait)
    assert begun.wait(PATIENCE)
    worker.stop()
    go_on.set()
    assert first.result()
    with pytest.raises(CancelledError):
        second.result(PATIENCE)


def test_transfer__process_that_began_neither_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child is refused a transfer and a batch that its parent began."""
    slow = Gate()
    under_way = xbridge.transfer(slow, "numpy")
    batches = iter(xbridge.prefetch(iter([np.ones(2)] * 3), "numpy"))
    next(batches)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(api, "getpid", lambda: -1)
        assert under_way.done()
        with pytest.raises(xbridge.XBridgeError, match=r"cannot wait for a transfer: .* another process"):
            under_way.result()
        with pytest.raises(xbridge.XBridgeError, match=r"cannot convert batches ahead: .* another process"):
            next(batches)
    assert not under_way.done()
    slow.opened.set()
    assert under_way.result().tolist() == [1.0, 1.0]
    threads.end_workers(list(threads._workers))  # the loop left those of "another process" alone
