"""Read options: any library's dtype and device objects become names, everything else is checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xbridge._devices import Device, device_named
from xbridge._dtypes import DTYPES, of_python
from xbridge._plan import Request
from xbridge._registry import kin
from xbridge.errors import DeviceError, DTypeError, OptionError

if TYPE_CHECKING:
    from xbridge._protocol import Backend


_ALIASES = {
    "int": "int64",
    "long": "int64",
    "float": "float64",
    "double": "float64",
    "single": "float32",
    "half": "float16",
    "complex": "complex128",
}


def read_request(
    rooms: tuple[Backend, ...],
    *,
    device: object,
    dtype: object,
    copy: object,
    grad: object,
    track: bool = False,
    traced: bool = False,
) -> Request:
    """The options as a request; `rooms` are asked first what a dtype or device object means."""
    if copy is not None and copy is not True and copy is not False:
        raise OptionError.because(f"take copy={copy!r}", "it is None, True or False", "copy=None")
    if grad is not None and not (isinstance(grad, str) and grad in ("keep", "detach")):
        raise OptionError.because(f"take grad={grad!r}", "it is None, 'keep' or 'detach'", "grad='detach'")
    return Request(_device(device, rooms), _dtype(dtype, rooms), copy, grad, track, traced=traced)


def with_requires_grad(grad: object, requires_grad: object) -> object:
    """What `requires_grad` makes of `grad`."""
    if requires_grad is None or requires_grad is True:
        return grad
    if requires_grad is not False:
        raise OptionError.because(
            f"take requires_grad={requires_grad!r}",
            "it is None, True or False",
            "requires_grad=True",
        )
    if grad == "keep":
        raise OptionError.because(
            "take requires_grad=False with grad='keep'", "they contradict each other", "one of them"
        )
    return "detach"


def _device(device: object, rooms: tuple[Backend, ...]) -> Device | None:
    if device is None or isinstance(device, Device):
        return device
    if isinstance(device, str):
        return device_named(device)
    found: Device | None = _named("device_name", device, rooms)
    if found is not None:
        return found
    raise DeviceError.because(f"read device {device!r}", "no library knows it as a device", "device='cpu'")


def _dtype(dtype: object, rooms: tuple[Backend, ...]) -> str | None:
    if dtype is None:
        return None
    if isinstance(dtype, str):
        if dtype in DTYPES or dtype == "default":
            return str(dtype)
        raise _unknown(dtype)
    found = of_python(dtype) or _named("dtype_name", dtype, rooms)
    if found is None:
        raise _unknown(dtype)
    return found


def _named(verb: str, thing: object, rooms: tuple[Backend, ...]) -> Any:
    """The name of a library's object, from the first backend that knows it; `rooms` go before its kin."""
    for asked in (rooms, None):
        for room in asked or kin(thing):
            name = getattr(room, verb)(thing)
            if name is not None:
                return name
    return None


def _unknown(dtype: object) -> DTypeError:
    from difflib import get_close_matches  # noqa: PLC0415 -- 6 ms, and only an error needs it

    near = [_ALIASES[str(dtype)]] if str(dtype) in _ALIASES else get_close_matches(str(dtype), DTYPES, n=1)
    return DTypeError.because(
        f"read dtype {dtype!r}",
        "it is no canonical name and no library's native dtype",
        f"dtype={(near or ['float32'])[0]!r}",
    )
