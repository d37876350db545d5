"""Transfers without a thread: an error of the device is seen, and the result is taken once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import xbridge
from xbridge._transfer.queued import Queued


class Failing:
    """A pending move whose methods raise, from the one that is named on."""

    def __init__(self, error: Exception, at: str) -> None:
        self._error, self._at = error, at

    def done(self) -> bool:
        return True

    def wait(self, seconds: float | None, /) -> bool:
        if self._at == "wait":
            raise self._error
        return True

    def result(self) -> list[Any]:
        raise self._error


@pytest.mark.parametrize("at", ["wait", "result"])
def test_queued__failure_of_the_device_is_an_xbridge_error(at: str) -> None:
    """An error of the device names its cause, and is raised by each call."""
    queued = Queued(Failing(RuntimeError("launch failure"), at), list)
    for _ in range(2):
        with pytest.raises(xbridge.DeviceError, match=r"cannot finish a transfer: .*launch failure"):
            queued.result()


def test_queued__two_threads_take_the_result_once() -> None:
    """If two threads wait, one takes the arrays, and both have the same object."""
    together = threading.Barrier(2, timeout=0.2)

    class Arriving(Failing):
        """A pending move that is done."""

        def result(self) -> list[object]:
            taken.append(threading.get_ident())
            with suppress(threading.BrokenBarrierError):
                together.wait()  # for the other thread, which is not to come
            return [object()]

    taken: list[int] = []
    queued = Queued(Arriving(ValueError(), "nothing"), list)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: queued.result(), range(2))
    assert one is other
    assert len(taken) == 1
