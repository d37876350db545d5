"""Transfers without a thread: an error of the device is seen, and the result is taken once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import xbridge
from xbridge._transfer.queued import Queued


class Passed:
    """An event that has passed, or whose wait raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        if self._error:
            raise self._error


def fail() -> list[Any]:
    raise RuntimeError("launch failure")


@pytest.mark.parametrize("event", [Passed(), Passed(RuntimeError("launch failure"))])
def test_queued__failure_of_the_device_is_an_xbridge_error(event: Passed) -> None:
    """An error of the device names its cause, and is raised by each call."""
    queued = Queued((event, fail), list)
    for _ in range(2):
        with pytest.raises(xbridge.DeviceError, match=r"cannot finish a transfer: .*launch failure"):
            queued.result()


def test_queued__two_threads_take_the_result_once() -> None:
    """If two threads wait, one takes the arrays, and both have the same object."""
    together = threading.Barrier(2, timeout=0.2)

    def arrays() -> list[object]:
        taken.append(threading.get_ident())
        with suppress(threading.BrokenBarrierError):
            together.wait()  # for the other thread, which is not to come
        return [object()]

    taken: list[int] = []
    queued = Queued((Passed(), arrays), list)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: queued.result(), range(2))
    assert one is other
    assert len(taken) == 1
