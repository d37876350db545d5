"""What torch functions change and read beside their arguments, as the backend watches it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from torch.utils import _python_dispatch  # noqa: E402 -- only where the library is

from xbridge.functions.torch.private import shared_flags  # noqa: E402 -- likewise
from xbridge.functions.torch.purity import Watch  # noqa: E402 -- likewise

PATIENCE = 30.0


def test_shared_flags__overlapping_threads_leave_no_mode() -> None:
    """Torch's flags for modes are one for all threads, and are off after calls that overlap."""
    count = 2
    inside, done = threading.Barrier(count), threading.Event()

    def overlap(first: bool) -> None:
        with Watch("f", []):
            inside.wait()
            if not first:
                assert done.wait(PATIENCE)
        done.set()

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(overlap, (True, False)))
    assert not _python_dispatch._is_in_torch_dispatch_mode


def test_shared_flags__mode_of_the_caller_stays() -> None:
    """A mode that the caller is in is still known after a call within it."""
    with _python_dispatch.TorchDispatchMode():  # type: ignore[no-untyped-call] # theirs
        with shared_flags:
            pass
        assert _python_dispatch._is_in_torch_dispatch_mode
    assert not _python_dispatch._is_in_torch_dispatch_mode
