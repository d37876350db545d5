"""Dtypes of JAX whose arrays cannot leave it, and the bytes of its booleans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from xbridge import _host
from xbridge._core.dtypes import DTYPES
from xbridge._core.protocol import Unsupported
from xbridge.errors import DTypeError, UnsupportedArrayError

if TYPE_CHECKING:
    from xbridge._core.protocol import Array, HostArray


def find_unsupported(x: Array | jax.core.ShapedArray) -> Unsupported | None:
    """Return why an array or tracer cannot leave JAX because of its dtype; None if it can."""
    dtype: Any = x.dtype
    if dtype.name in DTYPES:
        return None
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return Unsupported(UnsupportedArrayError, f"{dtype} is not a numeric dtype", "jax.random.key_data(x)")
    return Unsupported(DTypeError, f"{dtype} has no canonical name", "x.astype('int8')")


def with_plain_booleans(host: HostArray) -> HostArray:
    """Return an array whose booleans have the bytes 0 and 1; a copy if they have others.

    JAX computes with the bytes, so that the `sum` of a mask of 255 would be -1.
    """
    plain = host.dtype.char != "?" or not host.size or host.view(np.uint8).max() <= 1
    return host if plain else copy_booleans(host)


def copy_booleans(host: HostArray) -> HostArray:
    """Copy booleans in C order, with the bytes 0 and 1."""
    return _host.astype(host.view(np.uint8), "bool", "C")
