"""Every lock is made in one module, and is free in the child of a fork.

A conformance test has a barrier, which is gone when its two threads are.
"""

from __future__ import annotations

import os
import threading

import pytest
from fresh import forked, run

from xbridge._core import locks

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

EMULATOR = "torch._dynamo"
"""What the emulated accelerator imports, which takes seconds."""

LIMIT = 120
"""Seconds after which a process that should have ended has failed."""


EVERY_LOCK = """
import importlib, os, pkgutil, signal, threading, warnings
import numpy as np
import xbridge
from xbridge._core import locks
try:
    from xbridge.testing import emulated
    emulated.install()
    import torch
    targets = ["numpy", "torch"]
    kept = [torch.emu.Stream()]
    xbridge.to_backend(np.ones(3), "torch", device="emu")
except ImportError:
    targets, kept = ["numpy"], []
seen, strict = xbridge.record(), xbridge.policy(transfers="allow")
kept += [xbridge.transfer(np.ones(3), "numpy", copy=True)]
kept[-1].result()

# Whatever there is in the modules of the package, they know of.
kinds = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event)
known = [each() for each in locks._known]
for name, module in sorted(__import__("sys").modules.items()):
    if name.partition(".")[0] == "xbridge" and not name.startswith("xbridge.testing.emulated"):
        for word, value in vars(module).items():
            held = [value, *(vars(value).values() if isinstance(value, type) else ())]
            missed = [one for one in held if isinstance(one, kinds) and id(one) not in map(id, known)]
            assert not missed, (name, word)
assert len(known) >= 4, known

taken, release = threading.Event(), threading.Event()
def hold():
    for each in known:
        getattr(each, "_cond", each).acquire()
    taken.set()
    release.wait()
    for each in known:
        getattr(each, "_cond", each).release()

with seen, strict:
    before = len(seen.rows)
    holding = threading.Thread(target=hold)
    holding.start()
    taken.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends a child that hangs
        free = all(getattr(each, "_cond", each).acquire(blocking=False) for each in known)
        for each in known:
            getattr(each, "_cond", each).release()
        made = [xbridge.to_backend(np.arange(3.0), name, copy=True) for name in targets]
        if kept[1:]:
            torch.emu.synchronize()
            made.append(xbridge.to_backend(np.arange(3.0), "torch", device="emu"))
        made.append(xbridge.transfer(np.arange(3.0), "numpy", copy=True).result())
        right = all(xbridge.to_list(one) == [0.0, 1.0, 2.0] for one in made)
        right = right and xbridge.is_available("numpy") and "numpy" in xbridge.known_backends()
        xbridge.register_backend("made_in_the_child", "no_such_module")
        os._exit(0 if free and right and len(seen.rows) > before else 1)
    status = os.waitpid(child, 0)[1]
    release.set()
    holding.join()
print(os.waitstatus_to_exitcode(status))
"""


@needs_fork
@pytest.mark.filterwarnings("ignore")
def test_lock__every_lock_that_a_thread_holds_is_free_in_the_child_of_a_fork() -> None:
    """Every lock that a thread holds is free in the child of a fork."""
    assert forked(f"import warnings\nwarnings.simplefilter('ignore')\n{EVERY_LOCK}", EMULATOR) == (0, ["0"])


@needs_fork
def test_lock__thread_that_forks_with_a_lock_holds_it_in_the_child_and_can_release_it() -> None:
    """A thread that forks with a lock holds it in the child and can release it."""
    code = """
    import os, signal, threading
    from xbridge._core import locks
    mine = locks.lock()
    def take(found):
        found.append(mine.acquire(blocking=False))
    with mine:
        child = os.fork()
        if child == 0:
            signal.alarm(60)
        found = []
        thread = threading.Thread(target=take, args=(found,))
        thread.start()
        thread.join()
    if child == 0:
        os._exit(0 if found == [False] and mine.acquire(blocking=False) else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), found)
    """
    assert run(code, limit=LIMIT) == (0, ["0 [False]"])


def test_lock__locks_are_made_free_by_one_function_and_forgotten_with_their_owner() -> None:
    """In this process, where a child can be looked into."""
    before = len(locks._known)
    held, mine, over = locks.lock(), locks.lock(), locks.reset_in_child(threading.Event())
    other = threading.Thread(target=held.acquire)
    other.start()
    other.join()
    over.set()
    with mine:
        assert not held.acquire(blocking=False)
        locks._free()
        assert held.acquire(blocking=False)
    assert over.is_set()
    held.release()
    del held, over, other
    mine = None  # type: ignore[assignment]
    assert len(locks._known) == before
