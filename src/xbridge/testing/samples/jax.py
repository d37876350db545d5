"""Samples of JAX: own or shared memory, committed or not, on a mesh of one device, or in column-major order.

The arrays cannot be written. JAX copies the bits and computes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from xbridge.extend import CPU, get_backend
from xbridge.testing.samples import LayoutCase
from xbridge.testing.samples import numpy as host

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge.protocol import HostArray

    Shape: TypeAlias = tuple[int, ...]
    Make: TypeAlias = Callable[[HostArray], jax.Array]

_ALIGNMENT = 64


# -- layouts -------------------------------------------------------------------------------------


def _first() -> jax.Device:
    return jax.local_devices(backend="cpu")[0]


def _at(values: HostArray, offset: int) -> HostArray:
    """Copy the values to `offset` bytes after a 64-byte boundary. JAX shares memory at the boundary."""
    backend = np.empty(values.nbytes + _ALIGNMENT + offset, np.uint8)
    start = -backend.ctypes.data % _ALIGNMENT + offset
    fresh: HostArray = np.ndarray(values.shape, values.dtype, backend, start)
    host.opaque(fresh)[...] = host.opaque(values)
    return fresh


def _copied(values: HostArray) -> jax.Array:
    return _put(_at(values, values.itemsize))


def _put(
    values: jax.Array | HostArray, place: jax.Device | Format | NamedSharding | None = None
) -> jax.Array:
    with jax.default_device(_first()):
        x: jax.Array = jax.device_put(values, place)
    return x.block_until_ready()


def _on_a_mesh(values: HostArray) -> jax.Array:
    mesh = Mesh(np.array([_first()]), ("all",))
    return _put(_at(values, 0), NamedSharding(mesh, PartitionSpec()))  # type: ignore[no-untyped-call] # JAX leaves it untyped


def _by_columns(values: HostArray) -> jax.Array:
    order = Layout(tuple(reversed(range(values.ndim))))
    return _put(_copied(values), Format(order, SingleDeviceSharding(_first())))


def _computed(values: HostArray) -> jax.Array:
    with jax.default_device(_first()):
        return _copied(values).copy()


def _case(make: Make, takes: Callable[[str, Shape], bool] = host.anywhere) -> LayoutCase:
    lacks = get_backend("jax").unsupported_dtype
    return LayoutCase(make, takes=lambda *asked: not lacks(asked[0], CPU) and takes(*asked), writable=False)


cases: dict[str, LayoutCase] = {
    "its own": _case(_copied),
    "taken over": _case(lambda values: _put(_at(values, 0))),
    "computed": _case(_computed),
    "committed": _case(lambda values: _put(_at(values, 0), _first())),
    "on a mesh": _case(_on_a_mesh),
    "by columns": _case(_by_columns, host.stretched),
}


# -- unsupported arrays --------------------------------------------------------------------------


def _tracer() -> jax.Array:
    """Make a tracer that leaked from its trace."""
    leaked: list[jax.Array] = []
    jax.make_jaxpr(leaked.append)(jnp.ones(2))
    return leaked[0]


def _deleted() -> jax.Array:
    x = jnp.ones(2)
    x.delete()
    return x


refused: dict[str, Callable[[], jax.Array]] = {
    "a tracer": _tracer,
    "a key": lambda: jax.random.key(0),
    "deleted": _deleted,
}


# -- reading and writing -------------------------------------------------------------------------


def read(x: jax.Array, /) -> HostArray:
    """Transfer the array to the host by JAX, and copy it."""
    return np.array(jax.device_get(x), order="C")


def write(x: jax.Array, /) -> None:
    """Try to write; JAX raises."""
    x[...] = x
