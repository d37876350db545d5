"""A pretend array library and its backend, from outside: the proof that outsiders fit.

A toy array keeps a NumPy array that it never changes. The backend borrows what the host does and says
what is different: there are no read-only toys, and their memory is read later than the call.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from xbridge.backends import numpy as host

if TYPE_CHECKING:
    import numpy as np


class Toy:
    """An array of the pretend library."""

    def __init__(self, data: np.ndarray[Any, np.dtype[Any]]) -> None:
        self.data = data


class SubToy(Toy):
    """What a user of the library makes of it."""


def make_backend(name: str = "toylib", **changes: object) -> ModuleType:
    """A backend module for toys; `changes` replace facts and verbs, None removes one."""
    module = ModuleType(f"{name}_backend")
    vars(module).update({word: getattr(host, word) for word in (*_FACTS, *_LOOK, *_STEPS)})
    own: dict[str, object] = {
        "name": name,
        "plain": (Toy,),
        "scalars": (),
        "readonly": False,
        "immutable": True,
        "host_only": False,
        "samples": "",
        "gaps": dict.fromkeys(("device", "readonly", "history", "namespace"), "never: it is a toy"),
        "owns": lambda cls: issubclass(cls, Toy),
        "array_info": lambda x: host.array_info(x.data),
        "unsupported": lambda x, *, leaving: host.unsupported(x.data, leaving=leaving),
        "memory_layout": lambda x: host.memory_layout(x.data),
        "namespace": lambda x: host.namespace(x.data),
        "fast_to_numpy": lambda x: None,
        "fast_from_numpy": lambda x: None,
        "check_cast": lambda x, dtype: (host.check_cast(x.data, dtype), x)[1],
        "astype": lambda x, dtype: Toy(host.astype(x.data, dtype)),
        "copy": lambda x: Toy(host.copy(x.data)),
        "stack": lambda arrays, shape: Toy(host.stack([x.data for x in arrays], shape)),
        "to_numpy": lambda x: x.data,
        "from_numpy": Toy,
    }
    for word, value in {**own, **changes}.items():
        if value is None:
            vars(module).pop(word, None)
        else:
            setattr(module, word, value)
    return module


_FACTS = ("autograd", "host_casts")
_LOOK = (
    "dtype_name",
    "unsupported_dtype",
    "default_dtype",
    "device_name",
    "resolve_device",
    "devices",
    "accepts_layout",
)
_STEPS = (
    "is_tracing",
    "untraced",
    "is_grad_enabled",
    "detach",
    "require_grad",
    "materialize",
    "to_device",
    "to_dlpack",
    "from_dlpack",
)
