"""Where JAX's arrays can be, in our words: on a device of this process or on several; and how they lie there.

JAX calls any graphics card `gpu` and counts devices over all processes. Here a device has the name and
number by which other libraries of this process know it. JAX is asked only when somebody needs to know,
because the first question starts all of its devices.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import jax
import jax.extend.backend

from xbridge._core.devices import SHARDED, device_named
from xbridge.errors import DeviceError

if TYPE_CHECKING:
    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array


def host_device() -> jax.Device:
    """The device whose memory is host memory."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise DeviceError.build(
            "lay host memory in JAX",
            "it was started without its CPU",
            "jax.config.update('jax_platforms', None), or JAX_PLATFORMS='cuda,cpu'",
        ) from error


def places() -> dict[Device, jax.Device]:
    """Every device of this process by its name, the host's first."""
    clients = jax.extend.backend.backends().values()
    found = [device for client in clients for device in client.local_devices()]
    return {named(device): device for device in sorted(found, key=lambda device: device.platform != "cpu")}


def default() -> Device:
    """Where JAX puts what nobody has put anywhere."""
    chosen = jax.config.jax_default_device  # type: ignore[attr-defined] # it comes while JAX is imported
    if chosen is None or isinstance(chosen, str):
        chosen = jax.local_devices(backend=chosen)[0]
    return named(chosen)


def place_of(sharding: jax.sharding.Sharding) -> Device:
    """Where the parts of an array are."""
    return named(next(iter(sharding.device_set))) if sharding.num_devices == 1 else SHARDED


@cache
def named(device: jax.Device) -> Device:
    """What one of JAX's devices is called here."""
    kind, index = device.platform, device.local_hardware_id
    if kind == "gpu":
        kind = "rocm" if "rocm" in device.client.platform_version else "cuda"
    return device_named(f"{kind}:{device.id if index is None else index}")


def in_rows(x: Array) -> bool:
    """Whether JAX says of an array that it lies row by row."""
    order: tuple[int, ...] = x.format.layout.major_to_minor
    return order == tuple(range(x.ndim))
