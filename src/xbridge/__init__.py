"""Move arrays between libraries, exactly: values, dtype, device, memory and gradient.

>>> import numpy as np, xbridge
>>> a = np.arange(3.0)
>>> xbridge.to_numpy(a) is a, xbridge.backend_of(a), xbridge.dtype_of(a)
(True, 'numpy', 'float64')
"""

# These modules set `TYPE_CHECKING = False` themselves, because to import `typing` would take longer than all
# other imports together. Names that most programs do not use are imported on first access.

from importlib import import_module
from os import environ
from sys import modules

from xbridge import errors
from xbridge._api import (
    align,
    asarray,
    to_backend,
    to_cupy,
    to_dask,
    to_jax,
    to_list,
    to_numpy,
    to_torch,
    unsafe_share,
)
from xbridge._core import __version__ as __version__
from xbridge._core.devices import Device
from xbridge._registry.registry import is_available, known_backends, register_backend
from xbridge.errors import *  # noqa: F403 -- its `__all__` lists the public ones

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xbridge import tree as tree
    from xbridge._align_back import align_back
    from xbridge._inspect import (
        array_namespace,
        backend_of,
        device_of,
        dtype_of,
        explain,
        is_array,
        native_device,
        shares_memory,
    )
    from xbridge._observe.policy import policy
    from xbridge._observe.record import record
    from xbridge._plan.steps import Plan
    from xbridge._transfer.api import Transfer, prefetch, transfer
    from xbridge._transfer.buffers import release_buffers
    from xbridge.functions.wrapper import aligned
else:

    def __getattr__(name: str) -> object:
        """Import a late name on first access, and keep it."""
        if name == "tree":  # a module, which the import system stores here itself
            return import_module("xbridge.tree")
        if name not in _LATE:
            missing = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(missing, name=name, obj=modules[__name__])
        found: object = getattr(import_module(_LATE[name]), name)
        globals()[name] = found
        return found


_LATE = {
    "Plan": "xbridge._plan.steps",
    "Transfer": "xbridge._transfer.api",
    "align_back": "xbridge._align_back",
    "aligned": "xbridge.functions.wrapper",
    "array_namespace": "xbridge._inspect",
    "backend_of": "xbridge._inspect",
    "device_of": "xbridge._inspect",
    "dtype_of": "xbridge._inspect",
    "explain": "xbridge._inspect",
    "is_array": "xbridge._inspect",
    "native_device": "xbridge._inspect",
    "policy": "xbridge._observe.policy",
    "prefetch": "xbridge._transfer.api",
    "record": "xbridge._observe.record",
    "release_buffers": "xbridge._transfer.buffers",
    "shares_memory": "xbridge._inspect",
    "transfer": "xbridge._transfer.api",
}

__all__ = [
    "Device",
    "Plan",
    "Transfer",
    "align",
    "align_back",
    "aligned",
    "array_namespace",
    "asarray",
    "backend_of",
    "device_of",
    "dtype_of",
    "explain",
    "is_array",
    "is_available",
    "known_backends",
    "native_device",
    "policy",
    "prefetch",
    "record",
    "register_backend",
    "release_buffers",
    "shares_memory",
    "to_backend",
    "to_cupy",
    "to_dask",
    "to_jax",
    "to_list",
    "to_numpy",
    "to_torch",
    "transfer",
    "unsafe_share",
]
__all__ += errors.__all__


def __dir__() -> list[str]:
    """List all names, also those that are imported late."""
    return sorted({*globals(), *__all__})


if environ.get("XBRIDGE_POLICY"):
    import_module("xbridge._observe.policy").set_rules_of_environment(environ["XBRIDGE_POLICY"])
