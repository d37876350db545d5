"""Capture JAX's options of a thread, so that another thread can convert with them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import jax

from xbridge._core.protocol import ArrayFn

_OPTIONS = (
    *("enable_x64", "default_device", "default_matmul_precision"),
    *("numpy_dtype_promotion", "numpy_rank_promotion", "debug_nans"),
)
"""The options that change the results of a program or their device."""


def with_options(fn: ArrayFn) -> ArrayFn:
    """Return `fn` for another thread, with the options of this thread. Its results are complete."""
    options = _options()

    def in_thread(xs: list[object]) -> list[object]:
        with ExitStack() as stack:
            for option in options:
                stack.enter_context(option())
            made: list[object] = jax.block_until_ready(fn(xs))  # type: ignore[no-untyped-call] # JAX leaves it untyped
        return made

    return in_thread


def capture_options() -> Callable[[], None]:
    """Return a function that gives another thread the options of this one."""
    options = _options()

    def apply() -> None:
        for option in options:
            option().__enter__()

    return apply


def _options() -> list[Callable[[], Any]]:
    """Return context managers that set the options to their values in this thread."""
    now = {word: getattr(jax.config, f"jax_{word}") for word in _OPTIONS}
    return [partial(getattr(jax, word), value) for word, value in now.items()]
