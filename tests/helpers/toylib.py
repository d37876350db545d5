"""A pretend array library and its backend, from outside: the proof that outsiders fit.

A toy array keeps a NumPy array that it never changes. The backend writes little more than the four required
names: there are no read-only toys, and their memory is read later than the call.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from fast_words import with_fast

from xbridge import Device
from xbridge._core.protocol import Backend
from xbridge.backends import numpy as host
from xbridge.protocol import Gap

if TYPE_CHECKING:
    import numpy as np

    from xbridge.protocol import MemoryLayout


class Toy:
    """An array of the pretend library."""

    def __init__(self, data: np.ndarray[Any, np.dtype[Any]]) -> None:
        self.data = data


class SubToy(Toy):
    """What a user of the library makes of it."""


CPU, CHIP = Device("cpu"), Device("chip:0")


class Placed(Toy):
    """An array of a pretend library that has a device."""

    def __init__(self, data: np.ndarray[Any, np.dtype[Any]], device: Device = CPU) -> None:
        super().__init__(data)
        self.device = device


def gaps(*features: str) -> dict[str, Gap]:
    """Features that toys do not have."""
    return dict.fromkeys(features, Gap("never", "it is a toy"))


def toy_layout(x: Toy, *, readonly: bool) -> MemoryLayout:
    """The memory of a toy; toys that cannot be read-only have no flag that says so."""
    layout = host.memory_layout(x.data)
    return layout if readonly else layout._replace(writable=True)


def make_backend(name: str = "toylib", **changes: Any) -> ModuleType:
    """A backend module for toys; `changes` replace what it writes or add to it, None removes a name."""
    module = ModuleType(f"{name}_backend")
    missing: Any = changes.get("gaps", gaps("readonly"))
    own: dict[str, object] = {
        "name": name,
        "array_types": (Toy,),
        "assumes_immutable": True,
        "gaps": missing,
        "array_info": lambda x: host.array_info(x.data),
        "unsupported": lambda x, *, leaving: host.unsupported(x.data, leaving=leaving),
        "memory_layout": lambda x: toy_layout(x, readonly="readonly" not in missing),
        "to_numpy": lambda x: x.data,
        "from_numpy": Toy,
        **({"to_device": lambda x, device: x} if "devices" in changes else {}),
    }
    words = {word: value for word, value in {**own, **changes}.items() if value is not None}
    vars(module).update(with_fast(words))
    return module


def make_placed_backend(**changes: Any) -> ModuleType:
    """A backend module for arrays on the host or on the device."""
    return make_backend(
        **{
            "array_types": (Placed,),
            "devices": lambda: (CPU, CHIP),
            "array_info": lambda x: host.array_info(x.data)._replace(device=x.device),
            "from_numpy": Placed,
            "to_device": lambda x, device: Placed(x.data.copy(), device),
            "astype": lambda x, dtype: Placed(x.data.astype(dtype), x.device),
            **changes,
        }
    )


def complete(**changes: Any) -> Backend:
    """The completed backend of toys, which is not registered."""
    return Backend(make_backend(**changes), host)
