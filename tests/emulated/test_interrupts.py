"""Ctrl-C at any moment: no copy that is still under way reaches what comes next."""

from __future__ import annotations

import dis
import sys
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from emulated.engine import SIZES, use_sizes, use_small_buffers
from emulated.there import DEVICE, KIND, api

import xbridge
import xbridge.tree
from xbridge.backends.torch import _transfer

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

MODULES = {str(_transfer.__file__)}


@cache
def moments(code: CodeType) -> frozenset[int]:
    """The offsets at which Python looks for a signal: after a call, and before a loop repeats."""
    found, before = set(), ""
    for step in dis.get_instructions(code):
        if step.opname.startswith("JUMP_BACKWARD") or before.startswith(("CALL", "RESUME")):
            found.add(step.offset)
        before = step.opname
    return frozenset(found)


class Interrupt:
    """Raise `KeyboardInterrupt` at the n-th moment of a call at which a signal could come.

    Only moments in the modules that use buffers are counted, and only those of this thread. A place in the
    code counts the first two times: later rounds of a loop leave behind what the second one does.
    """

    def __init__(self, n: int) -> None:
        self.left = n
        self.visits: Counter[tuple[CodeType, int]] = Counter()

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename not in MODULES:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and frame.f_lasti in moments(frame.f_code):
            place = frame.f_code, frame.f_lasti
            self.visits[place] += 1
            self.left -= self.visits[place] <= 2
            if self.left < 0:
                raise KeyboardInterrupt
        return self

    def hits(self, call: Callable[[], object]) -> bool:
        """Return True if the call was interrupted, and False if it was over before."""
        kept, frame = sys.gettrace(), sys._getframe()
        frame.f_trace_opcodes = True  # Python 3.12 reports operations only if this is so when tracing starts
        sys.settrace(self)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(kept)
            frame.f_trace_opcodes = False
        return False


def hosts(start: int) -> list[np.ndarray]:
    return [np.full(40, (start + i) % 251, np.uint8) for i in range(8)]


def tensors(start: int) -> list[torch.Tensor]:
    return [torch.from_numpy(a).to(KIND) for a in hosts(start)]


SMALL, LARGE = 1 << 20, 1
CALLS: dict[str, tuple[int, Callable[[], object]]] = {
    "packs there": (SMALL, lambda: xbridge.tree.to_backend(hosts(1), "torch", device=KIND)),
    "packs back": (SMALL, lambda: xbridge.tree.to_numpy(tensors(2))),
    "tensors there": (
        SMALL,
        lambda: _transfer.transfers.to_device_many(
            [*map(torch.from_numpy, hosts(3))], xbridge.Device(DEVICE)
        ),
    ),
    "tensors back": (SMALL, lambda: _transfer.transfers.to_device_many(tensors(4), xbridge.Device("cpu"))),
    "a large array there": (LARGE, lambda: xbridge.to_backend(np.full(9000, 7, "u1"), "torch", device=KIND)),
    "a large array back": (LARGE, lambda: xbridge.to_numpy(torch.full((9000,), 8.0, device=KIND))),
}


LENGTHS = (9000, 9000, 2048, 2048)
"""Lengths of arrays, and of packs of bytes, whose memory is used again when it has been freed."""


@pytest.mark.slow
@pytest.mark.unmeasured
@pytest.mark.parametrize(("least", "call"), CALLS.values(), ids=CALLS)
def test_transfers__interrupt_at_any_moment_reaches_nothing_else(
    least: int, call: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever Ctrl-C comes, the next batch and array arrive, and other memory keeps its values."""
    use_small_buffers(monkeypatch)
    use_sizes(monkeypatch, SIZES._replace(chunk=1024, buffers=2, least=least))
    n, size = 0, 9000 if least == LARGE else 40
    while Interrupt(n).hits(call):
        reused = [torch.full((length,), 3, dtype=torch.uint8, device=KIND) for length in LENGTHS]
        api.current_stream().synchronize()
        after = [np.full(size, (n + i) % 83 + 10, np.uint8) for i in range(3)]
        there = [xbridge.to_backend(a, "torch", device=KIND) for a in after]
        there += xbridge.tree.to_backend(hosts(n), "torch", device=KIND)
        for _ in range(2):
            for a, x in zip([*after, *hosts(n)], there, strict=True):
                assert (xbridge.to_numpy(x) == a).all(), n
            api.synchronize()  # a copy that was forgotten runs now
        assert all((x.cpu() == 3).all() for x in reused), n
        n += 1
    assert n > 10
