"""NumPy: the host, where everybody meets. Arrays may be read-only; there are no devices and no gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xbridge import _host
from xbridge._devices import CPU, no_exchange
from xbridge._dtypes import DTYPES, instead
from xbridge._host._memory import layout_of, native_dtype
from xbridge._protocol import Facts, Refusal
from xbridge.errors import DeviceError, DTypeError, GradientError, OptionError, UnsupportedArrayError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from xbridge._devices import Device
    from xbridge._protocol import Array, Exporter, HostArray, Layout

_MOST_AXES = 64

name = "numpy"
plain: tuple[type, ...] = (np.ndarray,)
scalars: tuple[type, ...] = (np.generic,)
readonly = True
immutable = False
autograd = False
host_only = True
host_casts: frozenset[tuple[str, str]] = frozenset()
gaps: dict[str, str] = {
    "device": "never: NumPy arrays live in host memory",
    "history": "never: NumPy does not differentiate",
}
samples = "xbridge.testing.samples.numpy"

_NAMES = {np.dtype(word).num: word for word in DTYPES if hasattr(np, word)}
_FOREIGN = 256
"""From this number on, a dtype was added to NumPy by somebody else."""
_ABSTRACT = (
    *(np.generic, np.flexible, np.character, np.number, np.integer, np.signedinteger),
    *(np.unsignedinteger, np.inexact, np.floating, np.complexfloating),
)
"""Classes of no dtype; an older NumPy takes some for a dtype, with a warning."""
_BARE = (np.ndarray, np.memmap, np.matrix)
_DEFAULTS = {"bool": "bool", "int": "int64", "float": "float64", "complex": "complex128"}
_WAYS_OUT = {
    "M": "x.astype('int64')",
    "m": "x.astype('int64')",
    "V": "x.view(dtype), with the dtype that they are of",
}
_NUMBERS_IN_TEXT = "x.astype(float) if it spells numbers, or x.tolist()"


def owns(cls: type, /) -> bool:
    return issubclass(cls, (np.ndarray, np.generic))


def describe(x: HostArray, /) -> Facts:
    bare = _past_the_class(x)
    return Facts(_name(bare.dtype), CPU, bare.shape, native=bare.dtype.isnative)


def refusal(x: HostArray, /, *, leaving: bool) -> Refusal | None:
    if isinstance(x, np.ma.MaskedArray):
        return Refusal(UnsupportedArrayError, "its mask would be lost", "x.filled(value)")
    if not leaving:
        return None
    if type(x) not in _BARE:
        why = f"a {type(x).__name__} may mean more than its numbers"
        return Refusal(UnsupportedArrayError, why, "x.view(numpy.ndarray)")
    kind = x.dtype.kind
    if kind in "biufc" or _name(x.dtype) in DTYPES:
        return None
    do = "one field, such as x['name']" if x.dtype.names else _WAYS_OUT.get(kind, _NUMBERS_IN_TEXT)
    if x.dtype.type.__module__ == "ml_dtypes":
        do = "x.astype('float32')"
    return Refusal(DTypeError, f"{x.dtype} is no numeric dtype", do)


def layout(x: HostArray, /) -> Layout:
    return layout_of(_past_the_class(x))


def dtype_name(dtype: object, /) -> str | None:
    if isinstance(dtype, type) and issubclass(dtype, np.generic):
        if dtype in _ABSTRACT:
            return None
        try:
            found = np.dtype(dtype)
        except TypeError:  # a class that is derived from one of these
            return None
        return _name(found) if found.type is dtype else None
    return _name(dtype) if isinstance(dtype, np.dtype) and dtype.isnative else None


def lacks(dtype: str, device: Device, /) -> Refusal | None:
    try:
        found = native_dtype(dtype)
    except ImportError:
        why = f"NumPy knows {dtype} through ml_dtypes, which is not installed"
        return Refusal(DTypeError, why, "pip install ml_dtypes, or dtype='float32'")
    except TypeError:
        found = None
    if found is None or (dtype not in DTYPES and (found.num >= _FOREIGN or found.kind not in "biufcmM")):
        return Refusal(DTypeError, f"NumPy has no {dtype}", instead(dtype))
    return None


def default_dtype(category: str, device: Device, /) -> str:
    return _DEFAULTS[category]


def device_name(device: object, /) -> Device | None:
    return None


def resolve_device(device: Device, near: Device, /) -> Device:
    if device != CPU:
        raise DeviceError.because(
            f"put a NumPy array on {device!r}", "NumPy lives in host memory", "device='cpu'"
        )
    return CPU


def devices() -> tuple[Device, ...]:
    return (CPU,)


def namespace(x: HostArray, /) -> ModuleType:
    from array_api_compat import numpy as compat  # noqa: PLC0415 -- 14 ms, and only this verb needs it

    return compat


def tracing() -> bool:
    return False


def outside(fn: Callable[..., Array], /) -> Callable[..., Array]:
    return fn


def recording() -> bool:
    return False


def peek(x: HostArray, /) -> HostArray | None:
    return x


def adopt(host: HostArray, /) -> HostArray | None:
    return host


def detach(x: HostArray, /) -> HostArray:
    return x


def track(x: HostArray, /) -> HostArray:
    raise GradientError.because(
        "make a NumPy array require grad", gaps["history"].partition(": ")[2], "backend='torch'"
    )


def settle(x: HostArray, /) -> HostArray:
    return x


def check(x: HostArray, dtype: str, /) -> HostArray:
    return _host.check(x, dtype)


def cast(x: HostArray, dtype: str, /) -> HostArray:
    with np.errstate(all="ignore"):
        return x.astype(native_dtype(dtype), order="K")


def copy(x: HostArray, /) -> HostArray:
    return x.copy(order="K")


def move(x: HostArray, device: Device, /) -> HostArray:
    return x


def stack(arrays: list[HostArray], shape: tuple[int, ...], /) -> HostArray:
    axes = len(shape) + arrays[0].ndim
    if axes > _MOST_AXES:
        raise OptionError.because(
            "make an array of this list",
            f"it would have {axes} axes, and NumPy has {_MOST_AXES} at most",
            "arrays of fewer axes",
        )
    return np.stack([to_host(x) for x in arrays]).reshape((*shape, *arrays[0].shape))


def holds(facts: Facts, layout: Layout, /) -> bool:
    return True


def to_host(x: HostArray, /) -> HostArray:
    return x.view(np.ndarray)


def from_host(host: HostArray, /) -> HostArray:
    return host


def export(x: HostArray, /) -> Exporter:
    raise no_exchange(name)


def import_(shown: Exporter, /) -> HostArray:
    raise no_exchange(name)


def _past_the_class(x: HostArray) -> HostArray:
    """The array as NumPy's own class shows it: a subclass may answer anything, or raise."""
    mine = type(x) not in _BARE and isinstance(x, np.ndarray)
    return np.ndarray.view(x, np.ndarray) if mine else x


def _name(dtype: np.dtype[Any]) -> str:
    """The canonical name; NumPy's own word where there is none."""
    if dtype.kind in "biufc":
        # NumPy works out `name` in Python; most arrays are of a dtype that is on the list.
        if dtype.num in _NAMES:
            return _NAMES[dtype.num]
        return {"g": "longdouble", "G": "clongdouble"}.get(dtype.char, dtype.name)
    return dtype.name if dtype.type.__module__ == "ml_dtypes" else str(dtype)
