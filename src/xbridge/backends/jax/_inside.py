"""Mark threads that run a callback of compiled JAX code, where a call of JAX could be a deadlock."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import jax

from xbridge.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Waits(threading.local):
    depth = 0


_waits = _Waits()


@contextmanager
def mark_inside() -> Iterator[None]:
    """Mark this thread as one that compiled code is waiting for."""
    _waits.depth += 1
    try:
        yield
    finally:
        _waits.depth -= 1


def refuse_inside(name: str) -> None:
    """Raise if compiled JAX code is waiting for this thread, because a function of JAX might never return."""
    if _waits.depth and jax.config.read("jax_cpu_enable_async_dispatch"):  # type: ignore[no-untyped-call] # JAX leaves it untyped
        raise OptionError.build(
            f"run {name}, a function of JAX",
            "compiled code of JAX waits for the function that calls it, and JAX may wait for itself then",
            "jax.config.update('jax_cpu_enable_async_dispatch', False) before JAX computes",
        )
