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
        "describe": lambda x: host.describe(x.data),
        "refusal": lambda x, *, leaving: host.refusal(x.data, leaving=leaving),
        "layout": lambda x: host.layout(x.data),
        "namespace": lambda x: host.namespace(x.data),
        "peek": lambda x: None,
        "adopt": lambda x: None,
        "check": lambda x, dtype: (host.check(x.data, dtype), x)[1],
        "cast": lambda x, dtype: Toy(host.cast(x.data, dtype)),
        "copy": lambda x: Toy(host.copy(x.data)),
        "stack": lambda arrays, shape: Toy(host.stack([x.data for x in arrays], shape)),
        "to_host": lambda x: x.data,
        "from_host": Toy,
    }
    for word, value in {**own, **changes}.items():
        if value is None:
            vars(module).pop(word, None)
        else:
            setattr(module, word, value)
    return module


_FACTS = ("autograd", "host_casts")
_LOOK = ("dtype_name", "lacks", "default_dtype", "device_name", "resolve_device", "devices", "holds")
_STEPS = ("tracing", "outside", "recording", "detach", "track", "settle", "move", "export", "import_")
