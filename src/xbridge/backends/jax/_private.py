"""The names of JAX that are not public, each with its purpose and the issue upstream, where there is one."""

from __future__ import annotations

from operator import attrgetter

from jax._src import config as jax_config
from jax._src import xla_bridge
from jax._src.lib import xla_client  # type: ignore[attr-defined] # the stubs lack it

# The class of arrays that have memory. `jax.Array` counts tracers too: https://github.com/jax-ml/jax/pull/30487
Array = xla_client.ArrayImpl

# The function that every conversion from host memory ends in, and that shares memory which is aligned. The
# public one takes ten times as long: https://github.com/jax-ml/jax/issues/16905
device_put = getattr(xla_client, "batched_device_put", None)

# The clients of all kinds of devices. The public function is of `jax.extend`, whose import takes 20 ms as
# it imports Pallas: https://github.com/jax-ml/jax/issues/24967 (import time), and
# https://github.com/jax-ml/jax/issues/6459 (no public list of the devices of all kinds).
backends = xla_bridge.backends

# The devices of a sharding in their order, which the public `device_set` lacks. All shardings of the oldest
# and the newest version that are tested have it.
devices_of = attrgetter("_device_assignment")

# The module of JAX's options and contexts, by thread. There is no public list of them.
config = jax_config

# The module and the name of the function that compiled code calls for each callback.
callback_frame = ("jax._src.callback", "_wrapped_callback")
