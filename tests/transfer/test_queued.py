"""Transfers without a thread: which failures of the device are made good, and which errors are seen."""

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
@pytest.mark.parametrize(
    "error", [RuntimeError("launch failure"), xbridge.DeviceError.build("move", "no memory", "less")]
)
def test_queued__converts_again_if_the_device_fails(error: Exception, at: str) -> None:
    """The arrays are converted by the calling thread, which also finds the reason of a second failure."""
    assert Queued(Failing(error, at), list, lambda: "again").result() == "again"


@pytest.mark.parametrize("at", ["wait", "result"])
def test_queued__bug_of_a_backend_is_seen(at: str) -> None:
    """A misspelt name in a backend reaches the caller, and no slower way hides it."""
    queued = Queued(Failing(NameError("name 'evnet' is not defined"), at), list, lambda: "again")
    with pytest.raises(NameError, match="evnet"):
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
    queued = Queued(Arriving(ValueError(), "nothing"), list, list)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: queued.result(), range(2))
    assert one is other
    assert len(taken) == 1
