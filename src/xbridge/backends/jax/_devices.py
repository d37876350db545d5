"""Name JAX's devices as other libraries do, and tell the memory order of its arrays.

JAX calls any graphics card `gpu`, and numbers devices over all processes. Here a device has the name and
number that other libraries in this process give it. JAX is asked only when a device is needed, because the
first question initializes all of its devices.
"""

from __future__ import annotations

from functools import cache, lru_cache

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from xbridge._core.devices import SHARDED, Device, device_named
from xbridge._core.protocol import Array
from xbridge.backends.jax import _private
from xbridge.errors import DeviceError

several: dict[Device, Sharding] = {}
"""The shardings over several devices that have a name, and where `to_device` puts an array by that name."""
_places: dict[Sharding, Device] = {}
"""The names of several devices, by the sharding that replicates an array over them."""
asked: dict[Sharding, Device] = {}
"""The names of the shardings that were asked for, each another one than those of places."""


def host_device() -> jax.Device:
    """Return JAX's device for the CPU, whose memory is host memory."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        action, reason = "use host memory in JAX", "it was started without its CPU"
        raise DeviceError.build(action, reason) from error


def devices_by_name() -> dict[Device, jax.Device]:
    """Return the devices of this process by name, the host's first."""
    clients = _private.backends().values()
    found = [device for client in clients for device in client.local_devices()]
    return {
        name_device(device): device for device in sorted(found, key=lambda device: device.platform != "cpu")
    }


def find_default_device() -> Device:
    """Return the device on which JAX makes arrays if none is named."""
    chosen = jax.config.jax_default_device  # type: ignore[attr-defined] # set while JAX is imported
    if chosen is None or isinstance(chosen, str):
        chosen = jax.local_devices(backend=chosen)[0]
    return name_device(chosen)


@lru_cache(1024)
def device_of_sharding(sharding: Sharding) -> Device:
    """Return the device of an array with this sharding.

    Several devices have one name of the kind `SHARDED`, under which other arrays are replicated over them.
    """
    if sharding.num_devices == 1:
        return name_device(next(iter(sharding.device_set)))
    if isinstance(sharding, NamedSharding):
        mesh = sharding.mesh
    else:
        mesh = Mesh(np.array(_private.devices_of(sharding)), ("all",))
    everywhere = PartitionSpec()  # type: ignore[no-untyped-call] # JAX leaves it untyped
    whole = NamedSharding(mesh, everywhere)
    return _places.get(whole) or _places.setdefault(whole, _name_several(whole))


@lru_cache(1024)
def device_for_sharding(sharding: Sharding) -> Device:
    """Return the name under which arrays get exactly this sharding."""
    device = device_of_sharding(sharding)
    if device.kind != SHARDED:
        return device
    return asked.get(sharding) or asked.setdefault(sharding, _name_several(sharding))


def _name_several(sharding: Sharding) -> Device:
    """Return the name of a sharding over several devices: `sharded`, and from the second on with a number."""
    number, device = 0, SHARDED
    while several.setdefault(device, sharding) is not sharding:  # that of another sharding
        number += 1
        device = device_named(f"{SHARDED}:{number}")
    return device


@cache
def name_device(device: jax.Device) -> Device:
    kind, index = device.platform, device.local_hardware_id
    if kind == "gpu":
        kind = "rocm" if "rocm" in device.client.platform_version else "cuda"
    return device_named(f"{kind}:{device.id if index is None else index}")


def is_c_order(x: Array) -> bool:
    order: tuple[int, ...] = x.format.layout.major_to_minor
    return order == tuple(range(x.ndim))
