"""Mark threads that run a callback of compiled JAX code, where a call of JAX could be a deadlock."""

from __future__ import annotations

import jax

from xbridge.errors import OptionError
from xbridge.extend import locks

inside: locks.Nesting = locks.Nesting()
"""The blocks in which compiled code is waiting for this thread."""


def refuse_inside(name: str) -> None:
    """Raise if compiled JAX code is waiting for this thread, because a function of JAX might never return."""
    if inside.depth and jax.config.read("jax_cpu_enable_async_dispatch"):  # type: ignore[no-untyped-call] # JAX leaves it untyped
        raise OptionError.build(
            f"run {name}, a function of JAX",
            "compiled code of JAX waits for the function that calls it, and JAX may wait for itself then",
            "jax.config.update('jax_cpu_enable_async_dispatch', False) before JAX computes",
        )
