"""Extreme values of an array, computed on its device, so that only a few numbers move."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from xbridge.backends.jax._devices import host_device

if TYPE_CHECKING:
    from xbridge._core.protocol import Array


def ends(x: Array) -> Array:
    """Return the extreme finite values, computed on the device. They decide if a cast loses a value."""
    parts = [x.real, x.imag] if jnp.iscomplexobj(x) else [x]
    finite = [jnp.where(jnp.isfinite(part), part, jnp.zeros((), part.dtype)) for part in parts]
    few = jnp.stack([end for part in finite for end in (part.min(), part.max())])
    return jax.device_put(few, host_device())
