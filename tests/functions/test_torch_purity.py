"""What torch functions change and read beside their arguments, as the backend watches it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from versions import is_older

import xbridge

torch = pytest.importorskip("torch")

from torch.utils import _python_dispatch  # noqa: E402 -- only where the library is

from xbridge.functions.torch import purity as _purity  # noqa: E402 -- likewise
from xbridge.functions.torch.purity import Calls, Purity, Watch, shared_flags  # noqa: E402 -- likewise

PATIENCE = 30.0


def test_purity__forgets_what_no_longer_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the tensors that runs made, those that live on stay known, however many runs there are."""
    monkeypatch.setattr(_purity, "_MIN_MADE", 4)
    purity = Purity("f")
    kept: list[Any] = []

    def fn(x: Any) -> list[Any]:
        kept.append(x * 2)
        return [x.sin(), x.cos(), x.tan()]

    for _ in range(20):
        purity.run(fn, [torch.ones(2)], again=False, whole=True)
        assert len(purity._made) <= 2 * len(kept) + 2 * 4 + 8
    assert {id(x) for x in kept} <= {id(x()) for x in purity._made.values()}


@pytest.mark.skipif(is_older("torch", "2.8"), reason="torch 2.7 does not tell of hooks: all runs are watched")
def test_harmless__calls_that_it_knows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the calls that are known to change nothing, only so many are kept."""
    jax = pytest.importorskip("jax")
    monkeypatch.setattr(_purity, "_MAX_HARMLESS", 1)
    monkeypatch.setattr(_purity, "_harmless", set())
    run = jax.jit(xbridge.aligned(backend="torch")(lambda x: torch.sin(x) * 2))
    x = np.array([0.5, -1.0], np.float32)
    for _ in range(3):
        np.testing.assert_allclose(run(x), 2 * np.sin(x), rtol=1e-6)
    assert len(_purity._harmless) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_calls__do_not_hold_up_the_end_of_the_program(error: type[BaseException]) -> None:
    """Ctrl-C ends the program even if it comes after something in the run is in doubt."""

    def run() -> None:
        with suppress(BaseException):
            torch.rand(2)
        raise error

    with pytest.raises(error):
        Calls([], {}).follow(run)


def test_shared_flags__overlapping_threads_leave_no_mode() -> None:
    """Torch's flags for modes are one for all threads, and are off after calls that overlap."""
    count = 2
    inside, done = threading.Barrier(count), threading.Event()

    def overlap(first: bool) -> None:
        with shared_flags, Watch("f", [], real=True):
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
