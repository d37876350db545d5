"""A transfer through a ring of pinned buffers: the next chunk is filled while the last one is copied.

This is how large arrays go to a device at full speed, and a way to be wrong at every line. It is written
once for `torch.cuda` and `torch.emu`; each of its waits stands on a line of its own, so that a test can
leave it out.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch


class Ring:
    """Pinned buffers that are used in turn, and a stream that copies out of them and into them.

    Parameters
    ----------
    kind
        `"cuda"` or `"emu"`.
    chunk
        Bytes in a buffer.
    count
        Buffers.
    """

    def __init__(self, kind: str, *, chunk: int = 64, count: int = 2) -> None:
        self.kind, self.chunk = kind, chunk
        self.api: Any = getattr(torch, kind)
        self.stream = self.api.Stream()
        self.buffers = [torch.empty(chunk, dtype=torch.uint8, pin_memory=True) for _ in range(count)]
        self.events = [self.api.Event() for _ in range(count)]

    def to_device(self, host: torch.Tensor) -> torch.Tensor:
        """A copy of host bytes on the device, for the current stream; the host bytes may change on return."""
        out = torch.empty(len(host), dtype=torch.uint8, device=self.kind)
        self.stream.wait_stream(self.api.current_stream())  # the memory may have been another tensor's
        for turn, start in enumerate(range(0, len(host), self.chunk)):
            part = host[start : start + self.chunk]
            buffer, event = self._slot(turn, len(part))
            event.synchronize()  # the last copy out of it
            buffer.copy_(part)
            with self.api.stream(self.stream):
                out[start : start + self.chunk].copy_(buffer, non_blocking=True)
            event.record(self.stream)
        self.api.current_stream().wait_stream(self.stream)  # whoever uses it next
        return out

    def to_host(self, x: torch.Tensor) -> torch.Tensor:
        """A copy of device bytes on the host, complete on return."""
        host = torch.zeros(len(x), dtype=torch.uint8)
        under_way: deque[tuple[int, torch.Tensor, Any]] = deque()
        self.stream.wait_stream(self.api.current_stream())  # whoever makes it
        for turn, start in enumerate(range(0, len(x), self.chunk)):
            part = x[start : start + self.chunk]
            buffer, event = self._slot(turn, len(part))
            if len(under_way) == len(self.buffers):
                self._land(host, *under_way.popleft())
            with self.api.stream(self.stream):
                buffer.copy_(part, non_blocking=True)
            event.record(self.stream)
            under_way.append((start, buffer, event))
        while under_way:
            self._land(host, *under_way.popleft())
        return host

    def _slot(self, turn: int, size: int) -> tuple[torch.Tensor, Any]:
        """The buffer whose turn it is, and the event of the last copy that used it."""
        index = turn % len(self.buffers)
        return self.buffers[index][:size], self.events[index]

    def _land(self, host: torch.Tensor, start: int, buffer: torch.Tensor, event: Any) -> None:
        """Take a chunk out of its buffer."""
        event.synchronize()  # the copy into it
        host[start : start + len(buffer)].copy_(buffer)
