"""What another thread has to know of this one: JAX keeps its options by thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge._devices import Device

    Work = Callable[[list[object]], list[object]]


def aside(fn: Work, device: Device, /) -> Work:
    """`fn` for another thread, with the width and the default device of this one; complete on return."""
    wide = jax.config.jax_enable_x64  # type: ignore[attr-defined] # it comes while JAX is imported
    chosen = jax.config.jax_default_device  # type: ignore[attr-defined] # likewise

    def apart(xs: list[object]) -> list[object]:
        with jax.enable_x64(wide), jax.default_device(chosen):
            made: list[object] = jax.block_until_ready(fn(xs))  # type: ignore[no-untyped-call] # theirs
        return made

    return apart
