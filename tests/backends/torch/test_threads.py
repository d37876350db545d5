"""What another thread takes over from torch's state in the caller's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from xbridge.backends.torch._transfer import streams  # noqa: E402 -- where torch is installed

if TYPE_CHECKING:
    from collections.abc import Hashable


class Devices:
    """A module of devices with a current one, as `torch.cuda` is."""

    number = 1

    def current_device(self) -> int:
        return self.number

    def set_device(self, number: int) -> None:
        self.number = number

    def default_stream(self, place: Hashable) -> str:
        return f"of {place}"


def test_thread_context__selects_the_device_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name without an index means the same device in the other thread."""
    api, place = Devices(), torch.device("cuda", 1)
    monkeypatch.setattr(streams, "streams_of", lambda _: api)
    monkeypatch.setattr(streams, "_current_streams", lambda: {place: api.default_stream(place)})
    take_over = streams.thread_context()
    api.set_device(0)  # as it is in a new thread
    take_over()
    assert api.current_device() == 1
