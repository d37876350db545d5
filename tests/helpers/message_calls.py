"""What the calls of `tests/api/messages.txt` name, if they need NumPy alone."""

from __future__ import annotations

from types import MappingProxyType  # noqa: F401 -- calls name it
from typing import Any

import numpy as np
from exporters import Exporter, capsule
from inside import get_backend as get  # noqa: F401 -- calls name it

import xbridge


class Metres(np.ndarray[Any, np.dtype[Any]]):
    """An array with units, as a library of units has."""


class Incomparable(type):
    """Of classes that fail if they are compared or hashed."""

    def __repr__(cls) -> str:
        return "Broken"

    def __eq__(cls, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __hash__(cls) -> int:
        raise RuntimeError("no hash")


class Broken(metaclass=Incomparable):
    """Neither a dtype nor a device."""

    def __repr__(self) -> str:
        return "Broken()"


A = np.arange(3.0)
CYCLE: list[object] = []
CYCLE.append(CYCLE)


def options(**changes: object) -> object:
    return xbridge.to_backend(A, "numpy", **changes)  # type: ignore[call-overload] # often the mistake


def nested(thing: object, **changes: object) -> object:
    return xbridge.asarray(thing, **changes)  # type: ignore[call-overload] # likewise


def dlpack(**changes: Any) -> object:
    return xbridge.to_numpy(capsule(A, **changes))


def exporter(**words: object) -> object:
    return xbridge.to_numpy(Exporter(**words))


def listed(*things: object, **options: Any) -> object:
    return xbridge.asarray(list(things), **options)


def released() -> memoryview:
    view = memoryview(b"ab")
    view.release()
    return view
