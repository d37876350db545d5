"""What another thread has to know of this one: JAX keeps its options by thread."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge._core.devices import Device
    from xbridge._core.protocol import ArrayFn


_OPTIONS = (
    *("enable_x64", "default_device", "default_matmul_precision"),
    *("numpy_dtype_promotion", "numpy_rank_promotion", "debug_nans"),
)
"""Those that say what a program computes, and where."""


def threaded(fn: ArrayFn, device: Device, /) -> ArrayFn:
    """`fn` for another thread, with the options of this one; complete on return."""
    options = _options()

    def apart(xs: list[object]) -> list[object]:
        with ExitStack() as stack:
            for option in options:
                stack.enter_context(option())
            made: list[object] = jax.block_until_ready(fn(xs))  # type: ignore[no-untyped-call] # theirs
        return made

    return apart


def thread_context() -> Callable[[], None]:
    """What gives another thread the options of this one."""
    options = _options()

    def there() -> None:
        for option in options:
            option().__enter__()

    return there


def _options() -> list[Callable[[], Any]]:
    """What sets each option to what it is here, in a `with` block."""
    now = {word: getattr(jax.config, f"jax_{word}") for word in _OPTIONS}
    return [partial(getattr(jax, word), value) for word, value in now.items()]
