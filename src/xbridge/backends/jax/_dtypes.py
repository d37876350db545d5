"""Dtypes of JAX whose arrays cannot leave it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from xbridge._core.dtypes import DTYPES
from xbridge._core.protocol import Unsupported
from xbridge.errors import DTypeError, UnsupportedArrayError

if TYPE_CHECKING:
    from xbridge._core.protocol import Array


def find_unsupported(x: Array | jax.core.ShapedArray) -> Unsupported | None:
    """Return why an array or tracer cannot leave JAX because of its dtype; None if it can."""
    dtype: Any = x.dtype
    if dtype.name in DTYPES:
        return None
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return Unsupported(UnsupportedArrayError, f"{dtype} is not a numeric dtype", "jax.random.key_data(x)")
    hint = "x.astype('int8') or x.astype('float32')"
    return Unsupported(DTypeError, f"{dtype} has no canonical name", hint)
