"""JAX's options of a thread, which another thread can convert with, and its callbacks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import FrameType
from typing import Any

import jax

from xbridge._core.protocol import ArrayFn
from xbridge.backends.jax import _private
from xbridge.errors import OptionError

_OPTIONS = [option for option in vars(_private.config).values() if hasattr(type(option), "set_local")]
"""JAX's options and contexts, such as its x64 mode, the kind of random numbers, guards, and the mesh."""


def with_options(fn: ArrayFn) -> ArrayFn:
    """Return `fn` for another thread, with the options of this thread. Its results are complete."""
    values, is_wide = _read(), _private.config.enable_x64.value

    def in_thread(xs: list[object]) -> list[object]:
        # The mode of the process decides about dtypes, and may change while `fn` runs.
        with jax.enable_x64(is_wide), ExitStack() as stack:
            for context in _changes(values):
                stack.enter_context(context)
            made: list[object] = jax.block_until_ready(fn(xs))  # type: ignore[no-untyped-call] # JAX leaves it untyped
        return made

    return in_thread


def capture_options() -> Callable[[], None]:
    """Return a function that gives another thread the options of this one."""
    values = _read()

    def apply() -> None:
        for context in _changes(values):
            context.__enter__()

    return apply


def _read() -> list[Any]:
    return [option.value for option in _OPTIONS]


def _changes(values: list[Any]) -> Iterator[Any]:
    """Return a context manager for each option that has another value in this thread."""
    for option, value in zip(_OPTIONS, values, strict=True):
        if option.value is not value and option.value != value:
            yield option(value) if callable(option) else _Setting(option, value)


class _Setting:
    """A context in which one of JAX's contexts, which is no option, has another value."""

    def __init__(self, context: Any, value: Any) -> None:
        self._context, self._value = context, value

    def __enter__(self) -> None:
        self._value = self._context.swap_local(self._value)

    def __exit__(self, *_: object) -> None:
        self._context.set_local(self._value)


def refuse_in_callback() -> None:
    """Raise inside of a callback of compiled code, where JAX may wait for itself if it computes."""
    if not jax.config.read("jax_cpu_enable_async_dispatch"):  # type: ignore[no-untyped-call] # JAX leaves it untyped
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) == _private.callback_frame:
            reason = "compiled code of JAX waits for the callback that calls it, and JAX may wait for itself"
            raise OptionError.build("compute with a JAX array in a callback", reason, "to_numpy(x)")
        frame = frame.f_back
