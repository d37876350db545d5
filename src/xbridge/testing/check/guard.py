"""A guard for each process of a check: it ends whatever the process has started, wherever that went.

The source of this module is run before a program, while nothing else has been imported yet. The program goes
on in a child process. On Linux, a process that is started in a session of its own becomes a child of the
guard when its parent ends. On other systems such a process may outlive the check, and on any if a function
ends its guard.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

_DIE_WITH_PARENT, _ADOPT_ORPHANS = 1, 36
"""The options of Linux's prctl."""


def limit_memory(share: float) -> None:
    """Limit the memory of this process, and of those that it starts, to a share of the machine's."""
    try:
        import resource  # noqa: PLC0415 -- there are systems without limits
    except ImportError:
        return
    most = int(share * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def guard() -> None:
    """Go on in a child process. The guard waits for it, and then exits with its status, after its children.

    If the guard is terminated, or the process that has started it ends, all of them end.
    """
    if not hasattr(os, "fork"):
        return
    _set_option(_ADOPT_ORPHANS, 1)
    _set_option(_DIE_WITH_PARENT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    child = os.fork()
    if child:
        signal.signal(signal.SIGTERM, lambda *_: _end(child, 128 + signal.SIGTERM))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        _end(child, status if status >= 0 else 128 - status)
    _set_option(_DIE_WITH_PARENT, signal.SIGKILL)
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


def _set_option(option: int, value: int) -> None:
    """Set an option of this process, if this is Linux."""
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 -- as above

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _end(child: int, status: int) -> None:
    """End the group of the child, then all children of the guard until there are none, then the guard."""
    with suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    while ended := [pid for pid in _children() or [child] if _kill(pid)]:
        os.waitpid(ended[0], 0)  # its own children are children of the guard now
    os._exit(status)


def _children() -> list[int]:
    """Return the children of the guard, which has one thread; nothing if the system does not tell."""
    try:
        with open("/proc/thread-self/children", encoding="ascii") as file:  # noqa: PTH123 -- nothing is imported yet
            return [*map(int, file.read().split())]
    except OSError:
        return []


def _kill(pid: int) -> bool:
    """Return True if a process could be killed: it is there, and belongs to the user."""
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return False
    return True
